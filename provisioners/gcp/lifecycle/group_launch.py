"""Launch of a dedicated instance group for a job (`recover: fleet`): see provisioners/stacks/job_groups.py.

Resources in creation order: with several nodes a firewall rule, a placement policy if the machine type supports one, an
instance template, and the managed instance group, which then creates the machines. They are built by the same functions
as the Pulumi component for fleets (template.py), and named by the launch token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....jobspecs.fleets import FleetSpec
from ...base import Allocation, LaunchRequest, NodeState, ProvisionError
from ...shared import tags
from ...shared.api_calls import cleaning_up, mark_may_have_created, retry
from ...stacks.fleet_queries import reserved_for
from ...stacks.job_groups import GroupState, Prepared, allocation, prepare, states
from .. import operations
from ..catalog import quotas
from ..clients import RETRY_TIMEOUT_S, WRITE_S, Clients
from ..labels import instance_prefix, launch_name, to_description, to_labels
from ..machine.images import Images
from ..machine.instance_spec import longest_run_s
from ..machine.request import request_id
from ..machine.template import EXPIRES_PORT, group, is_placed, placement, template
from ..operations import Operation
from ..resources import instance_groups, network
from ..resources.instance_cache import InstanceCache
from ..resources.instance_groups import GROUPS, Groups
from ..resources.stack_lookup import known_stack, machine_account
from .teardown import Teardown

if TYPE_CHECKING:
    from google.cloud import compute_v1

log = logging.getLogger("cloudgpu.provisioners.gcp")

_MAKE_S = 120.0
"""Timeout in seconds for creating a template or a group, without its machines."""
_OFF = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
"""States in which only the machine's disk is billed."""


