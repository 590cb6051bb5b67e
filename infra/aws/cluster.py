"""All of it in one: network, bucket, role and fleet."""

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
    """Arguments of GpuCluster: those of its parts that most programs set. Others take the components themselves."""

    machine_type: str
    """As in GpuFleetArgs."""
    size: pulumi.Input[int]
    """How many machines."""
    zones: NotRequired[list[str]]
    """As in GpuFleetArgs; the network is in all of the region's all the same."""
    market: NotRequired[str]
    """As in GpuFleetArgs."""
    on_demand: NotRequired[int]
    """As in GpuFleetArgs."""
    reservation: NotRequired[pulumi.Input[str]]
    """As in GpuFleetArgs."""
    capacity_block: NotRequired[bool]
    """As in GpuFleetArgs."""
    disk_gb: NotRequired[float]
    """As in GpuFleetArgs."""
    peers: NotRequired[bool]
    """As in GpuFleetArgs."""
    heal: NotRequired[bool]
    """As in GpuFleetArgs."""
    image: NotRequired[pulumi.Input[str]]
    """As in GpuFleetArgs."""
    user_data: NotRequired[pulumi.Input[str]]
    """As in GpuFleetArgs."""
    expires: NotRequired[pulumi.Input[float]]
    """As in GpuFleetArgs."""
    existing_bucket: NotRequired[pulumi.Input[str]]
    """Name of a bucket that is there: it is used, and stays. Omitted: one is made."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to make; omitted: Pulumi makes one up."""
    protect: NotRequired[bool]
    """Pulumi refuses to delete the bucket that is made; omitted: it does."""
    boundary: NotRequired[pulumi.Input[str]]
    """ARN of the permissions boundary of the machines' role."""
    owner: NotRequired[str]
    """As in GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of everything."""


_OWNED = ("owner", "tags")
_OF_FLEET = (
    *_OWNED,
    *("machine_type", "size", "zones", "market", "on_demand", "disk_gb", "peers", "heal", "image", "user_data"),
    *("reservation", "capacity_block", "expires"),
)


class GpuCluster(pulumi.ComponentResource):
    """Machines with GPUs, and what they stand in."""

    group: pulumi.Output[str]
    """Name of the Auto Scaling group."""
    job_dir: pulumi.Output[str]
    """`s3://BUCKET/jobs`: what the machines can reach."""
    network_id: pulumi.Output[str]
    """Of the VPC."""
    subnets: pulumi.Output[dict[str, str]]
    """Zone -> subnet id."""
    profile_arn: pulumi.Output[str]
    """Of the machines' instance profile."""

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
