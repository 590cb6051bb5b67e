"""Polling of Azure's long-running operations, based on the resource's own state instead of the SDK's pollers.

Every resource has a `provisioningState`, so any process can wait for it, even one that did not create it. The cause of
a failure comes from the operation that created the resource and, for machines, also from their instance view, which
remains available later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..base import ProvisionError
from ..shared.api_calls import pause
from .account import refusal
from .clients import Clients, Json, answer_of, ignore_not_found

START_S = 240.0
"""Seconds that Azure may take to place or refuse a machine."""
RETRY_TIMEOUT_S = 180.0
"""Timeout in seconds of other operations, including the deletion of a machine."""
UNSEEN_S = 60.0
"""Seconds for which Azure may not list a new machine or scale set: its caches lag."""
_PAUSES_S, _LAST_PAUSE_S = (0.5, 1.0, 2.0), 3.0
ENDED = frozenset({"Succeeded", "Failed", "Canceled"})
"""Provisioning states in which no operation is running."""
_RUNS = frozenset({"PowerState/running", "PowerState/starting"})
_FAILED = "ProvisioningState/failed"
"""Prefix of a failure's status code; `/` and Azure's error code follow, if known."""


@dataclass(frozen=True, slots=True)
class StartedOperation:
    """Azure's response to a request that creates or changes a resource."""

    found: Json
    """The resource at the time of the response."""
    url: str
    """URL of the operation; "": it finished immediately."""


@dataclass(frozen=True, slots=True)
class View:
    """State of a machine, from its instance view."""

    state: str
    """Its `provisioningState`."""
    runs: bool
    """True if it was placed and started."""
    restarts: bool
    """True if it is being restarted, after host maintenance or by request."""
    error: Json | None
    """Code and message of the failure."""
    zone: str | None
    tags: dict[str, str]


def start_operation(begin: Callable[..., Any]) -> StartedOperation:
    """Call one of the SDK's `begin_` methods without polling, and return Azure's first response.

    `begin`: the method with all arguments bound except `polling`.

    The response is parsed here: for some calls the SDK fails on the empty body of a 202.
    """
    from azure.core.polling import NoPolling

    class FirstAnswer(NoPolling[Any]):
        def resource(self) -> Any:  # a PipelineResponse
            return self._initial_response

    answer = begin(polling=FirstAnswer()).result()  # type: ignore[no-untyped-call]
    headers = answer.http_response.headers
    return StartedOperation(answer_of(answer), headers.get("Azure-AsyncOperation") or headers.get("Location") or "")


def make(clients: Clients, doing: str, begin: Callable[..., Any], look: Callable[..., Any]) -> Json:
    """Create a resource, wait until it exists, and return it. Idempotent. Raises ProvisionError.

    `begin`, `look`: the SDK's methods that create and read the resource, with their arguments bound."""
    order = clients.ask(doing, lambda: start_operation(begin))
    found, clock = order.found, clients.clock
    until, waits = clock.monotonic() + RETRY_TIMEOUT_S, pauses()
    while (state := state_of(found)) not in ENDED:
        if clock.monotonic() > until:
            message = f"{doing}: Azure has not done it after {RETRY_TIMEOUT_S:.0f} s (it is {state or 'in no state'})"
            raise ProvisionError("transient", message, scope="region", code="OperationTimeout")
        pause(clock, next(waits))
        found = clients.ask(doing, lambda: look(cls=answer_of))
    if state != "Succeeded":
        raise refusal(
            operation_error(clients, order.url, doing) or {"code": "Failed", "message": f"it is {state}"}, doing
        )
    return found


def await_place(clients: Clients, group: str, name: str, doing: str, url: str = "") -> View:
    """Wait until a machine is placed and starts, but not until its system has booted.

    `url`: URL of the operation that creates it, if it was just requested: the machine may be missing for UNSEEN_S
    unless the operation failed. Raises ProvisionError: the failure, or `transient` on a timeout.
    """
    clock = clients.clock
    begun, waits = clock.monotonic(), pauses()
    until = begun + START_S
    while True:
        view = get_machine(clients, group, name)
        if view is None:
            check_on_its_way(clients, url, doing, clock.monotonic() - begun, "the machine")
        elif view.runs or view.state == "Succeeded":
            return view
        elif view.state in ENDED:
            failed = {"code": "Failed", "message": f"the machine is {view.state}"}
            raise refusal(view.error or operation_error(clients, url, doing) or failed, doing)
        if clock.monotonic() > until:
            message = f"{doing}: Azure has neither found a place for it nor refused it after {START_S:.0f} s"
            raise ProvisionError("transient", message, scope="zone", code="OperationTimeout")
        pause(clock, next(waits))


