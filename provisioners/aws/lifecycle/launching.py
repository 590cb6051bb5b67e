"""Launch of EC2 machines: find or create the resources they need, then start all missing machines or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...base import LaunchRequest, NodeRequest, ProvisionError, node_token
from ...shared.api_calls import all_or_none, cleaning_up, first_with_room, pause, retry
from ...shared.infra_outputs import Infrastructure, load
from ..catalog.quotas import Quotas
from ..catalog.region_cache import RegionCache
from ..clients import Clients
from ..errors import translate_errors
from ..machine.images import Image, Images
from ..machine.request import Place, run_instances, wants_efa
from ..machine.reservations import Reservation, find_reservation
from ..resources import network
from ..resources.identity import make_identity, shared_profile
from ..resources.instance_cache import InstanceCache
from ..resources.profile_propagation import Profiles
from .teardown import Teardown, terminate

log = logging.getLogger("cloudgpu.provisioners.aws")

RETRY_TIMEOUT_S = 90.0
"""Timeout in seconds for retries of calls that were throttled, not answered, or refer to resources just created."""
_NO_PROFILE = "Invalid IAM Instance Profile"
"""Part of EC2's message about an unknown instance profile, see errors.csv."""
_IN_USE = frozenset({"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"})
"""Error codes for an exhausted quota. If the limit is large enough for this launch, other machines use it up, and the
launch is retried."""
_SAYS_NOTHING_OF_PLACES = frozenset({"capacity", "throttled"})
_UNSEEN_S = 60.0
"""Timeout in seconds until a machine that must exist is listed."""
_POLL_S = 3.0
_AT_ONCE = 4
"""Parallel RunInstances calls of a launch; EC2 allows about two a second, with bursts of five."""
_ONE_ADAPTER = (
    "%s: the subnets of %s are public, where a machine can use one Elastic Fabric Adapter at most; tag private subnets "
    "with %s to use all of them"
)


