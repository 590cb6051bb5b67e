"""Teardown of a launch: remove all resources under its token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base import ProvisionError, TerminateResult
from ...shared import tags
from .. import operations
from ..clients import READ_S, WRITE_S, Clients, ignore_not_found
from ..labels import instance_prefix, with_label
from ..listing import list_everywhere
from ..machine.request import request_id
from ..resources import instance_groups, network
from ..resources.instance_cache import InstanceCache
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

RETRY_TIMEOUT_S = 300.0
"""Timeout in seconds for the deletion of machines; large ones take minutes. The caller may then retry."""
_POLL_S = 3.0


@dataclass(frozen=True, slots=True)
class Teardown:
    """Teardown of one launch. Every step is idempotent."""

    clients: Clients
    sightings: InstanceCache
    token: str
    owner: str
    """Name of the launch's owner; "": unknown."""
    named: Collection[str] = ()
    """Known machines, which are deleted even if no list shows them yet."""
    region: str = ""
    """Region of the launch; "": unknown, which requires that all zones are reachable."""
    grouped: bool = True
    """False if it is known that the launch created no instance group."""

    def run(self) -> TerminateResult:
        """Remove all resources, and return when none of them bills any more. Raises ProvisionError; retry then."""
        clock = self.clients.clock
        begun = clock.monotonic()
        if self.grouped:
            instance_groups.end(self.clients, self.token, self.region, begun + RETRY_TIMEOUT_S)
        begun = since = clock.monotonic()
        hidden = set(self.named)
        has_started = bool(hidden)
        while left := self._end_machines(hidden, since, again=since > begun):
            hidden.clear()
            has_started = True
            if clock.monotonic() > begun + RETRY_TIMEOUT_S:
                names = ", ".join(sorted(left))
                message = f"{names} was ended {RETRY_TIMEOUT_S:.0f} s ago, and is not gone yet"
                raise ProvisionError("transient", message, scope="region", code="StillThere")
            since = clock.monotonic()
            clock.sleep(_POLL_S)
        at = clock.now()
        self._delete_disks()
        if self.grouped:
            instance_groups.remove(self.clients, "template", self.token, self.region)
            instance_groups.remove(self.clients, "placement policy", self.token, self.region)
        network.remove_rule(self.clients, self.token)
        return TerminateResult(has_started or self._was_started(), at)

    def _was_started(self) -> bool:
        """Return True if a machine was created under this token; it is deleted by now."""
        done = operations.of_instances(self.clients, f"{instance_prefix(self.token)}.*", self.region)
        return any(one.verb == "insert" and one.error is None for one in done)

    def _end_machines(self, hidden: Collection[str], since: float, *, again: bool) -> set[str]:
        """Delete all machines; return those that still exist, or that a call whose response was lost may still create.

        `hidden`: machines to delete even if no list shows them; `again`: machines may have been deleted in an earlier
        round.
        """
        listed = self.sightings.of_launch(self.token, self.owner, since=since, region=self.region)
        seen = {one.machine: one for one in listed}
        ending = {machine for machine, one in seen.items() if one.is_ending}
        if seen and len(ending) == len(seen) and not hidden:
            return set(seen)
        begun = operations.begun_by(
            operations.of_instances(self.clients, f"{instance_prefix(self.token)}.*", self.region)
        )
        left = set(seen) | {machine for machine, insert in begun.items() if not insert.finished}
        for machine in sorted({*seen, *hidden, *begun} - ending):
            # The request id shows a later launch with this token that the machine was not lost, but deleted with its
            # whole launch. A repeated deletion needs a new id, or Compute Engine would ignore it as a duplicate.
            call_id = None if again else ended_id(self.token, machine, begun[machine].name if machine in begun else "")
            if delete(self.clients, machine, call_id):
                left.add(machine)
        return left

    def _delete_disks(self) -> None:
        """Delete disks that were detached from a machine; the others were deleted with their machines."""
        from google.cloud import compute_v1

        clients, wanted = self.clients, with_label(tags.TOKEN, self.token)

        def everywhere() -> list[compute_v1.Disk]:
            request = compute_v1.AggregatedListDisksRequest(project=clients.project, filter=wanted, max_results=500)
            pages = clients.disks.aggregated_list(request, retry=None, timeout=READ_S)
            return [disk for _, scope in pages for disk in scope.disks]

        def in_zone(zone: str) -> list[compute_v1.Disk]:
            request = compute_v1.ListDisksRequest(project=clients.project, zone=zone, filter=wanted, max_results=500)
            return list(clients.disks.list(request, retry=None, timeout=READ_S))

        doing = f"look for disks of {self.token}"
        for disk in list_everywhere(clients, doing, everywhere, in_zone, self.region):
            if not disk.users:
                self._delete_disk(last_part(disk.zone), disk.name)

    def _delete_disk(self, zone: str, name: str) -> None:
        def start() -> None:
            with ignore_not_found():
                self.clients.disks.delete_unary(
                    project=self.clients.project, zone=zone, disk=name, retry=None, timeout=WRITE_S
                )

        self.clients.ask(f"delete the disk {name} in {zone}", start)


def ended_id(token: str, machine: str, insert: str) -> str:
    """Return the request id of the call that deletes a machine with its whole launch.

    `insert`: name of the operation that created the machine.
    """
    zone, _, name = machine.partition("/")
    return request_id(token, name, zone, "ended", insert)


def delete(clients: Clients, machine: str, call_id: str | None = None) -> bool:
    """Start deleting a machine with its disk. Return False if it does not exist. Raises ProvisionError."""
    from google.cloud import compute_v1

    zone, _, name = machine.partition("/")
    request = compute_v1.DeleteInstanceRequest(project=clients.project, zone=zone, instance=name)
    if call_id is not None:
        request.request_id = call_id

    def start() -> bool:
        with ignore_not_found():
            clients.instances.delete_unary(request, retry=None, timeout=WRITE_S)
            return True
        return False

    return clients.ask(f"delete {name} in {zone}", start)
