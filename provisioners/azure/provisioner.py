"""The target `azure`: every node is a virtual machine. See docs/guides/azure.md.

Resources of a launch in creation order: a resource group; in it a managed identity with its role assignments, a network
security group and a virtual network; then an interface, an address and a machine with its disk for each node, or a
scale set (group_launch.py). Teardown deletes the group with its contents. The only state kept here is a short-lived
cache: any process may call any method at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from ...jobspecs.plan import Offer
from ..base import Allocation, LaunchRequest, NodeState, Owner, ProvisionError, TerminateResult
from ..shared import allocations
from ..shared.accounts import Accounts
from ..shared.allocations import Found
from ..shared.api_calls import UNKNOWN, retry_after_login
from ..shared.shared_provisioner import CachedByEnvironment
from ..stacks import job_groups
from . import operations
from .account import need_sdk, refusal
from .catalog import prices
from .catalog.sizes import Sizes
from .clients import Clients
from .console import console, with_console
from .lifecycle.group_launch import GroupLaunch, state_of
from .lifecycle.launching import Launch
from .lifecycle.teardown import Teardown, delete_machine
from .machine.images import Images
from .machine.request import check_request
from .names import group_name
from .resources import network
from .resources.instance_cache import InstanceCache, InstanceState, Restarts
from .resources.resource_groups import Group, find_group, groups_of

if TYPE_CHECKING:
    from ..shared.clock import Clock

log = logging.getLogger("cloudgpu.provisioners.azure")

TARGET = "azure"
MARKET = "market"
"""Key in Allocation.details; its value is LaunchRequest.market."""
ACCOUNTS = Accounts("the Azure subscription", "set AZURE_SUBSCRIPTION_ID; nothing is changed until then")

YOUNG_S = 1_200.0
"""Seconds after the launch within which a failure is a refusal, such as missing capacity.

