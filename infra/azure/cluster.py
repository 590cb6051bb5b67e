"""Component that combines network, bucket, role and fleet."""

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
    """Arguments of GpuCluster. Arguments that GpuFleetArgs has too mean the same there."""

    region: str
    """Name of the Azure region."""
    machine_type: str
    """Azure VM size."""
    accelerator: NotRequired[str]
    """Canonical name of the machine's GPU. Omitted: no GPU."""
    gpus: NotRequired[str]
    """Number of GPUs per machine."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot` or `reservation`."""
    reservation: NotRequired[str]
    """With market reservation, the resource id of the capacity reservation group."""
    on_demand: NotRequired[int]
    """Number of machines of a spot fleet that are bought on demand."""
    size: NotRequired[int]
    """Number of machines. Default: 1."""
    disk_gb: NotRequired[float]
    """Size of each machine's disk in GB. Default: 100."""
    zones: NotRequired[list[str]]
    """Zones for the machines. Default: Azure chooses in the region."""
    peers: NotRequired[bool]
    """The machines communicate with each other."""
    lifetime_seconds: NotRequired[int]
    """Lifetime of a machine in seconds; see GpuFleetArgs."""
    heal: NotRequired[bool]
    """Let Azure replace unresponsive and evicted Spot machines. Default: true."""
    image: str
    """Image as `publisher:offer:sku:version`."""
    user_data: pulumi.Input[str]
    """Custom data of the machines: cloud-init's input, as text."""
    subscription: pulumi.Input[str]
    """Id of the subscription."""
    container: NotRequired[pulumi.Input[str]]
    """Resource id of an existing Blob Storage container, which is kept: machines may read and write its folder `jobs`.
    Omitted: a storage account with a container is created."""
    users: NotRequired[list[pulumi.Input[str]]]
    """Object ids of users who may read and write the whole created container."""
    protect: NotRequired[bool]
    """Make Pulumi refuse to delete the created storage account. Default: true."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry in epoch seconds, set as a tag: after it any cleanup may delete the resources. Default: never."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all resources."""


_SHARED = ("region", "owner", "tags")
"""Arguments that all parts of the cluster share."""


class GpuCluster(pulumi.ComponentResource):
    """Network without inbound access, container for jobs, identity with access to the jobs' folder, and fleet.

    All but the storage account is in one resource group.
    """

    group: pulumi.Output[str]
    """Resource id of the scale set."""
    resource_group: pulumi.Output[str]
    """Name of the resource group."""
    identity_client_id: pulumi.Output[str]
    """Client id of the machines' managed identity, with which they request tokens."""
    container_id: pulumi.Output[str]
    """Resource id of the container."""
    job_dir: pulumi.Output[str]
    """`az://CONTAINER@ACCOUNT/jobs`: the prefix that the machines can access."""
    template_hash: pulumi.Output[str]
    """Hash of the machines' definition, 16 hex digits: equal for fleets with identical machines."""

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
        fleet: GpuFleetArgs = {**said, "subnet": network.subnet_id}  # type: ignore[typeddict-item] # same names
        fleet["fleet_name"] = name
        fleet["machine_role"], fleet["resource_group"] = role.identity_id, network.resource_group
        made = GpuFleet(f"{name}-fleet", fleet, inside)
        self.group, self.resource_group, self.template_hash = made.group, network.resource_group, made.template_hash
        self.identity_client_id, self.job_dir = role.client_id, self.container_id.apply(_job_dir)
        names = ("group", "resource_group", "identity_client_id", "container_id", "job_dir", "template_hash")
        self.register_outputs({one: getattr(self, one) for one in names})

    def _container(self, name: str, args: GpuClusterArgs) -> pulumi.Output[str]:
        """Return the given container's resource id, or create one without expiry: its data outlives the machines."""
        given = args.get("container")
        if given is not None:
            return pulumi.Output.from_input(given)
        arguments = {key: value for key, value in args.items() if key in JobBucketArgs.__annotations__}
        made = JobBucket(f"{name}-data", arguments, pulumi.ResourceOptions(parent=self))  # type: ignore[arg-type]
        return made.container_id


def _job_dir(container: str) -> str:
    """Return the URL of the jobs' folder in a container, given by its resource id."""
    return f"az://{part_of(container, 'containers')}@{part_of(container, 'storageAccounts')}/{PREFIX}"
