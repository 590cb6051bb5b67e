"""Teardown of a launch: find and delete all resources tagged with its token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base import ProvisionError, TerminateResult
from ...shared import tags
from ..clients import Clients
from ..errors import ignore_errors, translate_errors
from ..resources import network, scaling_groups
from ..resources.identity import remove_identity
from ..resources.instance_cache import InstanceCache, InstanceState, parse_instance

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import FilterTypeDef

RETRY_TIMEOUT_S = 300.0
"""Timeout in seconds for the end of machines; large ones take minutes. The caller then retries."""
_POLL_S = 3.0
_DENIED = "UnauthorizedOperation"
_UNKNOWN = "InvalidInstanceID.NotFound"
_UNKNOWN_OR_DENIED = frozenset({_DENIED, _UNKNOWN})
_STILL_USED = frozenset({"DependencyViolation", "InvalidGroup.InUse", "InvalidPlacementGroup.InUse"})


@dataclass(frozen=True, slots=True)
class Teardown:
    """Teardown of one launch in one region. All steps are idempotent."""

    clients: Clients
    sightings: InstanceCache
    region: str
    token: str
    owner: str
    """Name of the launch's owner; "": unknown."""
    named: Collection[str] = ()
    """Instance ids from the allocation: terminated even if listings do not show them yet."""

    def run(self) -> TerminateResult:
        """Delete all resources; return when nothing is billed any more. Raises ProvisionError; then retry."""
        ec2, clock = self.clients.ec2(self.region), self.clients.clock
        until = clock.monotonic() + RETRY_TIMEOUT_S
        with translate_errors(f"look for the launch in {self.region}", clock):
            group = network.find_group(ec2, self.token)
        hidden, since = set(self.named), clock.monotonic()
        has_started, at = group is not None and group.is_grouped, clock.now()
        while True:
            # Before the machines: the group would replace them.
            stands = group is not None and group.is_grouped and self._close(group)
            ran, left = self._end_machines(hidden, since)
            hidden.clear()
            has_started |= ran
            if stands or left:
                at = clock.now()
            if not stands and not left and (group is None or self._remove_rest(group, hidden)):
                return TerminateResult(has_started, at)
            if clock.monotonic() > until:
                names = ", ".join(sorted(left)) or network.name_of(self.token)
                message = f"{names} in {self.region} was ended {RETRY_TIMEOUT_S:.0f} s ago, and is not gone yet"
                raise ProvisionError("transient", message, scope="region", code="StillThere")
            since = clock.monotonic()
            clock.sleep(_POLL_S)

    def _end_machines(self, hidden: Collection[str], since: float) -> tuple[bool, set[str]]:
        """Terminate all machines of the launch, and those in `hidden` even if they are not listed.

        Return whether any machine, including terminated ones, may have run (EC2 does not bill a machine that it refused
        at its start), and the ids of those that have not ended yet.
        """
        seen = self._look(since)
        left = {one.instance: one for one in seen if not one.is_gone}
        alive = {one.instance for one in left.values() if one.state != "shutting-down"}
        unseen = set(hidden) - {one.instance for one in seen}
        for batch in (alive, *({instance} for instance in unseen)):
            if batch:
                terminate(self.clients, self.region, batch)
        return bool(unseen) or any(not one.was_refused for one in seen), set(left)

    def _close(self, group: network.Group) -> bool:
        return scaling_groups.close(self.clients, self.region, scaling_groups.group_name(group))

    def _look(self, since: float) -> list[InstanceState]:
        if self.owner:
            seen = self.sightings.of_owner(self.region, self.owner, since=since)
        else:
            seen = self.sightings.of_token(self.region, self.token, since=since)
        return [one for one in seen.values() if one.token == self.token]

    def _remove_rest(self, group: network.Group, hidden: set[str]) -> bool:
        """Delete the other resources when no machine is listed, the security group last.

        Return False if something is still attached to the security group; ids of attached machines are added to
        `hidden`.
        """
        ec2, clock = self.clients.ec2(self.region), self.clients.clock
        with translate_errors(f"remove what {self.token} made in {self.region}", clock):
            self._delete_volumes(ec2)
            if not group.shared_profile:
                remove_identity(self.clients.iam(self.region), self.token)
        try:
            with translate_errors(f"remove {network.name_of(self.token)} in {self.region}", clock):
                if group.is_grouped:
                    scaling_groups.remove_template(ec2, group)
                if group.has_placement:
                    network.remove_placement_group(ec2, self.token)
                network.remove_group(ec2, group)
        except ProvisionError as error:
            if error.code == _DENIED:  # EC2 answers the same for a deleted group
                with translate_errors(f"look for the launch in {self.region}", clock):
                    if network.find_group(ec2, self.token) is None:
                        return True
            if error.code not in _STILL_USED:
                raise
        else:
            return True
        with translate_errors(f"look for what uses {network.name_of(self.token)} in {self.region}", clock):
            hidden.update(network.free(ec2, group))
        return False

    def _delete_volumes(self, ec2: EC2Client) -> None:
        """Delete detached volumes; attached ones are deleted with their machines."""
        where: list[FilterTypeDef] = [
            {"Name": f"tag:{tags.TOKEN}", "Values": [self.token]},
            {"Name": "status", "Values": ["available"]},
        ]
        for page in ec2.get_paginator("describe_volumes").paginate(Filters=where):
            for volume in page["Volumes"]:
                with ignore_errors("InvalidVolume.NotFound"):
                    ec2.delete_volume(VolumeId=volume["VolumeId"])


def terminate(clients: Clients, region: str, instances: Collection[str]) -> set[str]:
    """Terminate instances; return those that EC2 does not know (any more, or yet). Raises ProvisionError.

    If EC2 does not know one of several instances it terminates none, so that they are then terminated one by one. If
    the policy allows the call by tag only, EC2 answers UnauthorizedOperation for unknown instances, which have no tags.
    """
    doing = f"end {', '.join(sorted(instances))} in {region}"
    try:
        with translate_errors(doing, clients.clock):
            clients.ec2(region).terminate_instances(InstanceIds=sorted(instances))
    except ProvisionError as error:
        if error.code not in _UNKNOWN_OR_DENIED:
            raise
        refusal = error
    else:
        return set()
    if len(instances) > 1:
        return set[str]().union(*(terminate(clients, region, [one]) for one in sorted(instances)))
    if refusal.code == _DENIED and _is_there(clients, region, instances):
        raise refusal
    return set(instances)


def _is_there(clients: Clients, region: str, instances: Collection[str]) -> bool:
    """Return whether EC2 lists any of these instances as not terminated."""
    with translate_errors(f"look for {', '.join(instances)} in {region}", clients.clock), ignore_errors(_UNKNOWN):
        found = clients.ec2(region).describe_instances(InstanceIds=list(instances))["Reservations"]
        return any(not parse_instance(one).is_gone for reservation in found for one in reservation.get("Instances", ()))
    return False
