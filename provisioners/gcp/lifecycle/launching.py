"""One launch of single machines: find or create its resources, then start all missing machines, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...base import LaunchRequest, NodeRequest, ProvisionError
from ...shared.api_calls import all_or_none, cleaning_up, first_with_room, retry
from .. import operations
from ..catalog import quotas
from ..clients import RETRY_TIMEOUT_S, WRITE_S, Clients
from ..labels import instance_name, instance_prefix
from ..listing import zones_of
from ..machine.images import Image, Images
from ..machine.instance_spec import longest_run_s
from ..machine.machine_types import needs
from ..machine.request import Place, flex_wait_s, instance, request_id
from ..machine.reservations import Reservation, find_reservations
from ..operations import Operation
from ..resources import network
from ..resources.instance_cache import InstanceCache, get_instance
from ..resources.stack_lookup import known_stack, machine_account
from ..rest import last_part
from .teardown import Teardown, delete, ended_id

if TYPE_CHECKING:
    from google.cloud import compute_v1

log = logging.getLogger("cloudgpu.provisioners.gcp")

_START_S = 180.0
"""Seconds that Compute Engine may take to start or refuse a machine; after that the outcome is unknown."""
_AT_ONCE = 4
"""Number of a launch's machines that are requested concurrently."""
_NO_PRIVATE_ACCESS = (
    "%s: the subnetwork %s has no Private Google Access: machines get external addresses (nothing may come in); "
    "`gcloud compute networks subnets update %s --region %s --enable-private-ip-google-access` makes them needless"
)
_NO_FABRIC = (
    "%s: machines of %s are attached by one interface: their GPUs talk over the ordinary network, not by GPUDirect "
    "over interfaces of their own, which need networks that cloudgpu does not make"
)


@dataclass(frozen=True, slots=True)
class EarlierCalls:
    """Earlier calls under a launch's token for one node in one zone."""

    insert: Operation | None
    """Latest operation that started the node's machine; None: none, or the whole launch was deleted since."""
    request_id: str
    """Request id for the next call that starts a machine."""

    @property
    def was_started(self) -> bool:
        """True if a machine exists or existed; no other one is then started."""
        return self.insert is not None and self.insert.finished


