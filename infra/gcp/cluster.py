"""Component that combines network, bucket, service account and fleet."""

from typing import NotRequired, TypedDict

import pulumi

from ..arguments import check_arguments
from ..components import arguments_of_part, child_of
from .bucket import PREFIX, JobBucket
from .common import TYPES, shortened
from .fleet import GpuFleet
from .network import GpuNetwork
from .role import MachineRole


class GpuClusterArgs(TypedDict):
    """Arguments of GpuCluster: GpuFleet's arguments that describe the machines, and arguments of the other parts."""

    project: pulumi.Input[str]
    """Id of the project."""
    region: str
    """Name of the Google Cloud region."""
    machine_type: str
    """Machine type, e.g. `g2-standard-8`."""
    accelerator: NotRequired[str]
    """Canonical name of the GPU. Default: none."""
    gpus: NotRequired[str]
    """Number of GPUs per machine, e.g. `8`. Default: 1 with an accelerator."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot` or `reservation`; see GpuFleetArgs."""
    on_demand: NotRequired[int]
    """Number of on-demand machines in a spot fleet; see GpuFleetArgs. Default: 0."""
    reservation: NotRequired[str]
    """Reservation for market reservation; see GpuFleetArgs."""
    size: int
    """Number of machines."""
    zones: NotRequired[list[str]]
    """Zones for the machines. Default: three zones that Compute Engine chooses."""
    disk_gb: NotRequired[float]
    """Size of each machine's disk in GB. Default: 100."""
    peers: NotRequired[bool]
    """The machines communicate: they are in one zone and may connect to each other; see GpuFleetArgs. Default:
    false."""
    lifetime_seconds: NotRequired[int]
    """Seconds after which a machine is deleted. Default: never."""
    heal: NotRequired[bool]
    """Recreate machines that disappear. Default: true."""
    existing_bucket: NotRequired[pulumi.Input[str]]
    """Name of an existing bucket to use; it is not changed or deleted. Omitted: a bucket is created."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to create, globally unique in Google Cloud. Omitted: Pulumi generates one."""
    protect: NotRequired[bool]
    """Make Pulumi refuse to delete the bucket. Default: true."""
    nat: NotRequired[bool]
    """Give machines internet access through Cloud NAT. Default: false, they reach only Google's APIs."""
    image: pulumi.Input[str]
    """Image of the machines; see GpuFleetArgs."""
    user_data: pulumi.Input[str]
    """Startup script of the machines."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry in epoch seconds: after it any cleanup may delete the machines. Default: never."""
    owner: NotRequired[str]
    """Value of the label `cloudgpu-owner`. Default: derived from the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional labels of all resources that support labels."""


_OF_BUCKET = ("region", "bucket", "protect", "owner", "labels")
_OF_FLEET = (
    "region",
    "machine_type",
    "accelerator",
    "gpus",
    "market",
    "on_demand",
    "reservation",
    "size",
    "zones",
    "disk_gb",
    "peers",
    "lifetime_seconds",
    "heal",
    "image",
    "user_data",
    "expires",
    "owner",
    "labels",
)


class GpuCluster(pulumi.ComponentResource):
    """GPU fleet together with its network, bucket and service account."""

    group: pulumi.Output[str]
    """Self link of the managed instance group."""
    job_dir: pulumi.Output[str]
    """`gs://BUCKET/jobs`: the prefix that the machines may read and write."""
    service_account: pulumi.Output[str]
    """E-mail address of the machines' service account."""

    def __init__(self, name: str, args: GpuClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuCluster", name, args, GpuClusterArgs)
        super().__init__(f"{TYPES}:GpuCluster", name, {}, opts)
        network = GpuNetwork(
            f"{name}-net",
            {"region": args["region"], "network_name": f"cloudgpu-{name}", "nat": args.get("nat", False)},
            opts=child_of(self),
        )
        kept = arguments_of_part(args, _OF_BUCKET, existing=args.get("existing_bucket"))
        bucket = JobBucket(f"{name}-jobs", kept, opts=child_of(self))
        role = MachineRole(
            f"{name}-machine",
            {
                "project": args["project"],
                "account_id": shortened(f"cloudgpu-{name}", 30),
                "bucket": bucket.bucket,
                "prefix": PREFIX,
                "leave_group": True,
            },
            opts=child_of(self),
        )
        machines = arguments_of_part(
            args,
            _OF_FLEET,
            network=network.network_link,
            subnetwork=network.subnetwork,
            service_account=role.email,
        )
        fleet = GpuFleet(name, machines, opts=child_of(self))
        self.group, self.job_dir, self.service_account = fleet.group, bucket.job_dir, role.email
        self.register_outputs({key: getattr(self, key) for key in ("group", "job_dir", "service_account")})
