"""What Azure was told to make, until it is made: by what the thing itself says, not by the SDK's pollers.

A thing that exists in Azure tells its own `provisioningState`; so a process that was not there when it was ordered can
wait for it as well. Why one has failed is told by the operation that made it, and of machines by their instance view,
also to those who come later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..base import ProvisionError
from ..shared.api_calls import pause
from .account import refusal
from .clients import Clients, Json, answer_of, gone_is_fine

START_S = 240.0
"""So long Azure may take to find a place for a machine, or to say that it has none."""
PATIENCE_S = 180.0
"""So long anything else may take; a machine may take this long to be deleted."""
UNSEEN_S = 60.0
"""Seconds after a call that has a machine or a scale set made for which Azure may not show it: its caches lag."""
_PAUSES_S, _LAST_PAUSE_S = (0.5, 1.0, 2.0), 3.0
ENDED = frozenset({"Succeeded", "Failed", "Canceled"})
"""States of what Azure does not work on any more."""
_RUNS = frozenset({"PowerState/running", "PowerState/starting"})
_FAILED = "ProvisioningState/failed"
"""Followed by `/` and Azure's code, where it names one."""


@dataclass(frozen=True, slots=True)
class Order:
    """Azure's answer to a call that has something made."""

    found: Json
    """The thing, as it was then."""
    url: str
    """Of the operation; "": it was done at once."""


@dataclass(frozen=True, slots=True)
class View:
    """A machine as it says itself."""

    state: str
    """Its `provisioningState`."""
    runs: bool
    """It has a place, and was started there."""
    restarts: bool
    """It is being started, though it has run before: for its host, or somebody wants it."""
    error: Json | None
    """Code and message of what went wrong."""
    zone: str | None
    tags: dict[str, str]


def ordered(begin: Callable[..., Any]) -> Order:
    """For one of the SDK's calls that begin with `begin_`, whose other arguments are bound. The SDK does not read the
    answer: of some calls it takes no empty one, as 202 comes with."""
    from azure.core.polling import NoPolling

    class FirstAnswer(NoPolling[Any]):
        def resource(self) -> Any:  # a PipelineResponse
            return self._initial_response

    answer = begin(polling=FirstAnswer()).result()  # type: ignore[no-untyped-call]
    headers = answer.http_response.headers
    return Order(answer_of(answer), headers.get("Azure-AsyncOperation") or headers.get("Location") or "")


def make(clients: Clients, doing: str, begin: Callable[..., Any], look: Callable[..., Any]) -> Json:
    """Make a thing, and wait until it is there: its last state. It may be repeated. Raises ProvisionError."""
    order = clients.ask(doing, lambda: ordered(begin))
    found, clock = order.found, clients.clock
    until, waits = clock.monotonic() + PATIENCE_S, pauses()
    while (state := state_of(found)) not in ENDED:
        if clock.monotonic() > until:
            message = f"{doing}: Azure has not done it after {PATIENCE_S:.0f} s (it is {state or 'in no state'})"
            raise ProvisionError("transient", message, scope="region", code="OperationTimeout")
        pause(clock, next(waits))
        found = clients.ask(doing, lambda: look(cls=answer_of))
    if state != "Succeeded":
        raise refusal(reason(clients, order.url, doing) or {"code": "Failed", "message": f"it is {state}"}, doing)
    return found


def await_place(clients: Clients, group: str, name: str, doing: str, url: str = "") -> View:
    """Wait until a machine has a place and starts; what its system does then is not waited for.

    `url`: of the operation that makes it, if that was begun just now: the machine may not be shown for UNSEEN_S then,
    unless the operation has failed. Raises ProvisionError: what went wrong, or `transient` if it takes too long.
    """
    clock = clients.clock
    begun, waits = clock.monotonic(), pauses()
    until = begun + START_S
    while True:
        view = look_at(clients, group, name)
        if view is None:
            check_on_its_way(clients, url, doing, clock.monotonic() - begun, "the machine")
        elif view.runs or view.state == "Succeeded":
            return view
        elif view.state in ENDED:
            failed = {"code": "Failed", "message": f"the machine is {view.state}"}
            raise refusal(view.error or reason(clients, url, doing) or failed, doing)
        if clock.monotonic() > until:
            message = f"{doing}: Azure has neither found a place for it nor refused it after {START_S:.0f} s"
            raise ProvisionError("transient", message, scope="zone", code="OperationTimeout")
        pause(clock, next(waits))


