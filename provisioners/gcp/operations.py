"""Compute Engine operations: start them, wait for them, and list past ones, which are kept for about two weeks.

The history replaces local state: it shows which machines were started under a launch's token, whether cloudgpu or
something else deleted them, and why a machine is gone. Resources that only exist or not, such as firewall rules, do not
need it: see make() and remove().
"""

from __future__ import annotations

import datetime
import functools
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import ProvisionError
from ..shared.api_calls import pause
from ..shared.errors import classify
from .clients import READ_S, Clients
from .listing import ask_everywhere, list_everywhere
from .rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

_PAUSES_S, _LAST_PAUSE_S = (0.5, 1.0), 2.0
"""Seconds between polls of an operation: the first ones, and all later ones."""
_LONG_AGO = datetime.datetime.fromtimestamp(0, datetime.UTC)
_EXISTS = "alreadyExists"
_SERVER_ERROR = 500
_ZONES = "zonesAvailable"
"""Key in the metadata of an error's ErrorInfo: zones with capacity (k8s.io#9834, cockroach's roachprod tests)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """State of an operation."""

    name: str
    """Compute Engine's unique name of the operation."""
    kind: str
    """`insert`, `delete`, `compute.instances.preempted`, `compute.instanceGroupManagers.insert` …"""
    request_id: str
    """Request id of the call; "": none."""
    instance: str
    """Name of the target resource."""
    zone: str
    """Zone of the target; "": not zonal."""
    user: str
    """Requester: an e-mail address, or `system`."""
    at: datetime.datetime
    """Time of the request."""
    finished: bool
    error: ProvisionError | None
    """Error of a failed operation."""
    region: str = ""
    """Region of the target; "": not regional."""

    @property
    def verb(self) -> str:
        """`insert`, `delete` …: the kind without the prefix that groups' operations have."""
        return self.kind.rpartition(".")[2]

    @property
    def place(self) -> str:
        """Zone or region; "": neither."""
        return self.zone or self.region


def parse_operation(operation: compute_v1.Operation, doing: str = "") -> Operation:
    """Parse an operation from the API's response."""
    return Operation(
        name=operation.name,
        kind=operation.operation_type,
        request_id=operation.client_operation_id,
        instance=last_part(operation.target_link),
        zone=last_part(operation.zone),
        user=operation.user,
        at=datetime.datetime.fromisoformat(operation.insert_time) if operation.insert_time else _LONG_AGO,
        finished=operation.status.name == "DONE",
        error=_error(operation, doing),
        region=last_part(operation.region),
    )


def order(clients: Clients, start: Callable[[], compute_v1.Operation], doing: str) -> Operation:
    """Start an operation. `start` must be idempotent (it sends a request id). Raises ProvisionError."""
    return clients.ask(doing, lambda: parse_operation(start(), doing))


def wait(
    clients: Clients, ordered: Operation, doing: str, retry_timeout_s: float, enough: Callable[[], bool] = lambda: False
) -> Operation:
    """Poll until the operation is done or `enough()` returns True; return its last state.

    Raises ProvisionError: the operation's error, or `transient` after `retry_timeout_s` seconds."""
    clock = clients.clock
    until, pauses, now = (
        clock.monotonic() + retry_timeout_s,
        itertools.chain(_PAUSES_S, itertools.repeat(_LAST_PAUSE_S)),
        ordered,
    )
    while not now.finished and not enough():
        if clock.monotonic() > until:
            message = f"{doing}: Compute Engine has not done it after {retry_timeout_s:.0f} s (operation {now.name})"
            raise ProvisionError("transient", message, scope="zone", code="OperationTimeout")
        pause(clock, next(pauses))
        now = clients.ask(doing, functools.partial(_look, clients, ordered, doing))
    if now.error is not None:
        raise now.error
    return now


def make(
    clients: Clients,
    insert: Callable[[str], compute_v1.Operation],
    is_there: Callable[[], bool],
    *,
    doing: str,
    retry_timeout_s: float,
    request_id: str = "",
) -> None:
    """Create a resource unless it exists or another process creates it concurrently. Raises ProvisionError.

    `insert`: function that sends the call with a request id: `request_id`, or a new one if that is "".
    """
    from google.api_core.exceptions import Conflict

    if is_there():
        return
    call_id = request_id or str(uuid.uuid4())

    def start() -> compute_v1.Operation:
        try:
            return insert(call_id)
        except Conflict as error:  # it exists, so there is no operation to wait for
            raise ProvisionError("invalid", f"{doing}: {error.message}", scope="region", code=_EXISTS) from error

    try:
        wait(clients, order(clients, start, doing), doing, retry_timeout_s)
    except ProvisionError:
        if not is_there():
            raise


