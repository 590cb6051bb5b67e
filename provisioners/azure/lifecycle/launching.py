"""One launch of single machines: find or create its resources, then start all missing machines, or none."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from ...base import LaunchRequest, NodeRequest, ProvisionError
from ...boot.record import is_loopback
from ...shared.api_calls import all_or_none, cleaning_up, first_with_room, with_context
from ...shared.infra_outputs import Infrastructure, load
from .. import operations
from ..account import Account
from ..catalog import quotas
from ..catalog.sizes import Size, Sizes
from ..clients import Clients, answer_of
from ..console import with_console
from ..machine.images import Image, Images
from ..machine.request import Place, machine, with_tags, zones_for
from ..machine.reservations import find_reservations
from ..names import SHARED, group_name, node_name
from ..resources import network
from ..resources.identity import assign_roles, find_grants, find_identity, make_identity, shared_identity
from ..resources.instance_cache import InstanceCache
from ..resources.resource_groups import Group, find_group, make_group, mark_started, unmark_started
from .teardown import Teardown, delete_machine

log = logging.getLogger("cloudgpu.provisioners.azure")

STORAGE = "AZURE_STORAGE_ENDPOINT"
_AT_ONCE = 4
"""Number of a launch's machines that are requested concurrently."""
_CHANGED = frozenset({"PropertyChangeNotAllowed", "OperationNotAllowed", "Conflict"})
"""Azure's errors for a request to create an existing machine with other properties, such as a newer image."""
_NO_FABRIC = (
    "%s: machines of the market %s cannot be in an availability set, and so may be without InfiniBand to each other; "
    "market: on-demand has it"
)