def check_on_its_way(clients: Clients, url: str, doing: str, age_s: float, what: str) -> None:
    """Raise ProvisionError for what Azure does not show, e.g. `the machine`, if it was taken back or deleted while it
    was made: its operation has failed then, or it is not shown for longer than Azure's caches lag.

    `age_s`: seconds since the call that has it made.
    """
    why = reason(clients, url, doing)
    if why is None and url and age_s < UNSEEN_S:
        return
    raise refusal(why or {"code": "AllocationFailed", "message": f"{what} is gone already"}, doing)


def look_at(clients: Clients, group: str, name: str) -> View | None:
    """At one machine; None: there is none. Raises ProvisionError."""

    def ask() -> View | None:
        with gone_is_fine():
            found = clients.compute.virtual_machines.get(group, name, expand="instanceView", cls=answer_of)
            return view_of(found)
        return None

    return clients.ask(f"look at {name}", ask)


def view_of(found: Any) -> View:  # JSON
    """From Azure's answer."""
    told = found.get("properties", {}).get("instanceView") or {}
    codes = {str(one.get("code", "")) for one in told.get("statuses") or ()}
    return View(
        state=state_of(found),
        runs=bool(_RUNS & codes),
        restarts=state_of(found) == "Updating" or "PowerState/starting" in codes,
        error=error_in(told),
        zone=next(iter(found.get("zones") or ()), None),
        tags=dict(found.get("tags") or {}),
    )


def error_in(view: Json) -> Json | None:
    """Code and message of what went wrong, from an instance view; None: nothing has."""
    for one in view.get("statuses") or ():
        code = str(one.get("code", ""))
        if code.startswith(_FAILED):
            return {"code": code.removeprefix(_FAILED).strip("/") or "Failed", "message": str(one.get("message", ""))}
    return None


def pauses() -> Iterator[float]:
    """Seconds between one look and the next."""
    return itertools.chain(_PAUSES_S, itertools.repeat(_LAST_PAUSE_S))


def reason(clients: Clients, url: str, doing: str) -> Json | None:
    """The error of an operation; None: it has none, or does not tell any more."""
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
    """Have a thing deleted; with `look`, wait until it is gone. False: it, or its group, was not there; but of most
    things that are not there Azure says that it has deleted them. Raises ProvisionError."""

    def start() -> bool:
        with gone_is_fine():
            ordered(begin)
            return True
        return False

    if not clients.ask(doing, start):
        return False
    if look is not None:
        wait_for(clients, doing, lambda: not is_there(clients, doing, look))
    return True


def wait_for(clients: Clients, doing: str, is_done: Callable[[], bool]) -> None:
    """Ask again and again whether it is done. Raises ProvisionError: `transient`, if it takes too long."""
    clock = clients.clock
    until, waits = clock.monotonic() + PATIENCE_S, pauses()
    while not is_done():
        if clock.monotonic() > until:
            message = f"{doing}: Azure has not done it after {PATIENCE_S:.0f} s"
            raise ProvisionError("transient", message, scope="region", code="OperationTimeout")
        pause(clock, next(waits))


def is_there(clients: Clients, doing: str, look: Callable[..., object]) -> bool:
    """Whether a thing exists."""

    def ask() -> bool:
        with gone_is_fine():
            look(cls=answer_of)
            return True
        return False

    return clients.ask(doing, ask)


def state_of(found: Json) -> str:
    return str((found.get("properties") or {}).get("provisioningState") or "")