@dataclass(frozen=True, slots=True)
class GroupLaunch:
    """Launch of a dedicated group in progress. Idempotent, also if several processes run it at the same time."""

    clients: Clients
    images: Images
    sightings: InstanceCache
    request: LaunchRequest

    def run(self) -> Allocation:
        """Create the group and return the allocation. Idempotent. Raises ProvisionError.

        A group that was created once under this token is never recreated, even if it was deleted since. After a final
        refusal everything that this call created is removed; after any other error everything stays, and the next
        launch() or terminate() with this token finds it.
        """
        prepared = prepare(self.request, "gcp")
        done = operations.of_things(self.clients, GROUPS, self._name, self.request.region)
        inserts = [one for one in done if one.verb == "insert"]
        if not any(one.finished and one.error is None for one in inserts):
            try:
                self._make(prepared, inserts)
            except ProvisionError as error:
                error.may_have_created |= bool(inserts)
                if error.is_final:
                    self._undo()
                raise
        return allocation(self.request, "gcp", self._name, prepared.fleet_dir)

    @property
    def _name(self) -> str:
        return launch_name(self.request.token)

    def _make(self, prepared: Prepared, inserts: list[Operation]) -> None:
        request, clients = self.request, self.clients
        stack = known_stack(clients, request.region)
        if stack is None:
            message = (
                f"the infra stack that is known for gcp {request.region} is not of project {clients.project}: "
                f"`cloudgpu infra up --cloud gcp --region {request.region}` makes one"
            )
            raise ProvisionError("invalid", message, scope="region")
        image = self.images.find(request.nodes[0])
        # Launches enlarge the disk to fit the image; a cluster with a disk that is too small fails when it is planned.
        fleet = prepared.fleet.model_copy(update={"disk_gb": max(prepared.fleet.disk_gb, image.min_gb)})
        fleet, reservation = self._reserved(fleet)
        run_s = longest_run_s(fleet)
        quotas.check(clients.rest, region=fleet.region, market=fleet.market, nodes=list(request.nodes), run_s=run_s)
        at = network.find_attachment(clients, request.region, stack)
        account = machine_account(clients, stack, request)
        with mark_may_have_created():
            retry(lambda: self._connect(at), timeout_s=RETRY_TIMEOUT_S, clock=clients.clock)
            properties = template(
                fleet,
                at=at,
                image=image.source,
                service_account=account,
                labels=to_labels(tags.launch_tags(request)),
                script=prepared.boot,
                reservation=reservation,
                policies=[self._make_policy()] if is_placed(fleet) else [],
                called=self._name,
                reads_secrets=bool(request.secrets),
            )
            self._make_group(fleet, self._make_template(properties), inserts)

    def _reserved(self, fleet: FleetSpec) -> tuple[FleetSpec, str | None]:
        """Return the fleet with its reservation's zone, and the reservation to target by name, if any. Raises
        ProvisionError."""
        if fleet.market != "reservation":
            return fleet, None
        found = reserved_for(fleet)
        return fleet.model_copy(update={"zones": () if found.zone is None else (found.zone,)}), found.name

    def _connect(self, at: network.Attachment) -> None:
        """Create the firewall rules. Idempotent."""
        network.close(self.clients, at)
        if len(self.request.nodes) > 1:
            network.connect_peers(self.clients, self.request, at)

    @property
    def _description(self) -> str:
        return to_description(tags.launch_tags(self.request))

    def _make_policy(self) -> str:
        """Create the placement policy and return its name, which a template refers to."""
        from google.cloud import compute_v1

        clients, region = self.clients, self.request.region
        wanted = compute_v1.ResourcePolicy({**placement(self._name), "description": self._description})

        def insert(call_id: str) -> compute_v1.Operation:
            request = compute_v1.InsertResourcePolicyRequest(
                project=clients.project, region=region, resource_policy_resource=wanted, request_id=call_id
            )
            return clients.policies.insert_unary(request, retry=None, timeout=WRITE_S)

        self._make_part("placement policy", insert)
        return self._name

    def _make_template(self, properties: dict[str, object]) -> str:
        """Create the instance template and return its URL."""
        from google.cloud import compute_v1

        clients = self.clients
        wanted = compute_v1.InstanceTemplate(
            {"name": self._name, "description": self._description, "properties": properties}
        )

        def insert(call_id: str) -> compute_v1.Operation:
            request = compute_v1.InsertInstanceTemplateRequest(
                project=clients.project, instance_template_resource=wanted, request_id=call_id
            )
            return clients.templates.insert_unary(request, retry=None, timeout=WRITE_S)

        self._make_part("template", insert)
        return f"projects/{clients.project}/global/instanceTemplates/{self._name}"

    def _make_part(self, kind: str, insert: Callable[[str], compute_v1.Operation]) -> None:
        def is_there() -> bool:
            return bool(
                instance_groups.find(self.clients, kind, self._name, self.request.region).of(self.request.region)
            )

        operations.make(self.clients, insert, is_there, doing=f"make the {kind} {self._name}", retry_timeout_s=_MAKE_S)

    def _make_group(self, fleet: FleetSpec, made_of: str, inserts: list[Operation]) -> None:
        """Create the group. Its request id is derived from the launch, so retries by any process are idempotent; after
        a failed call the id changes."""
        from google.cloud import compute_v1

        request, clients = self.request, self.clients
        wanted = group(fleet, called=self._name, base=instance_prefix(request.token).rstrip("-"), template=made_of)
        wanted["description"] = self._description
        if request.expires is not None:
            wanted["named_ports"] = [{"name": f"{EXPIRES_PORT}{int(request.expires)}", "port": 1}]

        def insert(call_id: str) -> compute_v1.Operation:
            call = compute_v1.InsertRegionInstanceGroupManagerRequest(
                project=clients.project,
                region=request.region,
                instance_group_manager_resource=compute_v1.InstanceGroupManager(wanted),
                request_id=call_id,
            )
            return clients.groups.insert_unary(call, retry=None, timeout=WRITE_S)

        def is_there() -> bool:
            return instance_groups.get(clients, self._name, request.region) is not None

        failed = [one.name for one in inserts if one.finished]
        own_id = request_id(request.token, self._name, request.region, *failed[-1:])
        doing = f"make the group {self._name}"
        operations.make(clients, insert, is_there, doing=doing, retry_timeout_s=_MAKE_S, request_id=own_id)

    def _undo(self) -> None:
        """Remove what this call created; terminate() removes what fails here."""
        request = self.request
        with cleaning_up(request.job_id):
            Teardown(self.clients, self.sightings, request.token, request.owner.name, region=request.region).run()


def observe(clients: Clients, sightings: InstanceCache, known: Groups, made: Allocation) -> list[NodeState]:
    """Return the node states of a grouped launch. Raises ProvisionError.

    It takes two calls, which concurrent callers share, and one more if the group lacks machines.
    """
    region, owner = made.region, made.owner
    found = known.of_launch(made.token, region)
    if found is None:
        return states(made, GroupState(exists=False, machines=0))
    machines = [one for one in sightings.of_launch(made.token, owner, region=region) if one.status not in _OFF]
    why = instance_groups.trouble(clients, found) if len(machines) < found.size else None
    return states(made, GroupState(True, len(machines), why, found.size))
