"""Cached list of instances, shared by all jobs of a process, and the reasons why instances ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...base import NodeState, ProvisionError
from ...shared import tags
from ...shared.api_calls import UNKNOWN, retry
from ...shared.poll_cache import PollCache
from .. import operations
from ..clients import READ_S, RETRY_TIMEOUT_S, Clients, ignore_not_found
from ..labels import from_labels, region_of, with_label
from ..listing import AGGREGATED_S, avoid, is_avoided, zones_of
from ..operations import Operation
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

_BEGINNING = frozenset({"PENDING", "PROVISIONING", "STAGING"})
"""States before an instance runs. In all other states its disk exists and bills, even in TERMINATED until it is
deleted."""
_TAKEN = frozenset(
    {
        "compute.instances.preempted",
        "compute.instances.hostError",
        "compute.instances.terminateOnHostMaintenance",
    }
)
"""Operations by which Compute Engine preempts or terminates a machine. Source: its documentation, "Compute Engine audit
logging information", system events."""
_FROM_WITHIN = frozenset(
    {"delete", "stop", "suspend", "compute.instances.preempted", "compute.instances.guestTerminate"}
)
"""Operations after which Compute Engine does not restart a machine: it was deleted or stopped, or shut itself down."""
_MAINTAINED = _TAKEN - _FROM_WITHIN
_UNREACHABLE = "UNREACHABLE"


@dataclass(frozen=True, slots=True)
class InstanceState:
    """State of an instance in the latest list."""

    zone: str
    name: str
    status: str
    """Compute Engine's status, e.g. `STAGING`."""
    tags: Mapping[str, str]
    message: str
    """Explanation of the status, often ""."""
    restarts: bool
    """True if Compute Engine restarts it after it terminated it, e.g. for maintenance (automaticRestart)."""
    was_stopped: bool
    """True if it was stopped at least once after it ran."""

    @property
    def machine(self) -> str:
        """Value in Allocation.machines: a name is unique only within a zone."""
        return f"{self.zone}/{self.name}"

    @property
    def region(self) -> str:
        return region_of(self.zone)

    @property
    def token(self) -> str:
        """Token of its launch."""
        return self.tags.get(tags.TOKEN, "")

    @property
    def node(self) -> str:
        """Node name, as in NodeRequest; "": the label was removed."""
        return self.tags.get(tags.NODE, "")

    @property
    def is_ending(self) -> bool:
        return self.status in {"STOPPING", "DEPROVISIONING", "PENDING_STOP"}

    @property
    def is_queued(self) -> bool:
        """True if it waits for capacity; it is then not billed."""
        return self.status == "PENDING"

    @property
    def is_down(self) -> bool:
        """True if it does not run, but may be restarted."""
        return self.restarts and self.status in {"STOPPING", "TERMINATED", "STOPPED", "REPAIRING"}

    def as_node(self, node: str, *, returns: bool = False) -> NodeState:
        """Return the node's state. `returns`: Compute Engine is known to restart the machine."""
        phase: Literal["pending", "running"] = "pending" if self.status in _BEGINNING else "running"
        words = "it waits for capacity" if self.is_queued and not self.message else self.message
        detail = "" if self.status == "RUNNING" else ": ".join(part for part in (self.status, words) if part)
        returns = returns or (phase == "pending" and self.was_stopped)
        return NodeState(node, phase, detail, queued=self.is_queued, restarting=returns)


class InstanceCache:
    """Cache of listed instances, shared by all jobs of a process."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock)

    def of_owner(self, owner: str, *, since: float | None = None, region: str = "") -> Mapping[str, InstanceState]:
        """Return machine -> state for all instances of an owner, in all zones.

        `since`: monotonic time; a cached list that was requested earlier is not used. `region`: "" for all. Raises
        ProvisionError(transient) if a zone in the region is unreachable, since it may have instances.
        """
        return self._of(tags.OWNER, owner, since, region)

    def of_token(self, token: str, *, since: float | None = None, region: str = "") -> Mapping[str, InstanceState]:
        """Return machine -> state for the instances of a launch whose owner is unknown; otherwise as of_owner()."""
        return self._of(tags.TOKEN, token, since, region)

    def of_launch(self, token: str, owner: str, *, since: float | None = None, region: str = "") -> list[InstanceState]:
        """Return the instances of one launch; `owner`: "" if unknown."""
        seen = (
            self.of_owner(owner, since=since, region=region)
            if owner
            else self.of_token(token, since=since, region=region)
        )
        return [one for one in seen.values() if one.token == token]

    def _of(self, label: str, value: str, since: float | None, region: str) -> Mapping[str, InstanceState]:
        """Return instances from one list of all zones, which all jobs share, or from lists of the region's zones."""
        everywhere = (label, value, "")
        if not region:
            return retry(
                lambda: self._cache.get(everywhere, since=since), timeout_s=RETRY_TIMEOUT_S, clock=self._clients.clock
            ).of("")
        if not is_avoided(self._clients):
            try:
                seen = self._cache.get(everywhere, since=since)
            except ProvisionError as error:
                avoid(self._clients, error)
            else:
                return seen.of(region)
        return self._cache.get((label, value, region), since=since).of(region)

    def _ask(self, key: tuple[str, str, str]) -> Seen:
        """List instances. `key`: a label, its value, and a region ("": all)."""
        label, value, region = key
        wanted, clients, doing = with_label(label, value), self._clients, "look at the machines"
        if not region:
            return clients.ask(doing, lambda: self._ask_everywhere(wanted), AGGREGATED_S)
        zones = zones_of(clients, region)
        found = [clients.ask(f"{doing} in {zone}", partial(self._ask_zone, wanted, zone)) for zone in zones]
        return Seen({one.machine: one for listed in found for one in listed}, {})

    def _ask_everywhere(self, wanted: str) -> Seen:
        from google.cloud import compute_v1

        request = compute_v1.AggregatedListInstancesRequest(
            project=self._clients.project, filter=wanted, max_results=500
        )
        return seen_in(list(self._clients.instances.aggregated_list(request, retry=None, timeout=READ_S)))

    def _ask_zone(self, wanted: str, zone: str) -> list[InstanceState]:
        from google.cloud import compute_v1

        request = compute_v1.ListInstancesRequest(
            project=self._clients.project, zone=zone, filter=wanted, max_results=500
        )
        return [sighting(one) for one in self._clients.instances.list(request, retry=None, timeout=READ_S)]


