"""Teardown of a launch: delete its resource group with all its contents."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from ...base import ProvisionError, TerminateResult
from .. import operations
from ..clients import Clients
from ..names import group_name, node_name
from ..resources import network
from ..resources.identity import remove_role_assignments
from ..resources.instance_cache import InstanceCache
from ..resources.resource_groups import Group, find_group, remove_group

log = logging.getLogger("cloudgpu.provisioners.azure")

RETRY_TIMEOUT_S = 420.0
"""Timeout in seconds for the deletion of a group, which takes minutes; the caller may then retry."""
_POLL_S = 3.0


@dataclass(frozen=True, slots=True)
class Teardown:
    """Teardown of one launch. Every step is idempotent."""

    clients: Clients
    sightings: InstanceCache
    token: str

    def run(self) -> TerminateResult:
        """Remove all resources, and return when none of them bills any more. Raises ProvisionError; retry then."""
        has_started = self._has_machines()
        if not self.begin():
            return TerminateResult(has_started)
        clock, name = self.clients.clock, group_name(self.token)
        until = clock.monotonic() + RETRY_TIMEOUT_S
        while (group := find_group(self.clients, self.token)) is not None:
            if not group.is_ending:  # the deletion failed: retry it
                remove_group(self.clients, self.token)
            if clock.monotonic() > until:
                message = f"the resource group {name} was deleted {RETRY_TIMEOUT_S:.0f} s ago, and is not gone yet"
                raise ProvisionError("transient", message, scope="region", code="StillThere")
            clock.sleep(_POLL_S)
        return TerminateResult(has_started)

    def _has_machines(self) -> bool:
        """Return True if any machine was created.

        The group's tags name the nodes whose machines were requested. A machine whose interface still exists was never
        created, since they are deleted together.
        """
        group = find_group(self.clients, self.token)
        if group is None:
            return False
        if self.sightings.of_launch(self.token, since=self.clients.clock.monotonic()):
            return True
        if not group.started or group.is_ending:  # its interfaces may be deleted already
            return bool(group.started)
        return not network.interfaces_of(self.clients, group.name).issuperset(map(node_name, group.started))

    def begin(self) -> bool:
        """Start the removal without waiting. Return False if nothing exists. Raises ProvisionError."""
        group = find_group(self.clients, self.token)
        if group is None:
            return False
        if group.is_ending:
            return True
        try:
            # Before the group is deleted: its tags name the role assignments.
            remove_role_assignments(self.clients, group)
        except ProvisionError:
            self._end_machines(group)
            raise
        return remove_group(self.clients, self.token)

    def _end_machines(self, group: Group) -> None:
        """Delete the machines although role assignments cannot be removed: machines cost money."""
        try:
            for name in self.sightings.of_launch(self.token, since=self.clients.clock.monotonic()):
                delete_machine(self.clients, group.name, name)
        except ProvisionError as error:
            log.warning("%s: %s", group.name, error)


def delete_machine(clients: Clients, group: str, name: str, *, wait: bool = False) -> None:
    """Delete a machine with its disk, interface and address; no-op if it does not exist. Raises ProvisionError."""
    machines = clients.compute.virtual_machines
    begin = partial(machines.begin_delete, group, name, force_deletion=True)
    look = partial(machines.get, group, name) if wait else None
    operations.delete(clients, f"delete {name} in {group}", begin, look)