@dataclass(slots=True)
class Launch:
    """Launch of one request. Call run() only once."""

    clients: Clients
    images: Images
    sightings: InstanceCache
    answers: RegionCache
    quotas: Quotas
    profiles: Profiles
    request: LaunchRequest
    machines: dict[str, str] = field(default_factory=dict)
    """Node -> instance id of all machines started under this token and security group, including terminated ones."""
    started: tuple[str, ...] = ()
    """Nodes whose machines this call started; machines of other nodes already existed."""
    zone: str = ""
    """AZ name of the machines."""
    group: network.Group | None = None
    zone_ids: dict[str, str] = field(default_factory=dict)
    """AZ name -> AZ id of the zones with usable subnets."""
    has_begun: bool = False
    """True if machines were started and terminated because others were refused."""
    stack: Infrastructure | None = None
    """Outputs of the region's infra stack; None: there is none."""
    has_created: bool = False
    """True if resources may exist under this token, from this call or an earlier one."""

    def run(self) -> None:
        """Start a machine for each node of the request that has none. Raises ProvisionError.

        After a final error a new launch is undone; machines of earlier calls stay. After any other error all resources
        stay for the next launch() with this token, or terminate().
        """
        with self.clients.launch_turn(self.request.region, self.request.token):
            self._run()

    def _run(self) -> None:
        self._find()
        missing = [node for node in self.request.nodes if node.node not in self.machines]
        if not missing:
            return
        is_new = not self.machines
        try:
            self._start(missing)
        except ProvisionError as error:
            error.may_have_created |= self.has_created
            self._forget(error)
            if error.is_final and is_new:
                self._undo()
            raise

    @property
    def is_fresh(self) -> bool:
        """Return whether this call started all machines (Allocation.is_fresh)."""
        return len(self.started) == len(self.request.nodes)

    def _forget(self, error: ProvisionError) -> None:
        """Invalidate cached data that the error may contradict."""
        if error.error_class not in _SAYS_NOTHING_OF_PLACES:
            self.answers.forget(self.request.region)
        if error.is_final:
            self.quotas.release(self.request)

    # -- find the launch

    def _find(self) -> None:
        request, clock = self.request, self.clients.clock
        with translate_errors(f"look for the launch in {request.region}", clock):
            self.group = network.find_group(self.clients.ec2(request.region), request.token)
        self.has_created = self.group is not None
        if self.group is None:
            return
        wanted = {node.node for node in request.nodes}
        for one in self.sightings.of_launch(request.region, request.token).values():
            if one.node in wanted and one.client_token == self._client_token(one.node, one.zone):
                self.machines[one.node], self.zone = one.instance, one.zone

    def _client_token(self, node: str, zone_name: str) -> str:
        """Return the client token of a machine. Raises ProvisionError if there is no security group yet.

        The client token depends on the security group, so that a launch repeated after teardown gets new machines: for
        an unchanged client token EC2 would return the terminated one.
        """
        if self.group is None:
            raise ProvisionError("transient", "the launch has no security group yet", scope="region")
        return node_token(self.request.token, node, self.group.group, zone_name)

    # -- prepare the launch

    def _start(self, missing: Sequence[NodeRequest]) -> None:
        request = self.request
        self.stack = known_stack(request.region)
        images = {node.machine_type: self.images.find(request.region, node.machine_type) for node in missing}
        subnets, reservations = self._places(missing)
        self.quotas.check(request, [node.machine_type for node in missing])
        if wants_efa(request.nodes) and subnets[0].public:
            log.warning(_ONE_ADAPTER, request.job_id, request.region, network.SUBNET_TAG)
        # A cluster placement group is in one zone: if EC2 chose the zone, the first attempt would fix it for the
        # others.
        placed = wants_efa(request.nodes) and (request.zone is not None or request.market == "reservation")
        self.has_created = True
        profile, placement = retry(
            lambda: self._make(subnets[0].vpc, placed=placed), timeout_s=RETRY_TIMEOUT_S, clock=self.clients.clock
        )
        group = self.group.group if self.group else ""
        endpoint = self.clients.endpoint(request.region)

        def start(subnet: network.Subnet) -> None:
            self._start_in(Place(subnet, group, profile, reservations, placement, endpoint), missing, images)

        try:
            first_with_room(
                subnets,
                start,
                turn=request.attempt - 1,
                has_begun=lambda: self.has_begun,
                on_refusal=lambda error: log.info("%s: %s", request.job_id, error),
                zone_of=lambda subnet: subnet.zone_name,
            )
        except ProvisionError as error:  # hints use AZ ids, as offers do
            error.hints = tuple(self.zone_ids[name] for name in error.hints if name in self.zone_ids)
            if error.code in _IN_USE and self.quotas.are_known_to_suffice(request):
                error.error_class = "capacity"
            raise

    def _places(self, missing: Sequence[NodeRequest]) -> tuple[list[network.Subnet], Mapping[str, Reservation]]:
        """Return the subnets to try, in order, and the reservations to launch into. Raises ProvisionError."""
        request = self.request
        ec2, zone = self.clients.ec2(request.region), self.zone or request.zone
        reservations: dict[str, Reservation] = {}
        subnets = network.find_subnets(self.answers.subnets(request.region), request.region, self.stack)
        with translate_errors(f"choose a place in {request.region}", self.clients.clock):
            if request.market == "reservation":
                for machine_type in dict.fromkeys(node.machine_type for node in missing):
                    machines = sum(node.machine_type == machine_type for node in missing)
                    found, zone = find_reservation(ec2, machine_type, zone, machines, self.clients.clock)
                    reservations[machine_type] = found
        self.zone_ids = {subnet.zone_name: subnet.zone for subnet in subnets}
        chosen = network.subnets_in(subnets, zone, request.region)
        # Existing machines are in the security group's VPC, even if other subnets are tagged now.
        ours = [subnet for subnet in chosen if self.group is None or subnet.vpc == self.group.vpc]
        if not ours:
            message = f"{request.region}: the job's machines are in another VPC than its subnets are now"
            raise ProvisionError("not_offered", message, scope="region")
        return ours, reservations

    def _make(self, vpc: str, *, placed: bool) -> tuple[str, str | None]:
        """Create security group, role and placement group; return the instance profile's ARN and the placement group's
        name.

        Idempotent; callers retry, since AWS is eventually consistent.
        """
        request = self.request
        ec2 = self.clients.ec2(request.region)
        with translate_errors(f"prepare the launch in {request.region}", self.clients.clock):
            if self.group is None:
                shared = shared_profile(self.stack, request)
                self.group = network.make_group(ec2, request, vpc, placement=placed, shared_profile=shared)
            if len(request.nodes) > 1:
                network.connect_peers(ec2, self.group.group)
            profile = self.group.shared_profile or self._own_profile()
            placement = network.make_placement_group(ec2, request) if placed else None
        return profile, placement

    def _own_profile(self) -> str:
        region = self.request.region
        token = self.request.token
        profile = self.profiles.of_launch(token)
        if profile is None:
            profile = make_identity(self.clients.iam(region), self.request, self.clients.partition(region))
            self.profiles.add(profile, token)
        return profile

    # -- the machines

    def _start_in(self, place: Place, missing: Sequence[NodeRequest], images: Mapping[str, Image]) -> None:
        """Start the missing machines in one zone; after a final refusal those already started are terminated."""
        nodes = {node.node: node for node in missing}
        started = all_or_none(
            list(nodes),
            lambda name: self._start_one(place, nodes[name], images[nodes[name].machine_type]),
            self._end,
            at_once=_AT_ONCE,
        )
        self.machines |= started
        self.started = tuple(started)
        self.zone = place.subnet.zone_name

    def _end(self, started: Mapping[str, str]) -> None:
        """Terminate the started machines of a launch after EC2 refused another one.

        The call is retried, since EC2 may not know a new machine yet. Errors are only logged, so that the caller raises
        the refusal; terminate() cleans up later."""
        self.has_begun = True
        left = set(started.values())

        def end() -> None:
            left.intersection_update(terminate(self.clients, self.request.region, left))
            if left:
                raise ProvisionError("transient", f"EC2 does not know {', '.join(sorted(left))} yet", scope="region")

        try:
            retry(end, timeout_s=_UNSEEN_S, clock=self.clients.clock)
        except ProvisionError as error:
            log.warning("%s: after a launch that was refused: %s", self.request.job_id, error)

    def _start_one(self, place: Place, node: NodeRequest, image: Image) -> str:
        """Start one machine and return its instance id. Throttled or unanswered calls are retried with the same client
        token."""
        request, clock = self.request, self.clients.clock
        zone = place.subnet.zone_name
        token = self._client_token(node.node, zone)
        parameters = run_instances(request, node, place, image, token)

        def start() -> str:
            self._await_profile(place.profile_arn)
            with translate_errors(f"start {node.node} ({request.market} {node.machine_type}) in {zone}", clock):
                answer = self.clients.launcher(request.region).run_instances(**parameters)
            self.profiles.accept(place.profile_arn)
            return answer["Instances"][0]["InstanceId"]

        def learn() -> str:
            try:
                return start()
            except ProvisionError as error:
                if _NO_PROFILE in str(error):
                    self.profiles.refuse(place.profile_arn)
                    self.profiles.forget_launch(self.request.token)
                    error.retry_after = self.profiles.wait_s(place.profile_arn)
                raise

        try:
            return retry(learn, timeout_s=RETRY_TIMEOUT_S, clock=clock)
        except ProvisionError as error:
            self._check_role(error)
            if error.code != "IdempotentParameterMismatch":
                raise
            # An earlier call succeeded and its answer was lost; since then a parameter has changed, e.g. the image.
            return self._started_before(token, error)

    def _await_profile(self, arn: str) -> None:
        """Raise ProvisionError(transient) until a new instance profile is expected to have propagated to EC2."""
        wait = self.profiles.wait_s(arn)
        if wait > 0:
            message = f"the machines' role was made just now; EC2 is expected to know it in {wait:.0f} s"
            raise ProvisionError(
                "transient", message, scope="region", code="NewProfile", retry_after=wait, is_unsent=True
            )

    def _check_role(self, error: ProvisionError) -> None:
        """Raise ProvisionError(invalid) if EC2 does not know the stack's profile. (A launch's new profile may only need
        time.)"""
        profile = self.group.shared_profile if self.group is not None else ""
        if profile and _NO_PROFILE in str(error):
            region = self.request.region
            message = (
                f"{profile}, the role of the infra stack, is not in this account: `cloudgpu infra status --cloud aws "
                f"--region {region}` looks what is there, `cloudgpu infra up` makes it again"
            )
            raise ProvisionError("invalid", message, scope="region", code="NoProfile") from error

    def _started_before(self, token: str, error: ProvisionError) -> str:
        """Return the machine that was started with a client token. Raises ProvisionError(transient) if it is not
        listed."""
        clock, request = self.clients.clock, self.request
        until = clock.monotonic() + _UNSEEN_S
        while True:
            seen = self.sightings.of_owner(request.region, request.owner.name, since=clock.monotonic())
            for one in seen.values():
                if one.client_token == token:
                    return one.instance
            if clock.monotonic() > until:
                raise ProvisionError("transient", f"{error}; it cannot be seen yet", code=error.code) from error
            pause(clock, _POLL_S)

    # -- undo

    def _undo(self) -> None:
        """Delete the launch's resources; errors are logged, and terminate() deletes the rest."""
        request = self.request
        self.profiles.forget_launch(request.token)
        with cleaning_up(request.job_id):
            Teardown(self.clients, self.sightings, request.region, request.token, request.owner.name).run()


def known_stack(region: str) -> Infrastructure | None:
    """Return the outputs of a region's infra stack; None: there is none. Raises ProvisionError if its file is
    damaged."""
    try:
        return load("aws", region)
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="region") from error
