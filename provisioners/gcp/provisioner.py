"""The target `gcp`: every node is a Compute Engine instance. See docs/guides/gcp.md.

Resources of a launch in creation order: with several nodes a firewall rule, then the instances with their disks. The
rule is removed last. All have owner, job, attempt and token as labels (the rule: in its description), and the token in
their names. For a launch with a dedicated group see group_launch.py. The only state kept here is a short-lived cache:
any process may call any method at any time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from ...jobspecs.plan import Offer
from ..base import Allocation, LaunchRequest, NodeState, Owner, TerminateResult
from ..shared import allocations, tags
from ..shared.allocations import Found
from ..shared.api_calls import retry_after_login
from ..shared.shared_provisioner import CachedByEnvironment
from ..stacks.job_groups import end_order, is_grouped
from .account import ACCOUNTS
from .clients import Clients, need_sdk
from .console import console
from .lifecycle import group_launch
from .lifecycle.launching import Launch
from .lifecycle.teardown import Teardown, delete
from .machine.images import Images
from .machine.request import check_request
from .resources import instance_groups, network
from .resources.instance_cache import InstanceCache, InstanceState, end_from_history, get_instance, will_restart
from .resources.instance_groups import Groups, Part

if TYPE_CHECKING:
    from ..shared.clock import Clock

log = logging.getLogger("cloudgpu.provisioners.gcp")

TARGET = "gcp"
UNSEEN_S = 60.0
"""Seconds for which a new machine may be missing in the API before it counts as gone."""


class GcpProvisioner:
    """Provisioner for Compute Engine instances, one for all jobs of a process (shared()). Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clients = Clients(clock)
        self._images = Images(self._clients)
        self._sightings = InstanceCache(self._clients)
        self._groups = Groups(self._clients)
        self._ended: dict[str, NodeState] = {}
        """Machine -> its final state; the reason why it is gone is queried only once."""

    @retry_after_login
    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the missing machines, all or none. Idempotent: see Launch.

        Calls the API once if all machines exist, otherwise about ten times plus three times for each machine.
        """
        ACCOUNTS.check(request.account, self._own)
        check_request(request)
        if request.grouped:
            return self._launch_group(request)
        launch = Launch(self._clients, self._images, self._sightings, request)
        need_sdk()
        launch.run()
        return allocations.of_launch(TARGET, launch, self._clients.project, self._clients.clock.now())

    @retry_after_login
    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return Compute Engine's states, at most a few seconds old, from one call that concurrent callers share.

        For a machine that is missing in the list, its operations show whether and why it ended. Otherwise it is queried
        by name, since lists may lag.
        """
        self._check(allocation)
        if is_grouped(allocation):
            return group_launch.observe(self._clients, self._sightings, self._groups, allocation)
        seen = self._seen(allocation)
        return [self._state(allocation, node, one, seen.get(one)) for node, one in allocation.machines.items()]

    @retry_after_login
    def terminate(self, allocation: Allocation) -> TerminateResult:
        """Remove everything under the token, including resources that the allocation does not name.

        Raises ProvisionError(transient) if the deletion takes longer than some minutes: call again.
        """
        self._check(allocation)
        end_order(allocation)
        has_group, is_known = is_grouped(allocation), bool(allocation.account and allocation.machines)
        return Teardown(
            self._clients,
            self._sightings,
            allocation.token,
            allocation.owner,
            named=() if has_group else frozenset(allocation.machines.values()),
            region=allocation.region,
            grouped=has_group or not is_known,
        ).run()

    @retry_after_login
    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """Delete the nodes' machines unless they are ending: one call each. No-op for a group, which replaces its
        machines."""
        self._check(allocation)
        if is_grouped(allocation):
            return
        seen = self._seen(allocation)
        for machine in (allocation.machines[node] for node in nodes):
            if machine not in seen or not seen[machine].is_ending:
                delete(self._clients, machine)

    @retry_after_login
    def find(self, owner: Owner) -> list[Allocation]:
        """Return every launch with remaining resources, in all zones of the project: five calls."""
        need_sdk()
        begun = self._clients.clock.monotonic()
        rules = network.rules_of(self._clients, owner.name)
        parts = [part for kind in instance_groups.KINDS for part in instance_groups.find(self._clients, kind).of("")]
        seen = self._sightings.of_owner(owner.name, since=begun).values()
        found: list[InstanceState | Part] = [
            *seen,
            *(part for part in parts if part.tags.get(tags.OWNER) == owner.name),
        ]
        launches: dict[str, Mapping[str, str]] = {rule.token: rule.tags for rule in rules}
        launches |= {one.token: one.tags for one in found}
        return [
            _allocation(owner, token, values, [one for one in found if one.token == token])
            for token, values in launches.items()
            if token
        ]

    @retry_after_login
    def explain(self, allocation: Allocation, node: str) -> str:
        """Return the last lines of the serial port output of the node's machine (one call).

        Returns "" for a group, since it is not known which machine ran the node."""
        self._check(allocation)
        if is_grouped(allocation):
            return ""
        return console(self._clients, allocation.machines[node])

    @retry_after_login
    def account(self) -> str:
        """Return the project's id, from the settings, without a call."""
        return self._own()

    @retry_after_login
    def check_account(self, account: str) -> None:
        """See Provisioner."""
        ACCOUNTS.check(account, self._own)

    def price(self, offer: Offer) -> Decimal | None:  # noqa: ARG002 - the protocol's signature
        """Return None: Google has only list prices, also for Spot, which the plan already contains."""
        return None

    # -- helpers

    def _own(self) -> str:
        """Return the configured project's id. Raises ProvisionError."""
        need_sdk()
        return self._clients.project

    def _check(self, allocation: Allocation) -> None:
        """Raise ProvisionError if the configured project is not that of the allocation."""
        need_sdk()
        ACCOUNTS.check(allocation.account, self._own)

    def _launch_group(self, request: LaunchRequest) -> Allocation:
        need_sdk()
        made = group_launch.GroupLaunch(self._clients, self._images, self._sightings, request).run()
        return dataclasses.replace(made, account=self._clients.project)

    def _seen(self, allocation: Allocation) -> Mapping[str, InstanceState]:
        """Return the cached instances of the allocation's owner or, if that is unknown, of its token."""
        if allocation.owner:
            return self._sightings.of_owner(allocation.owner, region=allocation.region)
        return self._sightings.of_token(allocation.token, region=allocation.region)

    def _state(self, allocation: Allocation, node: str, machine: str, seen: InstanceState | None) -> NodeState:
        if seen is None:
            ended = self._ended.get(machine) or end_from_history(self._clients, node, machine)
            if ended is not None:
                self._ended[machine] = ended
                return ended
            seen = get_instance(self._clients, machine)
        if seen is not None:
            self._ended.pop(machine, None)  # the launch was terminated and repeated with the same name
            return seen.as_node(node, returns=seen.is_down and will_restart(self._clients, machine))
        if allocation.age_s(node, self._clients.clock.now()) < UNSEEN_S:
            return NodeState(node, "pending", "Compute Engine does not show it yet")
        return NodeState(node, "gone", "Compute Engine does not know it any more")


def _allocation(
    owner: Owner, token: str, values: Mapping[str, str], found: Collection[InstanceState | Part]
) -> Allocation:
    seen = [one for one in found if isinstance(one, InstanceState)]
    region = min((one.region for one in found if one.region), default="")
    zone = min((one.zone for one in seen), default="")
    machines = {one.node: one.machine for one in seen if one.node}
    return allocations.of_found(TARGET, owner, Found(token, values, machines, region, zone))


shared = CachedByEnvironment(
    GcpProvisioner, "GOOGLE_", "CLOUDGPU_GCP_", "CLOUDSDK_", "GCE_METADATA_", "STORAGE_EMULATOR_HOST"
)
"""The provisioner shared by all jobs of this process; it is replaced when the settings change."""
