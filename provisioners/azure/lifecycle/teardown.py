"""The end of a launch: its group is deleted with all that is in it, whether anybody remembers it or not."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from ...base import Ended, ProvisionError
from .. import operations
from ..clients import Clients
from ..names import group_name, node_name
from ..resources import network
from ..resources.identity import shut_out
from ..resources.instance_cache import Sightings
from ..resources.resource_groups import Group, find_group, remove_group

log = logging.getLogger("cloudgpu.provisioners.azure")

PATIENCE_S = 420.0
"""So long a group is waited for to be deleted: it takes minutes. Whoever wants it gone then asks again."""
_POLL_S = 3.0


@dataclass(frozen=True, slots=True)
class Ending:
    """What is to end. Every step may be repeated; nothing is done for what is gone."""

    clients: Clients
    sightings: Sightings
    token: str

    def run(self) -> Ended:
        """Remove all of it; returns when nothing bills any more. Raises ProvisionError, and may then be run again."""
        has_started = self._has_machines()
        if not self.begin():
            return Ended(has_started)
        clock, name = self.clients.clock, group_name(self.token)
        until = clock.monotonic() + PATIENCE_S
        while (group := find_group(self.clients, self.token)) is not None:
            if not group.is_ending:  # something has kept Azure from it: it is told again
                remove_group(self.clients, self.token)
            if clock.monotonic() > until:
                message = f"the resource group {name} was deleted {PATIENCE_S:.0f} s ago, and is not gone yet"
                raise ProvisionError("transient", message, scope="region", code="StillThere")
            clock.sleep(_POLL_S)
        return Ended(has_started)

    def _has_machines(self) -> bool:
        """Return whether any machine was made. The group's tags name nodes whose machines were asked for: one whose
        interface is there was never made, for they go together."""
        group = find_group(self.clients, self.token)
        if group is None:
            return False
        if self.sightings.of_launch(self.token, since=self.clients.clock.monotonic()):
            return True
        if not group.started or group.is_ending:  # its interfaces may have gone by now
            return bool(group.started)
        return not network.interfaces_of(self.clients, group.name).issuperset(map(node_name, group.started))

    def begin(self) -> bool:
        """Have it removed; does not wait. False: nothing is there. Raises ProvisionError."""
        group = find_group(self.clients, self.token)
        if group is None:
            return False
        if group.is_ending:
            return True
        try:
            # By the group's tags, so before the group.
            shut_out(self.clients, group)
        except ProvisionError:
            self._end_machines(group)
            raise
        return remove_group(self.clients, self.token)

    def _end_machines(self, group: Group) -> None:
        """What bills must not wait for what does not."""
        try:
            for name in self.sightings.of_launch(self.token, since=self.clients.clock.monotonic()):
                delete_machine(self.clients, group.name, name)
        except ProvisionError as error:
            log.warning("%s: %s", group.name, error)


def delete_machine(clients: Clients, group: str, name: str, *, wait: bool = False) -> None:
    """Have a machine deleted, with its disk, interface and address; nothing happens if there is none. Raises
    ProvisionError."""
    machines = clients.compute.virtual_machines
    begin = partial(machines.begin_delete, group, name, force_deletion=True)
    look = partial(machines.get, group, name) if wait else None
    operations.delete(clients, f"delete {name} in {group}", begin, look)
