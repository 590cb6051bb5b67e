"""What is there of a launch: the machines of its group, in one list for all who ask within a short time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .. import tags
from ..base import NodeState
from ..sharing import Looks
from .clients import Clients, Json, gone_is_fine, plain
from .names import group_name
from .operations import state_of

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
    def has_failed(self) -> bool:
        """It was not made as it should; or it was, and something else has failed since: its own view tells."""
        return self.state in {"Failed", "Canceled"}

    def as_node(self, node: str) -> NodeState:
        """What it means for a node. Until it is gone its disk is there, and bills."""
        detail = "" if self.state in {"Succeeded", "Updating"} else self.state
        return NodeState(node, "pending" if self.is_beginning else "running", detail)


class Sightings:
    """Looks that are shared: whoever asks while another asks gets that one's answer, if it is fresh enough."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._looks: Looks[str, Machines] = Looks(self._ask, clients.clock)

    def of_launch(self, token: str, *, since: float | None = None) -> Machines:
        """`since`: no look that was begun before this steady time will do. {}: the group is gone. Raises
        ProvisionError."""
        return self._looks.at(group_name(token), since=since)

    def _ask(self, group: str) -> Machines:
        def ask() -> Machines:
            with gone_is_fine():
                found = plain(self._clients.compute.virtual_machines.list(group))
                return {one.name: one for one in map(sighting, found)}
            return {}

        return self._clients.ask(f"look at the machines of {group}", ask)


def sighting(found: Json) -> Sighting:
    """From Azure's answer."""
    return Sighting(
        name=str(found["name"]),
        state=state_of(found),
        tags=dict(found.get("tags") or {}),
        zone=next((str(zone) for zone in found.get("zones") or ()), None),
    )
