"""What is there on Compute Engine: one aggregated list for all jobs of a process, within a short time."""

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
from ..clients import PATIENCE_S, READ_S, Clients, gone_is_fine
from ..labels import from_labels, region_of, with_label
from ..listing import AGGREGATED_S, avoid, is_avoided, zones_of
from ..operations import Done
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

_BEGINNING = frozenset({"PENDING", "PROVISIONING", "STAGING"})
"""Of an instance's states. In all others there is a disk, which bills: also in TERMINATED, until it is deleted."""
_TAKEN = frozenset(
    {
        "compute.instances.preempted",
        "compute.instances.hostError",
        "compute.instances.terminateOnHostMaintenance",
    }
)
"""Operations by which Compute Engine takes a machine back. Source: its documentation, "Compute Engine audit logging
information", system events."""
_FROM_WITHIN = frozenset(
    {"delete", "stop", "suspend", "compute.instances.preempted", "compute.instances.guestTerminate"}
)
"""Operations after which nobody starts a machine again: it was ended by somebody, or powered itself off."""
_MAINTAINED = _TAKEN - _FROM_WITHIN
_UNREACHABLE = "UNREACHABLE"


@dataclass(frozen=True, slots=True)
class Sighting:
    """An instance as it was last seen."""

    zone: str
    name: str
    status: str
    """Compute Engine's word, e.g. `STAGING`."""
    tags: Mapping[str, str]
    message: str
    """What it says of the status; mostly nothing."""
    restarts: bool
    """Compute Engine starts it again after an end that is its own doing."""
    was_stopped: bool
    """It has run, and was stopped, before now."""

    @property
    def machine(self) -> str:
        """As in Allocation.machines: a name is unique in a zone only."""
        return f"{self.zone}/{self.name}"

    @property
    def region(self) -> str:
        return region_of(self.zone)

    @property
    def token(self) -> str:
        """Of the launch."""
        return self.tags.get(tags.TOKEN, "")

    @property
    def node(self) -> str:
        """As in NodeRequest; "" if somebody has removed the label."""
        return self.tags.get(tags.NODE, "")

    @property
    def is_ending(self) -> bool:
        return self.status in {"STOPPING", "DEPROVISIONING", "PENDING_STOP"}

    @property
    def is_queued(self) -> bool:
        """It waits for capacity, and nothing bills."""
        return self.status == "PENDING"

    @property
    def is_down(self) -> bool:
        """It does not run, and may be started again."""
        return self.restarts and self.status in {"STOPPING", "TERMINATED", "STOPPED", "REPAIRING"}

    def as_node(self, node: str, *, returns: bool = False) -> NodeState:
        """What it means for a node. `returns`: it is known that Compute Engine will start it again."""
        phase: Literal["pending", "running"] = "pending" if self.status in _BEGINNING else "running"
        words = "it waits for capacity" if self.is_queued and not self.message else self.message
        detail = "" if self.status == "RUNNING" else ": ".join(part for part in (self.status, words) if part)
        returns = returns or (phase == "pending" and self.was_stopped)
        return NodeState(node, phase, detail, queued=self.is_queued, returns=returns)


