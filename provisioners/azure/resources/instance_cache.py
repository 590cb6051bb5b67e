"""What is there of a launch: the machines of its group, in one list for all who ask within a short time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...base import NodeState
from ...shared import tags
from ...shared.poll_cache import PollCache
from ..clients import Clients, Json, gone_is_fine, plain
from ..names import group_name
from ..operations import look_at, state_of

_EVERY_S = 60.0
"""So often a machine is asked whether it is being restarted: three times within the time after which a silent one is
given up."""
_LASTS_S = 3_600.0
_AT_ONCE = 8

Machines = Mapping[str, "Sighting"]
"""By name."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A machine as it was last seen."""

    name: str
    state: str
    """Its `provisioningState`, e.g. `Creating`."""
    tags: Mapping[str, str]
    zone: str | None

    @property
    def node(self) -> str:
        """As in NodeRequest; "" if somebody has removed the tag."""
        return self.tags.get(tags.NODE, "")

    @property
    def is_beginning(self) -> bool:
        return self.state == "Creating"

    @property
    def is_ending(self) -> bool:
        return self.state == "Deleting"

    @property
    def is_settled(self) -> bool:
        """It was made, and stays: as far as a list tells, it runs."""
        return not (self.is_beginning or self.is_ending or self.has_failed)

    @property
    def has_failed(self) -> bool:
        """It was not made as it should; or it was, and something else has failed since: its own view tells."""
        return self.state in {"Failed", "Canceled"}

    def as_node(self, node: str, *, returns: bool = False) -> NodeState:
        """What it means for a node. Until it is gone its disk is there, and bills. `returns`: Azure starts it again."""
        detail = "it is being restarted" if returns else "" if self.state in {"Succeeded", "Updating"} else self.state
        return NodeState(node, "pending" if self.is_beginning else "running", detail, returns=returns)


class Sightings:
    """Cache of the machines that lists show, shared by all jobs of a process."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache: PollCache[str, Machines] = PollCache(self._ask, clients.clock)

    def of_launch(self, token: str, *, since: float | None = None) -> Machines:
        """`since`: no look that was begun before this steady time will do. {}: the group is gone. Raises
        ProvisionError."""
        return self._cache.get(group_name(token), since=since)

    def _ask(self, group: str) -> Machines:
        def ask() -> Machines:
            with gone_is_fine():
                found = plain(self._clients.compute.virtual_machines.list(group))
                return {one.name: one for one in map(sighting, found)}
            return {}

        return self._clients.ask(f"look at the machines of {group}", ask)


class Restarts:
    """Which machines Azure is starting again, after a redeployment to another host or a reboot. Of any thread.

    No list tells it: each machine is asked, once a minute. Azure's own restarts are seen by the machine's power, which
    is `starting` again, those that somebody wants by its state as well. Source: Azure's documentation, "States and
    billing status of Azure Virtual Machines"; that a redeployment for maintenance shows so is unverified.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], tuple[float, bool]] = {}
        """(group, machine) -> steady time of the last question, and what was said."""

    def among(self, group: str, names: Collection[str]) -> frozenset[str]:
        """Those of a group's machines that are being restarted, as of at most a minute ago. Raises ProvisionError."""
        now = self._clients.clock.monotonic()
        with self._lock:
            self._asked = {key: one for key, one in self._asked.items() if now - one[0] < _LASTS_S}
            known = {name: self._asked.get((group, name), (now - _EVERY_S, False)) for name in names}
            due = [name for name, (asked, _) in known.items() if now - asked >= _EVERY_S]
            self._asked |= {(group, name): (now, known[name][1]) for name in due}  # nobody else asks meanwhile
        if due:
            with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-look") as pool:
                views = dict(zip(due, pool.map(lambda name: look_at(self._clients, group, name), due), strict=True))
            said = {name: (now, view is not None and view.restarts) for name, view in views.items()}
            with self._lock:
                self._asked |= {(group, name): one for name, one in said.items()}
            known |= said
        return frozenset(name for name, (_, restarts) in known.items() if restarts)


def sighting(found: Json) -> Sighting:
    """From Azure's answer."""
    return Sighting(
        name=str(found["name"]),
        state=state_of(found),
        tags=dict(found.get("tags") or {}),
        zone=next((str(zone) for zone in found.get("zones") or ()), None),
    )
