"""Cached list of a launch's machines, shared by all callers within a short time, and detection of restarts."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...base import NodeState
from ...shared import tags
from ...shared.poll_cache import PollCache
from ..clients import Clients, Json, as_dicts, ignore_not_found
from ..names import group_name
from ..operations import get_machine, state_of

_EVERY_S = 60.0
"""Seconds between two queries of a machine's restarts: a third of the time after which a machine without heartbeats
counts as lost."""
_LASTS_S = 3_600.0
_AT_ONCE = 8

Machines = Mapping[str, "InstanceState"]
"""Machines by name."""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """State of a machine in the latest list."""

    name: str
    state: str
    """Its `provisioningState`, e.g. `Creating`."""
    tags: Mapping[str, str]
    zone: str | None

    @property
    def node(self) -> str:
        """Node name, as in NodeRequest; "": the tag was removed."""
        return self.tags.get(tags.NODE, "")

    @property
    def is_beginning(self) -> bool:
        return self.state == "Creating"

    @property
    def is_ending(self) -> bool:
        return self.state == "Deleting"

    @property
    def is_settled(self) -> bool:
        """True if it was created, has not failed and is not being deleted: the list does not show whether it runs."""
        return not (self.is_beginning or self.is_ending or self.has_failed)

    @property
    def has_failed(self) -> bool:
        """True if its creation or a later operation failed; only its instance view shows which."""
        return self.state in {"Failed", "Canceled"}

    def as_node(self, node: str, *, returns: bool = False) -> NodeState:
        """Return the node's state. A machine counts as running until it is deleted, because its disk bills until then.

        `returns`: Azure is restarting it.
        """
        detail = "it is being restarted" if returns else "" if self.state in {"Succeeded", "Updating"} else self.state
        return NodeState(node, "pending" if self.is_beginning else "running", detail, restarting=returns)


class InstanceCache:
    """Cache of launches' machines, shared by all jobs of a process."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache: PollCache[str, Machines] = PollCache(self._ask, clients.clock)

    def of_launch(self, token: str, *, since: float | None = None) -> Machines:
        """Return a launch's machines; {}: its group does not exist. Raises ProvisionError.

        `since`: monotonic time; a cached list that was requested earlier is not used.
        """
        return self._cache.get(group_name(token), since=since)

    def _ask(self, group: str) -> Machines:
        def ask() -> Machines:
            with ignore_not_found():
                found = as_dicts(self._clients.compute.virtual_machines.list(group))
                return {one.name: one for one in map(sighting, found)}
            return {}

        return self._clients.ask(f"look at the machines of {group}", ask)


class Restarts:
    """Cache of which machines Azure is restarting, after a redeployment to another host or a reboot. Thread-safe.

    Lists do not contain this, so each machine is queried once a minute. Azure's own restarts show in the power state,
    which is `starting` again; requested restarts show in the provisioning state as well. Source: Azure's documentation,
    "States and billing status of Azure Virtual Machines"; that a redeployment for maintenance shows like this is
    unverified.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], tuple[float, bool]] = {}
        """(group, machine) -> monotonic time and result of the last query."""

    def among(self, group: str, names: Collection[str]) -> frozenset[str]:
        """Return which of a group's machines are restarting, as of at most a minute ago. Raises ProvisionError."""
        now = self._clients.clock.monotonic()
        with self._lock:
            self._asked = {key: one for key, one in self._asked.items() if now - one[0] < _LASTS_S}
            known = {name: self._asked.get((group, name), (now - _EVERY_S, False)) for name in names}
            due = [name for name, (asked, _) in known.items() if now - asked >= _EVERY_S]
            self._asked |= {(group, name): (now, known[name][1]) for name in due}  # concurrent calls then skip them
        if due:
            with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-look") as pool:
                views = dict(zip(due, pool.map(lambda name: get_machine(self._clients, group, name), due), strict=True))
            said = {name: (now, view is not None and view.restarts) for name, view in views.items()}
            with self._lock:
                self._asked |= {(group, name): one for name, one in said.items()}
            known |= said
        return frozenset(name for name, (_, restarts) in known.items() if restarts)


def sighting(found: Json) -> InstanceState:
    """Parse a machine from the API's response."""
    return InstanceState(
        name=str(found["name"]),
        state=state_of(found),
        tags=dict(found.get("tags") or {}),
        zone=next((str(zone) for zone in found.get("zones") or ()), None),
    )