@dataclass(slots=True)
class Launch:
    """Launch of single machines in progress. Call run() only once."""

    clients: Clients
    images: Images
    sightings: InstanceCache
    request: LaunchRequest
    machines: dict[str, str] = field(default_factory=dict)
    """Node -> machine, for all machines ever started under this token, including those that are gone."""
    started: tuple[str, ...] = ()
    """Nodes whose machines this call started; the others already existed."""
    zone: str = ""
    """Zone of the machines."""
    has_begun: bool = False
    """True if machines were started, and deleted because others were refused."""
    has_created: bool = False
    """True if resources may exist under this token, from this call or an earlier one."""

    def run(self) -> None:
        """Start all nodes of the request. Idempotent. Raises ProvisionError.

        After a final refusal everything that this call created is removed, and earlier resources stay. After any other
        error everything stays, and the next launch() or terminate() with this token finds it.
        """
        self._find()
        missing = [node for node in self.request.nodes if node.node not in self.machines]
        if not missing:
            return
        is_new = not self.machines
        try:
            self._start(missing)
        except ProvisionError as error:
            error.may_have_created |= self.has_created
            if error.is_final and is_new:
                self._undo()
            raise

    @property
    def is_fresh(self) -> bool:
        """Return True if this call started all machines (Allocation.is_fresh)."""
        return len(self.started) == len(self.request.nodes)

    # -- existing machines

    def _find(self) -> None:
        """Find the machines that exist, or existed and are gone."""
        request, clock = self.request, self.clients.clock
        wanted = {node.node for node in request.nodes}
        seen = self.sightings.of_owner(request.owner.name, since=clock.monotonic(), region=request.region)
        for one in seen.values():
            if one.token == request.token and one.node in wanted and not one.is_ending:
                self.machines[one.node], self.zone = one.machine, one.zone
        self.has_created = bool(self.machines)
        missing = wanted - set(self.machines)
        if not missing:
            return
        done = self._done()
        for zone in dict.fromkeys(one.zone for one in done):
            for node in missing:
                if earlier_calls(done, request.token, node, zone).was_started:
                    self.machines[node] = f"{zone}/{instance_name(request.token, node)}"
                    self.zone = self.zone or zone

    # -- prerequisites

    def _start(self, missing: Sequence[NodeRequest]) -> None:
        request, clients = self.request, self.clients
        images = {node.node: self.images.find(node) for node in missing}
        zones, reservations = self._zones(missing)
        run_s = longest_run_s(request)
        quotas.check(clients.rest, region=request.region, market=request.market, nodes=missing, run_s=run_s)
        stack = known_stack(clients, request.region)
        attachment = network.find_attachment(clients, request.region, stack)
        account = machine_account(clients, stack, request)
        self._warn(attachment)
        self.has_created = len(request.nodes) > 1  # the only rule for a single machine is shared, and kept
        retry(lambda: self._make(attachment), timeout_s=RETRY_TIMEOUT_S, clock=clients.clock)

        def start(zone: str) -> None:
            place = Place(
                zone,
                attachment,
                account,
                reservations,
                clients.storage_endpoint,
                clients.account.endpoint or None,
            )
            self._start_in(place, missing, images)

        first_with_room(
            zones,
            start,
            turn=request.attempt - 1,
            has_begun=lambda: self.has_begun,
            on_refusal=lambda error: log.info("%s: %s", request.job_id, error),
        )

    def _warn(self, attachment: network.Attachment) -> None:
        """Log warnings about settings that work but reduce performance or security."""
        request = self.request
        if not attachment.private_access:
            subnetwork = last_part(attachment.subnetwork_url)
            log.warning(_NO_PRIVATE_ACCESS, request.job_id, subnetwork, subnetwork, request.region)
        fabric = sorted({node.machine_type for node in request.nodes if needs(node.machine_type).fabric})
        if fabric and len(request.nodes) > 1:
            log.warning(_NO_FABRIC, request.job_id, ", ".join(fabric))

    def _zones(self, missing: Sequence[NodeRequest]) -> tuple[list[str], Mapping[str, Reservation]]:
        """Return the zones to try, in order, and the nodes' reservations. Raises ProvisionError."""
        request, zone = self.request, self.zone or self.request.zone
        if request.market == "reservation":
            found = find_reservations(self.clients, request.region, zone, list(missing))
            return [found[0].zone], {node.node: one for node, one in zip(missing, found, strict=True)}
        if zone:
            return [zone], {}
        return zones_of(self.clients, request.region), {}

    def _make(self, attachment: network.Attachment) -> None:
        """Create the firewall rules. Idempotent."""
        network.close(self.clients, attachment)
        if len(self.request.nodes) > 1:
            network.connect_peers(self.clients, self.request, attachment)

    # -- machines

    def _start_in(self, place: Place, missing: Sequence[NodeRequest], images: Mapping[str, Image]) -> None:
        """Start the machines in one zone; after a final refusal those already started are deleted."""
        nodes = {node.node: node for node in missing}
        done = self._done()

        def start(name: str) -> str:
            return self._start_one(
                place, nodes[name], images[name], earlier_calls(done, self.request.token, name, place.zone)
            )

        started = all_or_none(list(nodes), start, self._end, at_once=_AT_ONCE)
        self.machines |= started
        self.started = tuple(started)
        self.zone = place.zone

    def _done(self) -> list[Operation]:
        """Return the operations on machines of this launch, the oldest first."""
        pattern = f"{instance_prefix(self.request.token)}.*"
        return operations.of_instances(self.clients, pattern, self.request.region)

    def _start_one(self, place: Place, node: NodeRequest, image: Image, before: EarlierCalls) -> str:
        """Start a machine and return it as `zone/name`. Throttled or unanswered calls are retried with the same request
        id."""
        from google.cloud import compute_v1

        request, clients = self.request, self.clients
        made = instance(request, node, place, image)
        doing = f"start {node.node} ({request.market} {node.machine_type}) in {place.zone}"
        wanted = compute_v1.InsertInstanceRequest(
            project=clients.project,
            zone=place.zone,
            instance_resource=compute_v1.Instance(made),
            request_id=before.request_id,
        )

        def start() -> compute_v1.Operation:
            return clients.instances.insert_unary(wanted, retry=None, timeout=WRITE_S)

        machine = f"{place.zone}/{made['name']}"
        try:
            ordered = before.insert or operations.order(clients, start, doing)
            operations.wait(clients, ordered, doing, *self._patience(machine))
        except ProvisionError as error:
            # The same request was sent before, and its request id has expired since.
            if error.code not in {"alreadyExists", "RESOURCE_ALREADY_EXISTS"} or not self._is_ours(machine):
                raise
        return machine

    def _patience(self, machine: str) -> tuple[float, Callable[[], bool]]:
        """Return the timeout in seconds, and a condition that ends the wait early: the machine is in flex-start's
        queue."""
        wait_s = flex_wait_s(self.request) if self.request.market == "flex-start" else 0
        if wait_s <= _START_S:
            return _START_S + wait_s, lambda: False

        def is_in_the_queue() -> bool:
            found = get_instance(self.clients, machine)
            return found is not None and found.is_queued

        return _START_S, is_in_the_queue

    def _is_ours(self, machine: str) -> bool:
        found = get_instance(self.clients, machine)
        return found is not None and found.token == self.request.token and not found.is_ending

    def _end(self, started: Mapping[str, str]) -> None:
        """Delete the started machines of a launch after another one was refused."""
        self.has_begun = True
        done = self._done()
        for node, machine in started.items():
            insert = earlier_calls(done, self.request.token, node, machine.partition("/")[0]).insert
            delete(self.clients, machine, ended_id(self.request.token, machine, insert.name if insert else ""))

    # -- cleanup after a refusal

    def _undo(self) -> None:
        """Remove what this call created; terminate() removes what fails here."""
        request = self.request
        with cleaning_up(request.job_id):
            owner, region = request.owner.name, request.region
            Teardown(self.clients, self.sightings, request.token, owner, region=region, grouped=False).run()


def earlier_calls(done: Sequence[Operation], token: str, node: str, zone: str) -> EarlierCalls:
    """Return the earlier calls for a node, given all operations on machines of the launch.

    A call's request id is derived from the calls before it. All processes therefore derive the same id, and Compute
    Engine executes the call once. After a failed call, or a machine that was deleted with its whole launch, the id
    changes.
    """
    name = instance_name(token, node)
    there = {one.request_id: one for one in done if one.zone == zone and one.instance == name and one.request_id}
    wanted = request_id(token, name, zone)
    while (insert := there.get(wanted)) is not None:
        failed = insert.finished and insert.error is not None
        if not failed and ended_id(token, f"{zone}/{name}", insert.name) not in there:
            return EarlierCalls(insert, wanted)
        wanted = request_id(token, name, zone, "after", insert.name)
    return EarlierCalls(None, wanted)
