"""The target `aws`: every node is an EC2 instance. See docs/guides/aws.md.

What a launch makes, in this order: a security group, a role with its instance profile, a placement group where the
machines have Elastic Fabric Adapters, the instances with their disks and interfaces; or, of a grouped launch, a launch
template and an Auto Scaling group (group_launch.py). The security group goes last. All of it is
tagged with owner, job, attempt and token, and named by the token where it has a name. Nothing is remembered here but
what was seen a moment ago: any process may call any verb at any time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from ...jobspecs.plan import Offer
from ..base import Allocation, Ended, LaunchRequest, NodeState, Owner, ProvisionError
from ..shared import allocations
from ..shared.accounts import Accounts
from ..shared.allocations import Found
from ..shared.api_calls import last_of, renewing
from ..shared.shared_provisioner import PerSettings
from ..stacks import job_groups
from .catalog import prices
from .catalog.quotas import Quotas
from .catalog.region_cache import Answers
from .clients import Clients
from .console import console
from .errors import translate_errors
from .lifecycle.group_launch import GroupLaunch, Groups
from .lifecycle.launching import Launch
from .lifecycle.teardown import Ending, terminate
from .machine.images import Images
from .machine.request import check_request
from .resources import network
from .resources.instance_cache import Sighting, Sightings
from .resources.profile_propagation import Profiles

if TYPE_CHECKING:
    from boto3.session import Session

    from ..shared.clock import Clock

log = logging.getLogger("cloudgpu.provisioners.aws")

TARGET = "aws"
ACCOUNTS = Accounts(
    "AWS account", "set AWS_PROFILE, or log in, as a user of that account; nothing is changed until then"
)

UNSEEN_S = 300.0
"""A machine that was just launched may be missing from listings for so long; then it is gone."""
_DENIED = frozenset({"UnauthorizedOperation", "AccessDenied"})


class AwsProvisioner:
    """EC2 instances. One for all jobs of a process (shared()); any thread may call any verb."""

    def __init__(self, session: Session | None = None, clock: Clock | None = None) -> None:
        self._clients = Clients(session, clock)
        self._images = Images(self._clients)
        self._sightings = Sightings(self._clients)
        self._answers = Answers(self._clients)
        self._quotas = Quotas(self._clients, self._sightings)
        self._profiles = Profiles(self._clients.clock)
        self._groups = Groups(self._clients, self._sightings, self._answers)

    @renewing
    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the machines that are not there yet, all or none. Idempotent: see Launch.

        Constant in calls: two where all are there, else about a dozen and one for each machine.
        """
        ACCOUNTS.check(request.account, self._own)
        check_request(request)
        self._clients.check_region(request.region)
        known = (self._clients, self._images, self._sightings, self._answers, self._quotas, self._profiles)
        account = self._clients.account
        if request.grouped:
            return dataclasses.replace(GroupLaunch(*known, request).allocate(), account=account)
        launch = Launch(*known, request)
        launch.run()
        return allocations.of_launch(TARGET, launch, account, self._clients.clock.now())

    @renewing
    def observe(self, allocation: Allocation) -> list[NodeState]:
        """EC2's states, at most a few seconds old; one call a region for all who ask within that time.

        A machine that no listing shows is `pending` while it is young, as listings lag; later it is gone: EC2 shows
        those that have ended for about an hour.
        """
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return self._groups.observe(allocation)
        _, seen = self._seen(allocation)
        return [self._state(allocation, node, one, seen) for node, one in allocation.machines.items()]

    @renewing
    def terminate(self, allocation: Allocation) -> Ended:
        """Remove everything under the token, also what the allocation does not name. Raises ProvisionError(transient)
        if machines are still ending after some minutes: call again.
        """
        self._check(allocation)
        self._profiles.forget_launch(allocation.token)  # another launch with this token makes it again
        region, owner = allocation.region, allocation.owner
        is_grouped = job_groups.is_grouped(allocation)
        machines = frozenset(allocation.machines.values() if region and not is_grouped else ())
        if is_grouped:
            job_groups.dismiss(allocation)
        return last_of(
            Ending(self._clients, self._sightings, where, allocation.token, owner, machines).run()
            for where in ([region] if region else self._enabled_regions())
        )

    @renewing
    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """A call for each that is not seen to be gone: EC2 ends none if it does not know one of them any more. A group
        ends its own."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return
        region, seen = self._seen(allocation)
        for instance in (allocation.machines[node] for node in nodes):
            if instance not in seen or not seen[instance].is_gone:
                terminate(self._clients, region, [instance])

    @renewing
    def find(self, owner: Owner) -> list[Allocation]:
        """Every launch of which anything is left, in all regions of the account: two calls a region.

        Regions that are not enabled are left out, and so are those where the account's administrators deny everything
        (with a warning). Any other region that does not answer makes it fail: what is there is then not known.
        """
        regions = self._enabled_regions()
        return allocations.in_regions(regions, lambda region: self._find_in(region, owner), _is_denied)

    @renewing
    def explain(self, allocation: Allocation, node: str) -> str:
        """What the instance's console ends with: one call. Nothing of a group: which machine it was is not kept."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return ""
        return console(self._clients, allocation.region, allocation.machines[node])

    @renewing
    def account(self) -> str:
        """The AWS account's id: one call for as long as the same credentials are used."""
        return self._own()

    @renewing
    def check_account(self, account: str) -> None:
        """See Provisioner."""
        ACCOUNTS.check(account, self._own)

    def price(self, offer: Offer) -> Decimal | None:
        """The Spot price of the last minute in the offer's zone; list prices are as planned. Two calls at most, shared
        by all jobs."""
        if offer.market != "spot":
            return None
        try:
            found = self._answers.spot_prices(offer.region, {role.machine_type for role in offer.roles})
            return prices.offer_price(found, offer)
        except ProvisionError as error:
            log.warning("the price of %s is taken from the plan: %s", offer.place, error)
            return None

    # -- helpers

    def _own(self) -> str:
        """Return the account of the credentials."""
        return self._clients.account

    def _check(self, allocation: Allocation) -> None:
        """Refuse the credentials of another account than the allocation's."""
        ACCOUNTS.check(allocation.account, self._own)

    def _seen(self, allocation: Allocation) -> tuple[str, Mapping[str, Sighting]]:
        """The allocation's region, and what was seen there of its owner's machines."""
        region, owner = allocation.region, allocation.owner
        if not region:
            message = f"the region of launch {allocation.token} is not known: it can be ended, not watched"
            raise ProvisionError("invalid", message, scope="cloud")
        if owner:
            return region, self._sightings.of_owner(region, owner)
        return region, self._sightings.of_token(region, allocation.token)

    def _state(self, allocation: Allocation, node: str, instance: str, seen: Mapping[str, Sighting]) -> NodeState:
        if instance in seen:
            return seen[instance].as_node(node, seen.values())
        if allocation.age_s(node, self._clients.clock.now()) < UNSEEN_S:
            return NodeState(node, "pending", "EC2 does not show it yet")
        return NodeState(node, "gone", "EC2 does not know it any more")

    def _enabled_regions(self) -> list[str]:
        return sorted(region for region, enabled in self._clients.regions.items() if enabled)

    def _find_in(self, region: str, owner: Owner) -> list[Allocation]:
        clock = self._clients.clock
        begun = clock.monotonic()
        with translate_errors(f"look for launches in {region}", clock):
            groups = network.groups_of(self._clients.ec2(region), owner.name)
        seen = self._sightings.of_owner(region, owner.name, since=begun).values()
        machines: dict[str, dict[str, str]] = {}
        for one in seen:
            machines.setdefault(one.token, {}).update({one.node: one.instance} if one.node else {})
        launches: dict[str, Mapping[str, str]] = {group.token: group.tags for group in groups}
        launches |= {one.token: one.tags for one in seen if not one.is_gone}
        return [
            allocations.of_found(TARGET, owner, Found(token, values, machines.get(token, {}), region))
            for token, values in launches.items()
            if token
        ]


def _is_denied(error: ProvisionError) -> bool:
    return error.code in _DENIED


shared = PerSettings(AwsProvisioner, "AWS_")
"""The one of this process, so that its jobs share what was seen; another once the AWS settings are others."""