A machine that fails later has run, for example until it was moved to a failing host: its node is lost, and the attempt
continues.
"""


class AzureProvisioner:
    """Provisioner for Azure virtual machines, one for all jobs of a process (shared()). Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clients = Clients(clock)
        self._images = Images(self._clients)
        self._sizes = Sizes(self._clients)
        self._sightings = InstanceCache(self._clients)
        self._restarts = Restarts(self._clients)
        self._prices = prices.PriceList(self._clients.account, self._clients.clock)
        self._deleted: dict[tuple[str, str], NodeState] = {}
        """(token, machine) -> state of a machine that was deleted because Azure failed to start it or to keep it
        running."""

    @retry_after_login
    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the missing machines, all or none. Idempotent: see Launch.

        Calls Azure twice if all machines exist, otherwise about twenty times plus six times for each machine.
        """
        ACCOUNTS.check(request.account, self._own)
        check_request(request)
        if request.grouped:
            return self._launch_grouped(request)
        launch = Launch(self._clients, self._images, self._sizes, self._sightings, request)
        need_sdk()
        launch.run()
        details = {MARKET: request.market}
        return allocations.of_launch(TARGET, launch, self._clients.subscription, self._clients.clock.now(), details)

    @retry_after_login
    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return Azure's states, at most a few seconds old.

        It takes one call for each launch, one for each failed machine, and, since no list shows restarts, one a minute
        for each other machine. A machine that failed to start is deleted and reported as refused; one that failed later
        is deleted and reported as gone.
        """
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return job_groups.states(allocation, state_of(self._clients, self._sightings, allocation))
        seen = self._sightings.of_launch(allocation.token)
        settled = [name for name in allocation.machines.values() if name in seen and seen[name].is_settled]
        back = self._restarts.among(group_name(allocation.token), settled)
        return [
            self._state(allocation, node, name, seen.get(name), returns=name in back)
            for node, name in allocation.machines.items()
        ]

    @retry_after_login
    def terminate(self, allocation: Allocation) -> TerminateResult:
        """Remove everything under the token, including resources that the allocation does not name.

        Raises ProvisionError(transient) if the deletion takes longer than some minutes: call again.
        """
        self._check(allocation)
        job_groups.end_order(allocation)
        return Teardown(self._clients, self._sightings, allocation.token).run()

    @retry_after_login
    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """Delete the nodes' machines, and interfaces of missing ones: two calls each. No-op for a scale set."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return
        group = group_name(allocation.token)
        for name in (allocation.machines[node] for node in nodes):
            if operations.get_machine(self._clients, group, name) is not None:
                delete_machine(self._clients, group, name)
            else:
                network.remove_interface(self._clients, group, name)

    @retry_after_login
    def find(self, owner: Owner) -> list[Allocation]:
        """Return every launch with remaining resources, in all regions of the subscription.

        One call, plus one for each launch."""
        need_sdk()
        begun = self._clients.clock.monotonic()
        return [
            _allocation(owner, group, self._sightings.of_launch(group.token, since=begun).values())
            for group in groups_of(self._clients, owner.name)
        ]

    @retry_after_login
    def explain(self, allocation: Allocation, node: str) -> str:
        """Return the end of the machine's console output, from boot diagnostics: two calls.

        "" for a scale set: Azure does not know which machine ran the node.
        """
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return ""
        return console(self._clients, group_name(allocation.token), allocation.machines[node])

    @retry_after_login
    def account(self) -> str:
        """Return the subscription's id, from the settings, without a call."""
        return self._own()

    @retry_after_login
    def check_account(self, account: str) -> None:
        """See Provisioner."""
        ACCOUNTS.check(account, self._own)

    def price(self, offer: Offer) -> Decimal | None:
        """Return the offer's price in US dollars an hour at the region's current Spot prices; None: as planned.

        One call for each size."""
        try:
            need_sdk()
            return prices.offer_price(self._prices, offer)
        except ProvisionError as error:
            log.warning("the price of %s is taken from the plan: %s", offer.place, error)
            return None

    # -- helpers

    def _own(self) -> str:
        """Return the configured subscription's id. Raises ProvisionError."""
        need_sdk()
        return self._clients.subscription

    def _check(self, allocation: Allocation) -> None:
        """Raise ProvisionError if the configured subscription is not that of the allocation."""
        need_sdk()
        ACCOUNTS.check(allocation.account, self._own)

    def _launch_grouped(self, request: LaunchRequest) -> Allocation:
        launch = GroupLaunch(self._clients, self._images, self._sizes, self._sightings, request)
        need_sdk()
        launch.run()
        found = job_groups.allocation(request, TARGET, launch.name, launch.fleet_dir)
        details = {**found.details, MARKET: request.market}
        return replace(found, zone=launch.zone or "", account=self._clients.subscription, details=details)

    def _state(
        self, allocation: Allocation, node: str, name: str, seen: InstanceState | None, *, returns: bool
    ) -> NodeState:
        known = self._deleted.get((allocation.token, name))
        if seen is not None and seen.has_failed:
            return self._in_trouble(allocation, node, seen, known)
        if seen is not None and not (seen.is_ending and known):
            self._deleted.pop((allocation.token, name), None)  # the launch was terminated and repeated
            return seen.as_node(node, returns=returns)
        return known or self._missing(allocation, node, name)

    def _in_trouble(self, allocation: Allocation, node: str, seen: InstanceState, known: NodeState | None) -> NodeState:
        """Return the state of a machine that Azure reports as failed. `known`: the state recorded when it was
        deleted, if any.

        A machine that runs anyway is reported as running: its agent's heartbeats decide.
        """
        group = group_name(allocation.token)
        view = operations.get_machine(self._clients, group, seen.name)
        if view is None or (known is not None and view.state == "Deleting"):
            return known or self._missing(allocation, node, seen.name)
        error = view.error or {"code": seen.state, "message": f"the machine is {seen.state}"}
        start_error = refusal(error, f"start {node}")
        if view.runs or start_error.error_class in UNKNOWN:
            return NodeState(node, "running", str(start_error))
        start_error = with_console(self._clients, group, seen.name, start_error)
        delete_machine(self._clients, group, seen.name)
        if allocation.age_s(node, self._clients.clock.now()) < YOUNG_S:
            state = NodeState(node, "gone", f"it never ran: {start_error}", refused=start_error)
        else:
            state = NodeState(node, "gone", f"Azure has not kept it running: {start_error}")
        self._deleted[allocation.token, seen.name] = state
        return state

    def _missing(self, allocation: Allocation, node: str, name: str) -> NodeState:
        """Return the state of a machine that Azure's list does not contain."""
        group = group_name(allocation.token)
        is_young = allocation.age_s(node, self._clients.clock.now()) < operations.UNSEEN_S
        if is_young and operations.get_machine(self._clients, group, name) is not None:
            return NodeState(node, "pending", "Azure's list does not show it yet")
        # A missing Spot machine was evicted: cloudgpu deletes machines only with their group, or through remove(),
        # which is for nodes that are already lost.
        if allocation.details.get(MARKET) == "spot" and find_group(self._clients, allocation.token) is not None:
            return NodeState(
                node, "gone", "Azure has evicted the Spot machine, or it was deleted by hand", reclaimed=True
            )
        return NodeState(node, "gone", "Azure does not know it any more")


def _allocation(owner: Owner, group: Group, seen: Collection[InstanceState]) -> Allocation:
    machines = {one.node: one.name for one in seen if one.node}
    return allocations.of_found(TARGET, owner, Found(group.token, group.tags, machines, group.region))


shared = CachedByEnvironment(AzureProvisioner, "AZURE_", "CLOUDGPU_AZURE_", "IDENTITY_", "MSI_", "REQUESTS_CA_BUNDLE")
"""The provisioner shared by all jobs of this process; it is replaced when the settings change."""