@dataclass(slots=True)
class Launch:
    """Launch of single machines in progress. Call run() only once."""

    clients: Clients
    images: Images
    sizes: Sizes
    sightings: InstanceCache
    request: LaunchRequest
    machines: dict[str, str] = field(default_factory=dict)
    """Node -> machine name, for all machines ever started under this token, including those that are gone."""
    started: tuple[str, ...] = ()
    """Nodes whose machines this call started; the others already existed."""
    zone: str | None = None
    """Zone of the machines; None: no zone."""
    _shared: str = ""
    """Resource id of the machines' identity if it is shared; "": the launch has a dedicated identity."""
    _begun: frozenset[str] = frozenset()
    """Nodes whose machines are being created by an earlier call whose outcome is unknown."""
    _was_begun: bool = False
    """True if some machines were being created when this call began."""
    _is_placed: bool = False
    """True if some machines exist: their `zone` then applies to all."""
    _some_have_begun: bool = False
    """True if machines of a refused launch had started, or may still exist: no other zone is tried then."""
    _has_created: bool = False
    """True if resources may exist under this token, from this call or an earlier one."""

    def run(self) -> None:
        """Start all nodes of the request. Idempotent. Raises ProvisionError.

        After a final refusal everything that this call created is removed, and earlier resources stay. After any other
        error everything stays, and the next launch() or terminate() with this token finds it.
        """
        group = find_group(self.clients, self.request.token)
        self._has_created = group is not None
        if group is not None and not group.is_ending:
            self._find(group)
        missing = [node for node in self.request.nodes if node.node not in self.machines]
        if not missing:
            return
        is_new, stack = not self.machines, known_stack(self.request.region)
        # Machines added to a launch use the identity of the existing ones, even if the region's stack has changed
        # since.
        if group is not None and not group.is_ending:
            self._shared = group.shared_identity
        else:
            self._shared = shared_identity(stack, self.request)
        try:
            self._start(missing, stack)
        except ProvisionError as error:
            error.may_have_created |= self._has_created
            if error.is_final:
                self._undo(missing, is_new=is_new)
            raise

    @property
    def is_fresh(self) -> bool:
        """Return True if this call started all machines (Allocation.is_fresh)."""
        return len(self.started) == len(self.request.nodes) and not self._was_begun

    # -- existing machines

    def _find(self, group: Group) -> None:
        """Find the machines that exist, are being created, or existed and are gone."""
        nodes = {node_name(node.node): node.node for node in self.request.nodes}
        seen = self.sightings.of_launch(self.request.token, since=self.clients.clock.monotonic())
        begun, failed = set(), []
        for name, node in nodes.items():
            found = seen.get(name)
            if found is None:
                continue
            if found.is_ending:  # lost if tagged as started, and reported by observe(); otherwise refused, and retried
                if node in group.started:
                    self.machines[node] = name
                else:
                    failed.append(node)
                continue
            view = operations.get_machine(self.clients, group.name, name) if found.state != "Succeeded" else None
            if found.state == "Succeeded" or (view is not None and view.runs):
                self.machines[node] = name
            elif found.has_failed:
                failed.append(node)
                continue
            elif view is not None:
                begun.add(node)
            self.zone, self._is_placed = found.zone, True
        self._begun, self._was_begun = frozenset(begun), bool(begun)
        started = group.started & set(nodes.values()) - set(self.machines) - begun - set(failed)
        self._clean(failed)
        # A machine whose interface still exists was never created: they are deleted together.
        there = network.interfaces_of(self.clients, group.name) if started else frozenset()
        self.machines |= {node: node_name(node) for node in started if node_name(node) not in there}

    # -- prerequisites

    def _start(self, missing: Sequence[NodeRequest], stack: Infrastructure | None) -> None:
        request, clients = self.request, self.clients
        images = {node.node: self.images.find(request.region, node) for node in missing}
        sizes = {
            node.node: self.sizes.find(request.region, node.machine_type, request.market) for node in request.nodes
        }
        new = [node.machine_type for node in missing if node.node not in self._begun]
        zones, reserved = self._places(list(sizes.values()), new)
        quotas.check(clients, region=request.region, market=request.market, machine_types=new)
        grants = find_grants(clients, request, self._shared)
        access = [target.to_tag() for target in dict.fromkeys(one.target for one in grants)]
        self._has_created = True
        group = make_group(clients, request, access, self._shared)
        # Drop other nodes' started tags: they are no longer needed, and a group's number of tags is limited.
        unmark_started(clients, request.token, group.started - {node.node for node in request.nodes}, group)
        identity = find_identity(clients, self._shared) if self._shared else make_identity(clients, request)
        assign_roles(clients, request, identity, grants)
        attachment = network.make_network(clients, request, stack)
        store, api = endpoints(clients.account)
        place = Place(
            zones[0],
            identity.id,
            identity.client_id,
            reservations=reserved,
            endpoint=store,
            api_endpoint=api,
        )
        place = self._close_together(place, sizes)
        first_with_room(
            zones if place.availability_set is None else [None],
            lambda zone: self._start_in(replace(place, zone=zone), missing, images, sizes, attachment),
            turn=request.attempt - 1,
            has_begun=lambda: self._some_have_begun,
            on_refusal=lambda error: log.info("%s: %s", request.job_id, error),
        )

    def _places(self, sizes: Sequence[Size], new: Sequence[str]) -> tuple[list[str | None], Mapping[str, str]]:
        """Return the zones to try, in order, and machine type -> capacity reservation group. Raises ProvisionError.

        All machines are in one zone, so existing ones decide it. `new`: types of the machines to start, one entry each.
        """
        request = self.request
        if request.market == "reservation" and new:
            there = [self.zone] if self._is_placed else [request.zone] if request.zone else []
            found = find_reservations(self.clients, request.region, there, new)
            return [found.zone], found.groups
        if self._is_placed:
            return [self.zone], {}
        return zones_for(sizes, request.zone, request.region), {}

    def _close_together(self, place: Place, sizes: Mapping[str, Size]) -> Place:
        """Add an availability set or a proximity placement group for several machines with InfiniBand.

        InfiniBand works only within an availability set or a scale set. Spot and reserved machines cannot be in an
        availability set, and reserved ones not even in a proximity placement group. Source: Azure's documentation, "Set
        up InfiniBand on HPC VMs", "On-demand capacity reservation"; CycleCloud's, "Availability Sets".
        """
        if len(sizes) < 2 or not all(size.rdma for size in sizes.values()):
            return place
        request, clients = self.request, self.clients
        if request.market == "on-demand":
            return replace(place, availability_set=make_availability_set(clients, request))
        log.warning(_NO_FABRIC, request.job_id, request.market)
        if request.market == "reservation":
            return place
        return replace(place, proximity_group=make_proximity_group(clients, request))

    # -- machines

    def _start_in(
        self,
        place: Place,
        missing: Sequence[NodeRequest],
        images: Mapping[str, Image],
        sizes: Mapping[str, Size],
        attachment: network.Attachment,
    ) -> None:
        """Start the machines in one zone; after a final refusal all of them are deleted.

        All interfaces are created first, then the nodes are tagged as started. A tagged node with neither machine nor
        interface therefore once had both.
        """
        request, clients = self.request, self.clients
        nodes = {node.node: node for node in missing}
        new = [name for name in nodes if name not in self._begun]
        with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-interfaces") as pool:
            made = {
                name: pool.submit(
                    with_context(network.make_interface), clients, request, nodes[name], attachment, sizes[name]
                )
                for name in new
            }
        interfaces = {name: one.result() for name, one in made.items()}
        mark_started(clients, request.token, new)

        def start(name: str) -> str:
            body = None
            if name in interfaces:
                body = machine(request, nodes[name], place, images[name], interfaces[name])
            return self._start_one(place, nodes[name], body)

        try:
            started = all_or_none(list(nodes), start, self._have_begun, at_once=_AT_ONCE)
        except ProvisionError as error:
            if error.is_final:
                self._begun = frozenset()
                self._clean_refused(list(nodes))
            raise
        self.machines |= started
        self.started = tuple(started)
        self.zone = place.zone

    def _start_one(self, place: Place, node: NodeRequest, body: dict[str, object] | None) -> str:
        """Return the machine's name after Azure has placed it. `body`: None if it is already being created."""
        request, clients = self.request, self.clients
        group, name = group_name(request.token), node_name(node.node)
        where = f"zone {place.zone} of {request.region}" if place.zone else request.region
        doing = f"start {node.node} ({request.market} {node.machine_type}) in {where}"
        try:
            url = "" if body is None else self._order(group, name, doing, body)
            operations.await_place(clients, group, name, doing, url)
        except ProvisionError as error:
            if not error.is_final:
                raise
            raise with_console(clients, group, name, error) from error
        return name

    def _order(self, group: str, name: str, doing: str, body: dict[str, object]) -> str:
        """Request the machine, with retries while throttled or not answered; return the operation's URL."""
        begin = partial(self.clients.compute.virtual_machines.begin_create_or_update, group, name, cast("Any", body))
        try:
            return self.clients.ask(doing, lambda: operations.start_operation(begin)).url
        except ProvisionError as error:
            if error.code in _CHANGED and operations.get_machine(self.clients, group, name) is not None:
                return ""  # an earlier call created it
            raise

    def _have_begun(self, _started: Mapping[str, str]) -> None:
        """Record that machines were started and are ended because another one was refused."""
        self._some_have_begun = True

    def _clean_refused(self, nodes: Sequence[str]) -> None:
        """Remove the refused machines. If that fails, a name remains taken and no other zone is tried."""
        cleaned = False
        with cleaning_up(self.request.job_id):
            self._clean(nodes)
            cleaned = True
        self._some_have_begun |= not cleaned

    def _clean(self, nodes: Sequence[str]) -> None:
        """Delete the nodes' machines, and wait until they are gone.

        Azure does not delete a machine that it created but could not place. The started tags are removed first,
        so that after a crash a retry does not consider the machines lost.
        """
        clients, token = self.clients, self.request.token
        group = find_group(clients, token) if nodes else None
        if group is None:
            return
        unmark_started(clients, token, nodes, group)
        for wait in (False, True):
            for node in nodes:
                delete_machine(clients, group.name, node_name(node), wait=wait)

    # -- cleanup after a refusal

    def _undo(self, missing: Sequence[NodeRequest], *, is_new: bool) -> None:
        """Remove what this call created; terminate() removes what fails here. No machines are left at this point, so
        the deletion of the group, which takes minutes, is not awaited."""
        clients, token = self.clients, self.request.token
        with cleaning_up(self.request.job_id):
            if is_new:
                Teardown(clients, self.sightings, token).begin()
                return
            for node in missing:
                network.remove_interface(clients, group_name(token), node_name(node.node))


