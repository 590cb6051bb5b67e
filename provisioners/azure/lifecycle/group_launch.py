"""Launch of a dedicated scale set for a job (`recover: fleet`).

Azure replaces lost machines, and the machines assign the job's nodes among themselves, even while no supervisor runs
(runtime/fleet/member.py).

Resources in creation order: a resource group, the machines' permission to leave the scale set, an application and a
network security group, a proximity placement group, and the scale set. The scale set uses the same template as
`cloudgpu cluster up` (template.py), and the subnet and identity of the region's infra stack. Teardown deletes the group
with its contents, as for any launch.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from ....jobspecs.fleets import FleetSpec
from ...base import Allocation, LaunchRequest, ProvisionError
from ...shared import tags
from ...shared.api_calls import cleaning_up, first_with_room, pause
from ...stacks import job_groups
from .. import operations
from ..account import refusal
from ..catalog import quotas
from ..catalog.sizes import Size, Sizes
from ..clients import Clients, Json, answer_of, ignore_not_found
from ..machine import template, vm_profile
from ..machine.images import Image, Images
from ..machine.request import zones_for
from ..machine.reservations import find_reservations
from ..names import group_name
from ..resources import network
from ..resources.identity import allow_scale_in, find_identity
from ..resources.instance_cache import InstanceCache
from ..resources.resource_groups import find_group, make_group
from .launching import make_proximity_group
from .teardown import Teardown

log = logging.getLogger("cloudgpu.provisioners.azure")


class Parts(NamedTuple):
    """Resources that the scale set uses in any zone."""

    image: Image
    at: template.NetworkAttachment
    identity: str
    """Resource ids of the identity and of the proximity placement group."""
    proximity_group: str | None
    boot: str
    """User data, see stacks.job_groups.Prepared."""


@dataclass(slots=True)
class GroupLaunch:
    """Launch of a scale set in progress. Call run() only once."""

    clients: Clients
    images: Images
    sizes: Sizes
    sightings: InstanceCache
    request: LaunchRequest
    name: str = ""
    """Name of the scale set."""
    fleet_dir: str = ""
    zone: str | None = None
    """Zone of the machines; None: no zone."""
    _some_run: bool = False
    """True if machines of a refused scale set had started, or may still exist: no other zone is tried then."""
    _has_created: bool = False
    """True if resources may exist under this token, from this call or an earlier one."""

    def run(self) -> None:
        """Create the scale set. Idempotent. Raises ProvisionError.

        Machines that have left an existing scale set are not replaced. After a final refusal all resources are removed;
        after any other error they stay, and the next launch() or terminate() with this token finds them.
        """
        prepared = job_groups.prepare(self.request, "azure")
        self.name, self.fleet_dir = prepared.fleet.name, prepared.fleet_dir
        template.check_fleet(prepared.fleet, reserved=self.request.market == "reservation")
        try:
            if not self._is_there():
                self._start(prepared)
        except ProvisionError as error:
            error.may_have_created |= self._has_created
            if error.is_final:
                self._undo()
            raise

    def _is_there(self) -> bool:
        """Return True if the scale set of an earlier call exists; one that Azure refused or is deleting is removed."""
        group = find_group(self.clients, self.request.token)
        self._has_created = group is not None
        found = None if group is None or group.is_ending else _look(self.clients, group.name, self.name)
        if found is None:
            return False
        try:
            if operations.state_of(found) != "Deleting":
                self._await_machines(f"start the machines of {self.name}")
                self.zone = _zone_of(found)
                return True
        except ProvisionError as error:
            if not error.is_final:
                raise
            log.info("%s: %s", self.request.job_id, error)
        self._clean()
        return False

    # -- prerequisites

    def _start(self, prepared: job_groups.Prepared) -> None:
        request, clients, fleet = self.request, self.clients, prepared.fleet
        node, there = request.nodes[0], prepared.infrastructure
        types = [one.machine_type for one in request.nodes]
        image = self.images.find(request.region, node)
        size = self.sizes.find(request.region, node.machine_type, request.market)
        zones, reservation = self._places(size, types)
        quotas.check(clients, region=request.region, market=request.market, machine_types=types)
        self._has_created = True
        make_group(clients, request, (), there.machine_role)
        identity = find_identity(clients, there.machine_role)
        allow_scale_in(clients, request, identity, there.stack)
        attached = network.make_network(clients, request, there)
        at = template.NetworkAttachment(*attached, reservation=reservation)
        close = make_proximity_group(clients, request) if template.is_close(fleet) else None
        made = Parts(image, at, identity.id, close, prepared.boot)
        first_with_room(
            zones,
            lambda zone: self._start_in(zone, fleet, made),
            turn=request.attempt - 1,
            has_begun=lambda: self._some_run,
            on_refusal=lambda error: log.info("%s: %s", request.job_id, error),
        )

    def _places(self, size: Size, types: Sequence[str]) -> tuple[list[str | None], str | None]:
        """Return the zones to try, in order, and the machines' capacity reservation group. Raises ProvisionError."""
        request = self.request
        if request.market != "reservation":
            return zones_for([size], request.zone, request.region), None
        found = find_reservations(self.clients, request.region, [request.zone] if request.zone else [], types)
        return [found.zone], found.groups[types[0]]

    # -- machines

    def _start_in(self, zone: str | None, fleet: FleetSpec, made: Parts) -> None:
        """Start all machines in one zone; a refused scale set is removed."""
        request, clients = self.request, self.clients
        here = fleet.model_copy(update={"zones": () if zone is None else (zone,)})
        where = f"zone {zone} of {request.region}" if zone else request.region
        doing = f"start {fleet.size} × {request.market} {fleet.machine_type} in {where}"
        body = scale_set_body(request, here, made)
        sets, group = clients.compute.virtual_machine_scale_sets, group_name(request.token)
        begin = partial(sets.begin_create_or_update, group, self.name, body)
        try:
            self._await_machines(doing, clients.ask(doing, lambda: operations.start_operation(begin)).url)
        except ProvisionError as error:
            if error.is_final:
                self._clean_refused()
            raise
        self.zone = zone

    def _await_machines(self, doing: str, url: str = "") -> None:
        """Wait until Azure has created or refused the machines. Raises ProvisionError.

        After operations.START_S it returns although creation continues; observe() then reports the result. `url`: URL
        of the operation that creates them, if known.
        """
        clients, group, clock = self.clients, group_name(self.request.token), self.clients.clock
        begun, pauses, state = clock.monotonic(), operations.pauses(), ""
        while clock.monotonic() <= begun + operations.START_S:
            found = _look(clients, group, self.name)
            if found is None:
                operations.check_on_its_way(clients, url, doing, clock.monotonic() - begun, "the scale set")
            elif (state := operations.state_of(found)) == "Succeeded":
                return
            elif state in operations.ENDED:
                error = operations.operation_error(clients, url, doing) or _error_of(clients, group, self.name)
                raise refusal(error or {"code": state, "message": f"the scale set is {state}"}, doing)
            pause(clock, next(pauses))
        log.info("%s: %s: it is %s still, and is not waited for", self.request.job_id, doing, state)

    # -- cleanup after a refusal

    def _clean_refused(self) -> None:
        """Remove the refused scale set. If that fails, its name remains taken and no other zone is tried."""
        cleaned = False
        with cleaning_up(self.request.job_id):
            self._clean()
            cleaned = True
        self._some_run |= not cleaned

    def _clean(self) -> None:
        """Delete the scale set with its machines, and wait until it is gone."""
        sets, group = self.clients.compute.virtual_machine_scale_sets, group_name(self.request.token)
        seen = self.sightings.of_launch(self.request.token, since=self.clients.clock.monotonic())
        self._some_run = any(one.is_settled for one in seen.values())
        begin = partial(sets.begin_delete, group, self.name, force_deletion=True)
        doing = f"delete the scale set {self.name} in {group}"
        operations.delete(self.clients, doing, begin, partial(sets.get, group, self.name))

    def _undo(self) -> None:
        """Start removing all resources; terminate() removes what fails here."""
        with cleaning_up(self.request.job_id):
            Teardown(self.clients, self.sightings, self.request.token).begin()


