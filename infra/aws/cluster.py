"""Component that combines network, bucket, role and fleet."""

from typing import NotRequired, TypedDict

import pulumi

from ..arguments import check_arguments
from ..components import arguments_of_part, child_of
from .bucket import JobBucket
from .children import TYPES
from .fleet import GpuFleet
from .network import GpuNetwork
from .role import MachineRole


class GpuClusterArgs(TypedDict):
    """Arguments of GpuCluster: the common arguments of its components. To set other arguments, use these components
    directly."""

    machine_type: str
    """EC2 instance type; see GpuFleetArgs."""
    size: pulumi.Input[int]
    """Number of machines."""
    zones: NotRequired[list[str]]
    """Zones for the machines; see GpuFleetArgs. The network always covers all zones of the region."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot` or `reservation`; see GpuFleetArgs."""
    on_demand: NotRequired[int]
    """Number of on-demand machines in a spot fleet; see GpuFleetArgs."""
    reservation: NotRequired[pulumi.Input[str]]
    """Id of the capacity reservation or capacity block; see GpuFleetArgs."""
    capacity_block: NotRequired[bool]
    """The reservation is a Capacity Block for ML; see GpuFleetArgs."""
    disk_gb: NotRequired[float]
    """Disk size in GB; see GpuFleetArgs."""
    peers: NotRequired[bool]
    """The machines communicate with each other; see GpuFleetArgs."""
    heal: NotRequired[bool]
    """Replace lost or unhealthy machines; see GpuFleetArgs."""
    image: NotRequired[pulumi.Input[str]]
    """AMI id; see GpuFleetArgs."""
    user_data: NotRequired[pulumi.Input[str]]
    """Boot script of the machines; see GpuFleetArgs."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry of the machines in epoch seconds; see GpuFleetArgs."""
    existing_bucket: NotRequired[pulumi.Input[str]]
    """Name of an existing bucket to use; it is not changed or deleted. Omitted: a bucket is created."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to create. Omitted: Pulumi generates one."""
    protect: NotRequired[bool]
    """Make Pulumi refuse to delete the created bucket. Default: true."""
    boundary: NotRequired[pulumi.Input[str]]
    """ARN of the permissions boundary of the machines' role."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; see GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all resources."""


_OWNED = ("owner", "tags")
_OF_FLEET = (
    *_OWNED,
    *("machine_type", "size", "zones", "market", "on_demand", "disk_gb", "peers", "heal", "image", "user_data"),
    *("reservation", "capacity_block", "expires"),
)


class GpuCluster(pulumi.ComponentResource):
    """GPU machines together with their network, bucket and role."""

    group: pulumi.Output[str]
    """Name of the Auto Scaling group."""
    job_dir: pulumi.Output[str]
    """`s3://BUCKET/jobs`: the prefix that the machines can access."""
    network_id: pulumi.Output[str]
    """Id of the VPC."""
    subnets: pulumi.Output[dict[str, str]]
    """Zone -> subnet id."""
    profile_arn: pulumi.Output[str]
    """ARN of the machines' instance profile."""

    def __init__(self, name: str, args: GpuClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuCluster", name, args, GpuClusterArgs)
        super().__init__(f"{TYPES}:GpuCluster", name, {}, opts)
        network = GpuNetwork(f"{name}-network", arguments_of_part(args, _OWNED), child_of(self))
        kept = arguments_of_part(args, (*_OWNED, "bucket", "protect"), existing=args.get("existing_bucket"))
        bucket = JobBucket(f"{name}-jobs", kept, child_of(self))
        role = MachineRole(
            f"{name}-machines", arguments_of_part(args, (*_OWNED, "boundary"), job_dir=bucket.job_dir), child_of(self)
        )
        fleet = GpuFleet(
            f"{name}-fleet",
            arguments_of_part(
                args,
                _OF_FLEET,
                fleet_name=name,
                network_id=network.network_id,
                subnets=network.subnets,
                profile_arn=role.profile_arn,
            ),
            child_of(self),
        )
        self.group, self.job_dir, self.network_id = fleet.group, bucket.job_dir, network.network_id
        self.subnets, self.profile_arn = network.subnets, role.profile_arn
        self.register_outputs(
            {
                "group": self.group,
                "job_dir": self.job_dir,
                "network_id": self.network_id,
                "subnets": self.subnets,
                "profile_arn": self.profile_arn,
            }
        )