def make_availability_set(clients: Clients, request: LaunchRequest) -> str:
    """Create an availability set and return its resource id. Idempotent. Raises ProvisionError."""
    one = {"platformFaultDomainCount": 1, "platformUpdateDomainCount": 1}
    body = with_tags(request, one, sku={"name": "Aligned"})
    return _placement(clients, request, clients.compute.availability_sets.create_or_update, body)


def make_proximity_group(clients: Clients, request: LaunchRequest) -> str:
    """Create a proximity placement group and return its resource id. Idempotent. Raises ProvisionError."""
    body = with_tags(request, {"proximityPlacementGroupType": "Standard"})
    return _placement(clients, request, clients.compute.proximity_placement_groups.create_or_update, body)


def _placement(clients: Clients, request: LaunchRequest, make: Any, body: dict[str, Any]) -> str:  # the SDK's method
    group, doing = group_name(request.token), f"make a placement group in {request.region}"
    return str(clients.ask(doing, lambda: make(group, SHARED, body, cls=answer_of))["id"])


def endpoints(account: Account) -> tuple[str | None, str | None]:
    """Return the endpoints of Blob Storage and Resource Manager that machines use if a test has set them to the
    loopback; None: Azure's."""
    store = os.environ.get(STORAGE, "")
    api = account.endpoint
    return store if store and is_loopback(store) else None, api if is_loopback(api) else None


def known_stack(region: str) -> Infrastructure | None:
    """Return the outputs of a region's infra stack; None: no stack. Raises ProvisionError if its file is damaged."""
    try:
        return load("azure", region)
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="region") from error