def check_on_its_way(clients: Clients, url: str, doing: str, age_s: float, what: str) -> None:
    """Raise ProvisionError for a missing resource, unless it may still appear.

    It may appear until UNSEEN_S after the request, unless its operation failed. `age_s`: seconds since the request;
    `what`: e.g. `the machine`.
    """
    why = operation_error(clients, url, doing)
    if why is None and url and age_s < UNSEEN_S:
        return
    raise refusal(why or {"code": "AllocationFailed", "message": f"{what} is gone already"}, doing)


def get_machine(clients: Clients, group: str, name: str) -> View | None:
    """Return a machine's state; None: it does not exist. Raises ProvisionError."""

    def ask() -> View | None:
        with ignore_not_found():
            found = clients.compute.virtual_machines.get(group, name, expand="instanceView", cls=answer_of)
            return view_of(found)
        return None

    return clients.ask(f"look at {name}", ask)


def view_of(found: Any) -> View:  # JSON
    """Parse a machine's state from the API's response."""
    instance_view = found.get("properties", {}).get("instanceView") or {}
    codes = {str(one.get("code", "")) for one in instance_view.get("statuses") or ()}
    return View(
        state=state_of(found),
        runs=bool(_RUNS & codes),
        restarts=state_of(found) == "Updating" or "PowerState/starting" in codes,
        error=error_in(instance_view),
        zone=next(iter(found.get("zones") or ()), None),
        tags=dict(found.get("tags") or {}),
    )


def error_in(view: Json) -> Json | None:
    """Return code and message of the failure in an instance view; None: none."""
    for one in view.get("statuses") or ():
        code = str(one.get("code", ""))
        if code.startswith(_FAILED):
            return {"code": code.removeprefix(_FAILED).strip("/") or "Failed", "message": str(one.get("message", ""))}
    return None


def pauses() -> Iterator[float]:
    """Return an iterator of the seconds between polls."""
    return itertools.chain(_PAUSES_S, itertools.repeat(_LAST_PAUSE_S))


def operation_error(clients: Clients, url: str, doing: str) -> Json | None:
    """Return the error of an operation; None: none, or no longer available."""
    if not url:
        return None
    try:
        found = clients.get(url, doing)
    except ProvisionError:
        return None
    error = found.get("error")
    return error if isinstance(error, dict) else None


def delete(
    clients: Clients, doing: str, begin: Callable[..., object], look: Callable[..., object] | None = None
) -> bool:
    """Delete a resource; with `look`, wait until it is gone. Raises ProvisionError.

    Return False if it, or its group, did not exist. Azure reports success for most resources that do not exist, so True
    may be returned for them.
    """

    def start() -> bool:
        with ignore_not_found():
            start_operation(begin)
            return True
        return False

    if not clients.ask(doing, start):
        return False
    if look is not None:
        wait_for(clients, doing, lambda: not is_there(clients, doing, look))
    return True


def wait_for(clients: Clients, doing: str, is_done: Callable[[], bool]) -> None:
    """Poll until `is_done` returns True. Raises ProvisionError(transient) after RETRY_TIMEOUT_S."""
    clock = clients.clock
    until, waits = clock.monotonic() + RETRY_TIMEOUT_S, pauses()
    while not is_done():
        if clock.monotonic() > until:
            message = f"{doing}: Azure has not done it after {RETRY_TIMEOUT_S:.0f} s"
            raise ProvisionError("transient", message, scope="region", code="OperationTimeout")
        pause(clock, next(waits))


def is_there(clients: Clients, doing: str, look: Callable[..., object]) -> bool:
    """Return True if a resource exists."""

    def ask() -> bool:
        with ignore_not_found():
            look(cls=answer_of)
            return True
        return False

    return clients.ask(doing, ask)


def state_of(found: Json) -> str:
    return str((found.get("properties") or {}).get("provisioningState") or "")