class Seen(NamedTuple):
    """Instances in a list of all zones."""

    machines: Mapping[str, InstanceState]
    unreachable: Mapping[str, str]
    """Zone -> reason why it could not be listed."""

    def of(self, region: str) -> Mapping[str, InstanceState]:
        """Return all instances. Raises ProvisionError(transient) if a zone in `region` ("": any) was unreachable."""
        for zone, why in self.unreachable.items():
            if region in {"", region_of(zone)}:
                message = f"look at the machines: {zone} cannot be reached: {why}"
                raise ProvisionError("transient", message, scope="zone", code=_UNREACHABLE)
        return self.machines


def seen_in(pages: Iterable[tuple[str, compute_v1.InstancesScopedList]]) -> Seen:
    """Parse the pages of a list."""
    machines: dict[str, InstanceState] = {}
    unreachable: dict[str, str] = {}
    for scope, found in pages:
        warning: Any = found.warning
        if warning.code == _UNREACHABLE:
            unreachable[last_part(scope)] = warning.message
        machines |= {one.machine: one for one in map(sighting, found.instances)}
    return Seen(machines, unreachable)


def get_instance(clients: Clients, machine: str) -> InstanceState | None:
    """Return one machine's state, even before lists show it; None: it does not exist. Raises ProvisionError."""
    zone, _, name = machine.partition("/")

    def ask() -> InstanceState | None:
        with ignore_not_found():
            found = clients.instances.get(project=clients.project, zone=zone, instance=name, retry=None, timeout=READ_S)
            return sighting(found)
        return None

    return clients.ask(f"look at {name} in {zone}", ask)


def end_from_history(clients: Clients, node: str, machine: str) -> NodeState | None:
    """Return the final state of a machine that lists do not show; None: no operation shows that it ended. One call.
    Raises ProvisionError."""
    zone, _, name = machine.partition("/")
    return end_of(node, [one for one in operations.of_instances(clients, name, region_of(zone)) if one.zone == zone])


def will_restart(clients: Clients, machine: str) -> bool:
    """Return True if a machine was stopped because of its host, and will be restarted. One call. Raises
    ProvisionError."""
    zone, _, name = machine.partition("/")
    ends = [
        one.kind
        for one in operations.of_instances(clients, name, region_of(zone))
        if one.zone == zone and one.kind in _MAINTAINED | _FROM_WITHIN
    ]
    return bool(ends) and ends[-1] in _MAINTAINED


def end_of(node: str, done: list[Operation]) -> NodeState | None:
    """Return the final state of a machine, given its operations, the oldest first; None: none of them ended it."""
    begun = max((at for at, one in enumerate(done) if one.kind == "insert"), default=-1)
    insert, since = done[begun] if begun >= 0 else None, done[begun + 1 :]
    taken = [one for one in since if one.kind in _TAKEN]
    if taken:
        return NodeState(node, "gone", f"Compute Engine took it back: {taken[-1].kind}", reclaimed=True)
    ended = [one for one in since if one.kind == "delete"]
    if ended:
        return NodeState(node, "gone", f"deleted by {ended[-1].user or 'somebody unknown'}")
    if insert is None or insert.error is None:
        return None
    refused = None if insert.error.error_class in UNKNOWN else insert.error
    return NodeState(node, "gone", f"it never ran: {insert.error}", refused=refused)


def sighting(instance: compute_v1.Instance) -> InstanceState:
    """Parse an instance from the API's response."""
    return InstanceState(
        zone=last_part(instance.zone),
        name=instance.name,
        status=instance.status,
        tags=from_labels(instance.labels),
        message=instance.status_message,
        restarts=instance.scheduling.automatic_restart,
        was_stopped=bool(instance.last_stop_timestamp),
    )
