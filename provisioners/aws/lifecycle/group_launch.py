"""Launch of a dedicated Auto Scaling group (LaunchRequest.grouped). See docs/guides/recover.md.

Resources are created in this order: the security group, by whose tags launches are found; a placement group if the
machines have Elastic Fabric Adapters; the launch template; the Auto Scaling group, which starts the machines and
replaces lost ones. Template and group have the same settings as those of the component GpuFleet (infra/aws/fleet.py),
from the same functions (template.py). The network and the machines' role belong to the infra stack.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....jobspecs.fleets import FleetSpec
from ...base import Allocation, NodeState, ProvisionError
from ...shared import tags
from ...shared.api_calls import retry
from ...shared.poll_cache import PollCache
from ...stacks import job_groups
from ...stacks.job_groups import GroupState, Prepared
from ..catalog.region_cache import RegionCache
from ..clients import Clients
from ..errors import translate_errors
from ..machine.instance_spec import disk_gib
from ..machine.template import TemplateResources, buying, check_fleet, group, group_tags, suspended, template, wants_efa
from ..resources import network, scaling_groups
from ..resources.instance_cache import InstanceCache
from ..resources.network import tag_list
from .launching import RETRY_TIMEOUT_S, Launch

UNSEEN_S = 300.0
"""Seconds for which a new group may be missing from listings; after that a missing group is gone."""


@dataclass(slots=True)
class GroupLaunch(Launch):
    """Launch of one grouped request. Call allocate() only once."""

    def allocate(self) -> Allocation:
        """Create the group, or find it, and return its allocation. Raises ProvisionError; cleans up as Launch.run()
        does."""
        request, region = self.request, self.request.region
        prepared = job_groups.prepare(request, "aws")
        self.stack = prepared.infrastructure
        with translate_errors(f"look for the launch in {region}", self.clients.clock):
            self.group = network.find_group(self.clients.ec2(region), request.token)
        self.has_created = self.group is not None
        there = None if self.group is None else scaling_groups.find_scaling_group(self.clients, region, self._name)
        if there is None:
            self._make_or_undo(prepared)
        elif there.is_going:
            raise ProvisionError("transient", f"{there.name} is being deleted", scope="region", code="Deleting")
        elif not set(suspended(prepared.fleet)) <= there.suspended:
            self._suspend(prepared)
        made = job_groups.allocation(request, "aws", self._name, prepared.fleet_dir)
        return dataclasses.replace(made, launched_at=dict.fromkeys(made.machines, self.clients.clock.now()))

    @property
    def _name(self) -> str:
        if self.group is None:
            raise ProvisionError("transient", "the launch has no security group yet", scope="region")
        return scaling_groups.group_name(self.group)

    def _make_or_undo(self, prepared: Prepared) -> None:
        try:
            self._make_group(prepared)
            self._suspend(prepared)
        except ProvisionError as error:
            error.may_have_created |= self.has_created
            self._forget(error)
            if error.is_final:
                self._undo()
            raise

    def _suspend(self, prepared: Prepared) -> None:
        scaling_groups.suspend(self.clients, self.request.region, self._name, suspended(prepared.fleet))

    def _make_group(self, prepared: Prepared) -> None:
        request, fleet = self.request, prepared.fleet
        found, reservations = self._places(request.nodes)
        subnets = self._near(found) if wants_efa(fleet) else found
        fleet = fleet.model_copy(update={"zones": tuple(subnet.zone for subnet in subnets)})
        check_fleet(fleet)
        self.quotas.check(request, [fleet.machine_type] * fleet.size)
        image = self.images.find(request.region, fleet.machine_type)
        reservation = reservations.get(fleet.machine_type)
        if reservation is not None and reservation.machines_end is not None:
            job_groups.expire_by(prepared, request, reservation.machines_end)
        labels = {**tags.launch_tags(request), tags.FLEET: fleet.name}

        def make() -> None:
            profile, placement = self._make(subnets[0].vpc, placed=wants_efa(fleet))
            around = TemplateResources(
                ami=image.ami,
                root_device=image.root_device,
                disk_gib=disk_gib(fleet.disk_gb, image.min_gb),
                profile_arn=profile,
                group=self.group.group if self.group else "",
                public=any(subnet.public for subnet in subnets),
                user_data=base64.b64encode(prepared.boot.encode()).decode(),
                tags=labels,
                placement_group=placement,
                reservation=reservation,
            )
            self._make_standing(fleet, around, subnets)

        self.has_created = True
        try:
            retry(make, timeout_s=RETRY_TIMEOUT_S, clock=self.clients.clock)
        except ProvisionError as error:
            self._check_role(error)
            raise

    def _near(self, subnets: list[network.Subnet]) -> list[network.Subnet]:
        """Return the subnet of one zone: Elastic Fabric Adapters do not work across zones. Each attempt takes the next
        zone."""
        return [subnets[(self.request.attempt - 1) % len(subnets)]]

    def _make_standing(self, fleet: FleetSpec, around: TemplateResources, subnets: list[network.Subnet]) -> None:
        """Create the template and the group. Idempotent; callers retry, since AWS is eventually consistent."""
        region, name = self.request.region, self._name
        with translate_errors(f"make {name} in {region}", self.clients.clock):
            made = scaling_groups.make_template(
                self.clients.ec2(region), name, template(fleet, around), tag_list({"Name": fleet.name, **around.tags})
            )
        wanted = {
            "AutoScalingGroupName": name,
            "MaxSize": fleet.size,
            "DesiredCapacity": fleet.size,
            "VPCZoneIdentifier": ",".join(subnet.subnet for subnet in subnets),
            "Tags": group_tags(fleet, around.tags, around.profile_arn),
            **group(fleet),
            **buying(fleet, made, scaling_groups.VERSION),
        }
        scaling_groups.make_scaling_group(self.clients, region, wanted)


class GroupObserver:
    """Observer of dedicated groups, with a cache shared by all jobs."""

    def __init__(self, clients: Clients, sightings: InstanceCache, answers: RegionCache) -> None:
        self._clients, self._sightings, self._answers = clients, sightings, answers
        self._cache: PollCache[tuple[str, str], Mapping[str, scaling_groups.ScalingGroup]] = PollCache(
            self._ask, clients.clock
        )

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return the states of an allocation's nodes. Raises ProvisionError.

        Jobs share two cached calls for each region; a group that lacks machines takes one more."""
        return job_groups.states(allocation, self._state(allocation))

    def _state(self, allocation: Allocation) -> GroupState:
        region, owner = allocation.region, allocation.owner
        seen = self._cache.get((region, owner)).get(allocation.details[job_groups.GROUP])
        if seen is None:
            now = self._clients.clock.now()
            is_young = any(allocation.age_s(node, now) < UNSEEN_S for node in allocation.machines)
            return GroupState(exists=is_young, machines=0)
        there = self._sightings.of_owner(region, owner).values()
        machines = sum(one.token == allocation.token and not one.is_gone for one in there)
        lacks = seen.machines < seen.wanted and not seen.is_going
        trouble = self._trouble(region, seen) if lacks else None
        return GroupState(exists=True, machines=machines, launch_error=trouble, size=seen.wanted)

    def _trouble(self, region: str, seen: scaling_groups.ScalingGroup) -> ProvisionError | None:
        refusal = scaling_groups.trouble(self._clients, region, seen)
        if refusal is not None and refusal.hints:  # translate AZ names to AZ ids, which offers use
            ids = self._answers.zone_ids(region)
            refusal.hints = tuple(ids[name] for name in refusal.hints if name in ids)
        return refusal

    def _ask(self, where: tuple[str, str]) -> Mapping[str, scaling_groups.ScalingGroup]:
        region, owner = where
        filters: list[Any] = [{"Name": f"tag:{tags.OWNER}", "Values": [owner]}]
        with translate_errors(f"look at the groups in {region}", self._clients.clock):
            pages = (
                self._clients.autoscaling(region)
                .get_paginator("describe_auto_scaling_groups")
                .paginate(Filters=filters, PaginationConfig={"PageSize": 100})
            )
            found = [scaling_groups.seen(one) for page in pages for one in page["AutoScalingGroups"]]
        return {one.name: one for one in found}