def scale_set_body(request: LaunchRequest, fleet: FleetSpec, made: Parts) -> Json:
    """Return the request body that creates the scale set. Pure function."""
    custom_data = base64.b64encode(made.boot.encode()).decode()
    profile = template.profile(fleet, made.image, made.at, custom_data) | vm_profile.security()
    properties = template.scale_set(fleet, profile)
    if made.proximity_group is not None:
        properties["proximityPlacementGroup"] = {"id": made.proximity_group}
    body: Json = {
        "location": request.region,
        "tags": tags.launch_tags(request),
        "sku": {"name": fleet.machine_type, "tier": "Standard", "capacity": fleet.size},
        "identity": vm_profile.identity(made.identity),
        "properties": properties,
    }
    zones = template.zones_of(fleet)
    return {**body, "zones": zones} if zones else body


def state_of(clients: Clients, sightings: InstanceCache, allocation: Allocation) -> job_groups.GroupState:
    """Return the state of a launch's scale set. Raises ProvisionError.

    It takes one or two calls, plus one or two if the scale set has failed; concurrent callers share the list of
    machines.
    """
    group, name = group_name(allocation.token), allocation.details[job_groups.GROUP]
    found, seen = _look(clients, group, name), sightings.of_launch(allocation.token)
    trouble = None
    if found is not None and operations.state_of(found) == "Failed":
        error = _error_of(clients, group, name) or {"code": "Failed", "message": "the scale set is Failed"}
        trouble = refusal(error, f"start the machines of {name}")
    return job_groups.GroupState(found is not None, len(seen), trouble)


def _look(clients: Clients, group: str, name: str) -> Json | None:
    """Return the scale set; None: it does not exist."""

    def ask() -> Json | None:
        with ignore_not_found():
            return cast("Json", clients.compute.virtual_machine_scale_sets.get(group, name, cls=answer_of))
        return None

    return clients.ask(f"look at the scale set {name}", ask)


def _error_of(clients: Clients, group: str, name: str) -> Json | None:
    """Return the error from the scale set's instance view, which remains available later; None: none."""

    def ask() -> Json | None:
        with ignore_not_found():
            view = clients.compute.virtual_machine_scale_sets.get_instance_view(group, name, cls=answer_of)
            return operations.error_in(cast("Json", view))
        return None

    return clients.ask(f"look at the scale set {name}", ask)


def _zone_of(found: Json) -> str | None:
    """Return the zone of a scale set in one zone; None: no zone, or several."""
    zones = found.get("zones") or []
    return str(zones[0]) if len(zones) == 1 else None
