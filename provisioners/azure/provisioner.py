"""The target `azure`: every node is a virtual machine. See docs/guides/azure.md.

What a launch makes, in this order: a resource group, in it a managed identity with its role assignments, a network
security group and a virtual network, then an interface, an address and a machine with its disk for each node; or a
scale set (group_launch.py). The group goes last, and everything with it. Nothing is remembered here but what was seen a
moment ago: any process may call any verb at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from ...jobspecs.plan import Offer
from ..base import Allocation, Ended, LaunchRequest, NodeState, Owner, ProvisionError
from ..shared import allocations
from ..shared.accounts import Accounts
from ..shared.allocations import Found
from ..shared.api_calls import UNKNOWN, renewing
from ..shared.shared_provisioner import PerSettings
from ..stacks import job_groups
from . import operations
from .account import need_sdk, refusal
from .catalog import prices
from .catalog.sizes import Sizes
from .clients import Clients
from .console import console, with_console
from .lifecycle.group_launch import GroupedLaunch, state_of
from .lifecycle.launching import Launch
from .lifecycle.teardown import Ending, delete_machine
from .machine.images import Images
from .machine.request import check_request
from .names import group_name
from .resources import network
from .resources.instance_cache import Restarts, Sighting, Sightings
from .resources.resource_groups import Group, find_group, groups_of

if TYPE_CHECKING:
    from ..shared.clock import Clock

log = logging.getLogger("cloudgpu.provisioners.azure")

TARGET = "azure"
MARKET = "market"
"""Key of Allocation.details: LaunchRequest.market."""
ACCOUNTS = Accounts("the Azure subscription", "set AZURE_SUBSCRIPTION_ID; nothing is changed until then")

YOUNG_S = 1_200.0
"""What Azure has no machine for it says within this time of the launch. One that fails later has run, e.g. until it was
moved to a host that was not there: then its node is lost as others are, and its attempt goes on."""


class AzureProvisioner:
    """Virtual machines of Azure. One for all jobs of a process (shared()); any thread may call any verb."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clients = Clients(clock)
        self._images = Images(self._clients)
        self._sizes = Sizes(self._clients)
        self._sightings = Sightings(self._clients)
        self._restarts = Restarts(self._clients)
        self._prices = prices.PriceList(self._clients.account, self._clients.clock)
        self._deleted: dict[tuple[str, str], NodeState] = {}
        """(token, machine) -> why one that Azure has failed to make, or to keep, was deleted."""

    @renewing
    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the machines that are not there yet, all or none. Idempotent: see Launch.

        Constant in calls: two where all are there, else about twenty and six for each machine.
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

    @renewing
    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Azure's states, at most a few seconds old; one call for each launch, one for each machine in trouble, and one
        a minute for each other machine: whether it is being restarted no list tells.

        A machine that Azure could not make after all is deleted, and told as refused; one that it could not keep is
        deleted, and gone.
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

    @renewing
    def terminate(self, allocation: Allocation) -> Ended:
        """Remove everything under the token, also what the allocation does not name. Raises ProvisionError(transient)
        if it is still being deleted after some minutes: call again.
        """
        self._check(allocation)
        job_groups.dismiss(allocation)
        return Ending(self._clients, self._sightings, allocation.token).run()

    @renewing
    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """A call for each that is there; what was made for one that is not goes as well. A scale set does it itself."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return
        group = group_name(allocation.token)
        for name in (allocation.machines[node] for node in nodes):
            if operations.look_at(self._clients, group, name) is not None:
                delete_machine(self._clients, group, name)
            else:
                network.remove_interface(self._clients, group, name)

    @renewing
    def find(self, owner: Owner) -> list[Allocation]:
        """Every launch of which anything is left, in all regions of the subscription: one call, and one for each."""
        need_sdk()
        begun = self._clients.clock.monotonic()
        return [
            _allocation(owner, group, self._sightings.of_launch(group.token, since=begun).values())
            for group in groups_of(self._clients, owner.name)
        ]

    @renewing
    def explain(self, allocation: Allocation, node: str) -> str:
        """What the machine's console ends with, by boot diagnostics: a call, and what its answer names is read. Which
        machine of a scale set has had the node is not told by Azure."""
        self._check(allocation)
        if job_groups.is_grouped(allocation):
            return ""
        return console(self._clients, group_name(allocation.token), allocation.machines[node])

    @renewing
    def account(self) -> str:
        """The subscription's id: a setting, for which no call is made."""
        return self._own()

    @renewing
    def check_account(self, account: str) -> None:
        """See Provisioner."""
        ACCOUNTS.check(account, self._own)

    def price(self, offer: Offer) -> Decimal | None:
        """The Spot price of this moment in the offer's region; list prices are as planned. One call for each size."""
        try:
            need_sdk()
            return prices.offer_price(self._prices, offer)
        except ProvisionError as error:
            log.warning("the price of %s is taken from the plan: %s", offer.place, error)
            return None

    # -- helpers

    def _own(self) -> str:
        """Return the account of the credentials."""
        need_sdk()
        return self._clients.subscription

    def _check(self, allocation: Allocation) -> None:
        """Refuse the credentials of another account than the allocation's."""
        need_sdk()
        ACCOUNTS.check(allocation.account, self._own)

    def _launch_grouped(self, request: LaunchRequest) -> Allocation:
        launch = GroupedLaunch(self._clients, self._images, self._sizes, self._sightings, request)
        need_sdk()
        launch.run()
        found = job_groups.allocation(request, TARGET, launch.name, launch.fleet_dir)
        details = {**found.details, MARKET: request.market}
        return replace(found, zone=launch.zone or "", account=self._clients.subscription, details=details)

    def _state(
        self, allocation: Allocation, node: str, name: str, seen: Sighting | None, *, returns: bool
    ) -> NodeState:
        known = self._deleted.get((allocation.token, name))
        if seen is not None and seen.has_failed:
            return self._in_trouble(allocation, node, seen, known)
        if seen is not None and not (seen.is_ending and known):
            self._deleted.pop((allocation.token, name), None)  # all of the launch was ended, and begun again
            return seen.as_node(node, returns=returns)
        return known or self._missing(allocation, node, name)

    def _in_trouble(self, allocation: Allocation, node: str, seen: Sighting, known: NodeState | None) -> NodeState:
        """Azure says that it has failed. If it runs all the same that is for its agent to tell. `known`: what was made
        of that a moment ago."""
        group = group_name(allocation.token)
        view = operations.look_at(self._clients, group, seen.name)
        if view is None or (known is not None and view.state == "Deleting"):
            return known or self._missing(allocation, node, seen.name)
        error = view.error or {"code": seen.state, "message": f"the machine is {seen.state}"}
        told = refusal(error, f"start {node}")
        if view.runs or told.error_class in UNKNOWN:
            return NodeState(node, "running", str(told))
        told = with_console(self._clients, group, seen.name, told)
        delete_machine(self._clients, group, seen.name)
        if allocation.age_s(node, self._clients.clock.now()) < YOUNG_S:
            state = NodeState(node, "gone", f"it never ran: {told}", refused=told)
        else:
            state = NodeState(node, "gone", f"Azure has not kept it running: {told}")
        self._deleted[allocation.token, seen.name] = state
        return state

    def _missing(self, allocation: Allocation, node: str, name: str) -> NodeState:
        """No list shows it."""
        group = group_name(allocation.token)
        is_young = allocation.age_s(node, self._clients.clock.now()) < operations.UNSEEN_S
        if is_young and operations.look_at(self._clients, group, name) is not None:
            return NodeState(node, "pending", "Azure's list does not show it yet")
        # Nobody but Azure takes away a Spot machine and leaves all else: ours are deleted with their group, or by
        # remove(), which is for nodes that are lost already.
        if allocation.details.get(MARKET) == "spot" and find_group(self._clients, allocation.token) is not None:
            return NodeState(node, "gone", "Azure has evicted the Spot machine, or somebody has deleted it", taken=True)
        return NodeState(node, "gone", "Azure does not know it any more")


def _allocation(owner: Owner, group: Group, seen: Collection[Sighting]) -> Allocation:
    machines = {one.node: one.name for one in seen if one.node}
    return allocations.of_found(TARGET, owner, Found(group.token, group.tags, machines, group.region))


shared = PerSettings(AzureProvisioner, "AZURE_", "CLOUDGPU_AZURE_", "IDENTITY_", "MSI_", "REQUESTS_CA_BUNDLE")
"""The one of this process, so that its jobs share what was seen; another once the settings are others."""