class Sightings:
    """Cache of the instances that lists show, shared by all jobs of a process."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock)

    def of_owner(self, owner: str, *, since: float | None = None, region: str = "") -> Mapping[str, Sighting]:
        """Machine -> what was seen, of everything the owner has, in all zones.

        `since`: no look that was begun before this steady time will do. `region`: the one that matters, "": all; raises
        ProvisionError(transient) if a zone of it cannot be reached, for that is not empty.
        """
        return self._of(tags.OWNER, owner, since, region)

    def of_token(self, token: str, *, since: float | None = None, region: str = "") -> Mapping[str, Sighting]:
        """The same of one launch whose owner is not known."""
        return self._of(tags.TOKEN, token, since, region)

    def of_launch(self, token: str, owner: str, *, since: float | None = None, region: str = "") -> list[Sighting]:
        """Of one launch; `owner` may be "", if it is not known."""
        seen = (
            self.of_owner(owner, since=since, region=region)
            if owner
            else self.of_token(token, since=since, region=region)
        )
        return [one for one in seen.values() if one.token == token]

    def _of(self, label: str, value: str, since: float | None, region: str) -> Mapping[str, Sighting]:
        """Return instances by one list of all zones, which all jobs share, or by lists of the region's zones."""
        everywhere = (label, value, "")
        if not region:
            return retry(
                lambda: self._cache.get(everywhere, since=since), timeout_s=PATIENCE_S, clock=self._clients.clock
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
        """`key`: a label, its value, and a region; "": all."""
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

    def _ask_zone(self, wanted: str, zone: str) -> list[Sighting]:
        from google.cloud import compute_v1

        request = compute_v1.ListInstancesRequest(
            project=self._clients.project, zone=zone, filter=wanted, max_results=500
        )
        return [sighting(one) for one in self._clients.instances.list(request, retry=None, timeout=READ_S)]


class Seen(NamedTuple):
    """What a list of all zones tells."""

    machines: Mapping[str, Sighting]
    unreachable: Mapping[str, str]
    """Zone -> why nothing is known of it."""

    def of(self, region: str) -> Mapping[str, Sighting]:
        """All machines. Raises ProvisionError(transient) if a zone of this region, "" for any, could not be reached: of
        the others nothing was asked."""
        for zone, why in self.unreachable.items():
            if region in {"", region_of(zone)}:
                message = f"look at the machines: {zone} cannot be reached: {why}"
                raise ProvisionError("transient", message, scope="zone", code=_UNREACHABLE)
        return self.machines


def seen_in(pages: Iterable[tuple[str, compute_v1.InstancesScopedList]]) -> Seen:
    """Of the pages of a list."""
    machines: dict[str, Sighting] = {}
    unreachable: dict[str, str] = {}
    for scope, found in pages:
        warning: Any = found.warning
        if warning.code == _UNREACHABLE:
            unreachable[last_part(scope)] = warning.message
        machines |= {one.machine: one for one in map(sighting, found.instances)}
    return Seen(machines, unreachable)


def look_at(clients: Clients, machine: str) -> Sighting | None:
    """At one machine, which no list may show yet; None: there is none. Raises ProvisionError."""
    zone, _, name = machine.partition("/")

    def ask() -> Sighting | None:
        with gone_is_fine():
            found = clients.instances.get(project=clients.project, zone=zone, instance=name, retry=None, timeout=READ_S)
            return sighting(found)
        return None

    return clients.ask(f"look at {name} in {zone}", ask)


def look_back(clients: Clients, node: str, machine: str) -> NodeState | None:
    """Why a machine that no list shows is gone; None: nothing says that it is. One call. Raises ProvisionError."""
    zone, _, name = machine.partition("/")
    return end_of(node, [one for one in operations.of_instances(clients, name, region_of(zone)) if one.zone == zone])


def will_return(clients: Clients, machine: str) -> bool:
    """Whether one that is down was stopped for its host, and not for good. One call. Raises ProvisionError."""
    zone, _, name = machine.partition("/")
    ends = [
        one.kind
        for one in operations.of_instances(clients, name, region_of(zone))
        if one.zone == zone and one.kind in _MAINTAINED | _FROM_WITHIN
    ]
    return bool(ends) and ends[-1] in _MAINTAINED


def end_of(node: str, done: list[Done]) -> NodeState | None:
    """By what was done to a machine, the oldest first, why it is gone; None: nothing of that ends a machine."""
    begun = max((at for at, one in enumerate(done) if one.kind == "insert"), default=-1)
    insert, since = done[begun] if begun >= 0 else None, done[begun + 1 :]
    taken = [one for one in since if one.kind in _TAKEN]
    if taken:
        return NodeState(node, "gone", f"Compute Engine took it back: {taken[-1].kind}", taken=True)
    ended = [one for one in since if one.kind == "delete"]
    if ended:
        return NodeState(node, "gone", f"deleted by {ended[-1].user or 'somebody unknown'}")
    if insert is None or insert.error is None:
        return None
    refused = None if insert.error.error_class in UNKNOWN else insert.error
    return NodeState(node, "gone", f"it never ran: {insert.error}", refused=refused)


def sighting(instance: compute_v1.Instance) -> Sighting:
    """From Compute Engine's answer."""
    return Sighting(
        zone=last_part(instance.zone),
        name=instance.name,
        status=instance.status,
        tags=from_labels(instance.labels),
        message=instance.status_message,
        restarts=instance.scheduling.automatic_restart,
        was_stopped=bool(instance.last_stop_timestamp),
    )