def remove(
    clients: Clients,
    delete: Callable[[], compute_v1.Operation],
    is_there: Callable[[], bool],
    *,
    doing: str,
    retry_timeout_s: float,
) -> None:
    """Delete a resource, and return when it is gone. Idempotent. Raises ProvisionError."""
    if not is_there():
        return
    try:
        wait(clients, order(clients, delete, doing), doing, retry_timeout_s)
    except ProvisionError:
        if is_there():
            raise


def begun_by(done: Sequence[Operation]) -> dict[str, Operation]:
    """Return `zone/name` or `region/name` -> operation that created the resource, for those that may exist.

    `done`: operations on machines or groups, the oldest first."""
    found: dict[str, Operation] = {}
    for one in done:
        machine = f"{one.place}/{one.instance}"
        if one.verb == "insert" and one.error is None:
            found[machine] = one
        elif one.verb == "delete" and one.finished and one.error is None:
            found.pop(machine, None)
    return found


def of_instances(clients: Clients, pattern: str, region: str = "") -> list[Operation]:
    """Return the operations on instances whose name matches a regular expression, the oldest first. One call.

    `region`: region of the instances, whose zones are queried if the list of all zones fails; "": no fallback. Raises
    ProvisionError.
    """
    from google.cloud import compute_v1

    doing = f"look at what was done to {pattern}"

    def in_zone(zone: str) -> list[Operation]:
        request = compute_v1.ListZoneOperationsRequest(
            project=clients.project, zone=zone, filter=_fits("instances", pattern), max_results=500
        )
        found = clients.zone_operations.list(request, retry=None, timeout=READ_S)
        return [parse_operation(operation, doing) for operation in found]

    found = list_everywhere(clients, doing, lambda: _everywhere(clients, "instances", pattern, doing), in_zone, region)
    return sorted(found, key=lambda one: one.at)


def of_things(clients: Clients, collection: str, pattern: str, region: str = "") -> list[Operation]:
    """Return the operations on resources of a regional collection (`instanceGroupManagers`) whose name matches a
    regular expression, the oldest first. One call.

    `region`: region of the resources, which is queried if the list of all regions fails; "": no fallback. Raises
    ProvisionError.
    """
    from google.cloud import compute_v1

    doing = f"look at what was done to {pattern}"

    def in_region() -> list[Operation]:
        request = compute_v1.ListRegionOperationsRequest(
            project=clients.project, region=region, filter=_fits(collection, pattern), max_results=500
        )
        found = clients.region_operations.list(request, retry=None, timeout=READ_S)
        return [parse_operation(operation, doing) for operation in found]

    found = ask_everywhere(
        clients,
        doing,
        lambda: _everywhere(clients, collection, pattern, doing),
        (lambda: clients.ask(f"{doing} in {region}", in_region)) if region else None,
    )
    return sorted(found, key=lambda one: one.at)


def _fits(collection: str, pattern: str) -> str:
    return f'targetLink eq ".*/{collection}/{pattern}"'


def _everywhere(clients: Clients, collection: str, pattern: str, doing: str) -> list[Operation]:
    from google.cloud import compute_v1

    request = compute_v1.AggregatedListGlobalOperationsRequest(
        project=clients.project, filter=_fits(collection, pattern), max_results=500
    )
    pages = clients.global_operations.aggregated_list(request, retry=None, timeout=READ_S)
    return [parse_operation(operation, doing) for _, scope in pages for operation in scope.operations]


def _look(clients: Clients, one: Operation, doing: str) -> Operation:
    if one.zone:
        operation = clients.zone_operations.get(
            project=clients.project, zone=one.zone, operation=one.name, retry=None, timeout=READ_S
        )
    elif one.region:
        operation = clients.region_operations.get(
            project=clients.project, region=one.region, operation=one.name, retry=None, timeout=READ_S
        )
    else:
        operation = clients.global_operations.get(
            project=clients.project, operation=one.name, retry=None, timeout=READ_S
        )
    return parse_operation(operation, doing)


def _error(operation: compute_v1.Operation, doing: str) -> ProvisionError | None:
    """Return the first error of an operation; its list of zones with capacity becomes the error's hints."""
    first = next(iter(operation.error.errors), None)
    status = operation.http_error_status_code or None
    if first is None:
        if status is None or status < 400:
            return None
        # Without an error code the HTTP status decides: errors of Compute Engine itself are transient.
        message, passes = operation.http_error_message, status >= _SERVER_ERROR
        return classify("gcp", code="", status=status, message=message, doing=doing, is_operation=not passes)
    about = [detail.error_info for detail in first.error_details if detail.error_info.metadatas]
    hints = [zone for info in about for zone in info.metadatas.get(_ZONES, "").replace(",", " ").split()]
    return classify(
        "gcp", code=first.code, status=status, message=first.message, doing=doing, hints=hints, is_operation=True
    )
