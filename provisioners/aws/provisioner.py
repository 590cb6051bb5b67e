"""Provisioner of the target `aws`: every node is an EC2 instance. See docs/guides/aws.md.

A launch creates, in this order: a security group, a role with an instance profile, a placement group if the machines
have Elastic Fabric Adapters, and the instances with their disks and interfaces; a grouped launch creates a launch
template and an Auto Scaling group instead of instances (group_launch.py). The security group is deleted last. All
resources are tagged with owner, job, attempt and token, and named by the token if they have names. The process keeps
only caches: any process may call any method at any time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from ...jobspecs.plan import Offer
from ..base import Allocation, LaunchRequest, NodeState, Owner, ProvisionError, TerminateResult
from ..shared import allocations
from ..shared.accounts import Accounts
from ..shared.allocations import Found
from ..shared.api_calls import merge_ended, retry_after_login
from ..shared.shared_provisioner import CachedByEnvironment
from ..stacks import job_groups
from .catalog import prices
from .catalog.quotas import Quotas
from .catalog.region_cache import RegionCache
from .clients import Clients
from .console import console
from .errors import translate_errors
from .lifecycle.group_launch import GroupLaunch, GroupObserver
from .lifecycle.launching import Launch
from .lifecycle.teardown import Teardown, terminate
from .machine.images import Images
from .machine.request import check_request
from .resources import network
from .resources.instance_cache import InstanceCache, InstanceState
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
"""Seconds for which a new machine may be missing from listings; after that a missing machine is gone."""
_DENIED = frozenset({"UnauthorizedOperation", "AccessDenied"})


class AwsProvisioner:
    """Provisioner of EC2 instances, shared by all jobs of a process (shared()). Thread-safe."""

    def __init__(self, session: Session | None = None, clock: Clock | None = None) -> None:
        self._clients = Clients(session, clock)
        self._images = Images(self._clients)
        self._sightings = InstanceCache(self._clients)
        self._answers = RegionCache(self._clients)
        self._quotas = Quotas(self._clients, self._sightings)
        self._profiles = Profiles(self._clients.clock)
        self._groups = GroupObserver(self._clients, self._sightings, self._answers)

    @retry_after_login
    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the missing machines, all or none. Idempotent, see Launch. Raises ProvisionError.

        Calls AWS twice if all machines exist, otherwise about a dozen times and once for each machine.
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

    @retry_after_login
    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return EC2's states, at most a few seconds old: jobs share one cached call for each region.

        A machine that is not listed is `pending` for UNSEEN_S after its launch, since listings lag, and then gone: EC2
        lists terminated machines for about an hour.
        """
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return self._groups.observe(allocation)
        _, seen = self._seen(allocation)
        return [self._state(allocation, node, one, seen) for node, one in allocation.machines.items()]

    @retry_after_login
    def terminate(self, allocation: Allocation) -> TerminateResult:
        """Delete everything tagged with the token, even if the allocation does not name it.

        Raises ProvisionError(transient) if machines have not ended after some minutes: retry then.
        """
        self._check(allocation)
        self._profiles.forget_launch(allocation.token)  # a launch with this token must create it again
        region, owner = allocation.region, allocation.owner
        is_grouped = job_groups.is_grouped(allocation)
        machines = frozenset(allocation.machines.values() if region and not is_grouped else ())
        if is_grouped:
            job_groups.end_order(allocation)
        return merge_ended(
            Teardown(self._clients, self._sightings, where, allocation.token, owner, machines).run()
            for where in ([region] if region else self._enabled_regions())
        )

    @retry_after_login
    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """Terminate these nodes' machines, with one call each, since EC2 terminates none if it does not know one of
        several.

        No-op for a dedicated group, which terminates lost machines itself."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return
        region, seen = self._seen(allocation)
        for instance in (allocation.machines[node] for node in nodes):
            if instance not in seen or not seen[instance].is_gone:
                terminate(self._clients, region, [instance])

    @retry_after_login
    def find(self, owner: Owner) -> list[Allocation]:
        """Return every launch with remaining resources, in all regions of the account. Two calls for each region.

        Skips regions that are not enabled, and, with a warning, regions that a policy denies. Raises ProvisionError if
        the query of another region fails, since its launches would be missing.
        """
        regions = self._enabled_regions()
        return allocations.in_regions(regions, lambda region: self._find_in(region, owner), _is_denied)

    @retry_after_login
    def explain(self, allocation: Allocation, node: str) -> str:
        """Return the last lines of the console of the node's instance (one call).

        Returns "" for a dedicated group, since the allocation does not record its machines."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return ""
        return console(self._clients, allocation.region, allocation.machines[node])

    @retry_after_login
    def account(self) -> str:
        """Return the AWS account's id, cached while the same credentials are used."""
        return self._own()

    @retry_after_login
    def check_account(self, account: str) -> None:
        """See Provisioner."""
        ACCOUNTS.check(account, self._own)

    def price(self, offer: Offer) -> Decimal | None:
        """Return the offer's price in US dollars an hour at current Spot prices, at most a minute old.

        None: another market, or a price is unknown.

        At most two calls, shared by all jobs."""
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
        """Return the id of the AWS account that the credentials belong to. Raises ProvisionError."""
        return self._clients.account

    def _check(self, allocation: Allocation) -> None:
        """Raise ProvisionError if the credentials are of another account than the allocation."""
        ACCOUNTS.check(allocation.account, self._own)

    def _seen(self, allocation: Allocation) -> tuple[str, Mapping[str, InstanceState]]:
        """Return the allocation's region, and the cached listing of its owner's machines there. Raises
        ProvisionError."""
        region, owner = allocation.region, allocation.owner
        if not region:
            message = f"the region of launch {allocation.token} is not known: it can be ended, not watched"
            raise ProvisionError("invalid", message, scope="cloud")
        if owner:
            return region, self._sightings.of_owner(region, owner)
        return region, self._sightings.of_token(region, allocation.token)

    def _state(self, allocation: Allocation, node: str, instance: str, seen: Mapping[str, InstanceState]) -> NodeState:
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


shared = CachedByEnvironment(AwsProvisioner, "AWS_")
"""Return the process's shared provisioner, so that its jobs share caches; another one if AWS's settings change."""
