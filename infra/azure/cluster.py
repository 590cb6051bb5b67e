"""All of it in one: network, bucket, role and fleet."""

from typing import NotRequired, TypedDict

import pulumi

from ...provisioners.azure.names import part_of
from ..arguments import check_arguments
from ..components import arguments_of_part
from .bucket import PREFIX, JobBucket, JobBucketArgs
from .fleet import GpuFleet, GpuFleetArgs
from .network import GpuNetwork
from .resource_groups import TYPES
from .role import MachineRole


class GpuClusterArgs(TypedDict):
    """Arguments of GpuCluster. See GpuFleetArgs for those with the same names."""

    region: str
    """Azure's name of the region."""
    machine_type: str
    """Azure's size."""
    accelerator: NotRequired[str]
    """Canonical name of its GPU; omitted: it has none."""
    gpus: NotRequired[str]
    """GPUs of a machine."""
    market: NotRequired[str]
    """`on-demand`, `spot` or `reservation`; omitted: on-demand."""
    reservation: NotRequired[str]
    """Of market reservation: resource id of the capacity reservation group."""
    on_demand: NotRequired[int]
    """So many machines of a fleet of market spot are bought on demand."""
    size: NotRequired[int]
    """How many machines; omitted: 1."""
    disk_gb: NotRequired[float]
    """Of each machine's disk; omitted: 100."""
    zones: NotRequired[list[str]]
    """Zones in which machines may be; omitted: Azure chooses in the region."""
    peers: NotRequired[bool]
    """The machines talk to each other."""
    lifetime_seconds: NotRequired[int]
    """As in GpuFleetArgs."""
    heal: NotRequired[bool]
    """Machines that do not answer, and Spot machines that were taken, are replaced by Azure; omitted: true."""
    image: str
    """`publisher:offer:sku:version`."""
    user_data: pulumi.Input[str]
    """What machines boot with: cloud-init's, as text."""
    subscription: pulumi.Input[str]
    """Id of the subscription."""
    container: NotRequired[pulumi.Input[str]]
    """Resource id of a container of Blob Storage that is there, and stays: machines may read and write its folder
    `jobs`. Omitted: a storage account with one is made."""
    users: NotRequired[list[pulumi.Input[str]]]
    """Object ids of those who may read and write all of the container that is made."""
    protect: NotRequired[bool]
    """Pulumi does not delete the storage account that is made; omitted: true."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Omitted: made of the project and the stack."""
    expires: NotRequired[pulumi.Input[float]]
    """Epoch seconds after which anybody may remove it, by its tag; omitted: never."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of everything in it."""


_SHARED = ("region", "owner", "tags")
"""Arguments that the cluster's parts have in common."""


class GpuCluster(pulumi.ComponentResource):
    """A network that nothing comes in to, a container for jobs, an identity that reaches their folder in it, and a
    fleet. All but the storage account is in one resource group."""

    group: pulumi.Output[str]
    """Resource id of the scale set."""
    resource_group: pulumi.Output[str]
    """Name of the resource group."""
    identity_client_id: pulumi.Output[str]
    """Client id of the machines' identity: how they ask for their token."""
    container_id: pulumi.Output[str]
    """Resource id of the container."""
    job_dir: pulumi.Output[str]
    """`az://CONTAINER@ACCOUNT/jobs`: what the machines can reach."""
    template_hash: pulumi.Output[str]
    """16 hex digits: fleets with the same one have the same machines."""

    def __init__(self, name: str, args: GpuClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuCluster", name, args, GpuClusterArgs)
        super().__init__(f"{TYPES}:GpuCluster", name, {}, opts)
        inside = pulumi.ResourceOptions(parent=self)
        network = GpuNetwork(name, arguments_of_part(args, (*_SHARED, "expires")), inside)
        self.container_id = self._container(name, args)
        identity = arguments_of_part(
            args,
            (*_SHARED, "subscription"),
            resource_group=network.resource_group,
            container=self.container_id,
            prefix=PREFIX,
        )
        role = MachineRole(f"{name}-role", identity, inside)
        said = {key: value for key, value in args.items() if key in GpuFleetArgs.__annotations__}
        fleet: GpuFleetArgs = {**said, "subnet": network.subnet_id}  # type: ignore[typeddict-item] # of the same names
        fleet["fleet_name"] = name
        fleet["machine_role"], fleet["resource_group"] = role.identity_id, network.resource_group
        made = GpuFleet(f"{name}-fleet", fleet, inside)
        self.group, self.resource_group, self.template_hash = made.group, network.resource_group, made.template_hash
        self.identity_client_id, self.job_dir = role.client_id, self.container_id.apply(_job_dir)
        names = ("group", "resource_group", "identity_client_id", "container_id", "job_dir", "template_hash")
        self.register_outputs({one: getattr(self, one) for one in names})

    def _container(self, name: str, args: GpuClusterArgs) -> pulumi.Output[str]:
        """Without the expiry: what is in it outlives the machines."""
        given = args.get("container")
        if given is not None:
            return pulumi.Output.from_input(given)
        told = {key: value for key, value in args.items() if key in JobBucketArgs.__annotations__}
        made = JobBucket(f"{name}-data", told, pulumi.ResourceOptions(parent=self))  # type: ignore[arg-type] # likewise
        return made.container_id


def _job_dir(container: str) -> str:
    """Of a container, by its resource id."""
    return f"az://{part_of(container, 'containers')}@{part_of(container, 'storageAccounts')}/{PREFIX}"
