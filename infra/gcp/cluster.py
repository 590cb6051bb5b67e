"""All that a fleet stands in, and the fleet: for a program that wants GPU machines and nothing else."""

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
    """Arguments of GpuCluster: those of GpuFleet that say which machines, and where they are in."""

    project: pulumi.Input[str]
    """Id of the project."""
    region: str
    """Google Cloud's name of the region."""
    machine_type: str
    """E.g. `g2-standard-8`."""
    accelerator: NotRequired[str]
    """Canonical name of the GPU; omitted: none."""
    gpus: NotRequired[str]
    """GPUs of a machine, e.g. `8`; omitted: 1 where there is an accelerator."""
    market: NotRequired[str]
    """As in GpuFleet; omitted: on-demand."""
    on_demand: NotRequired[int]
    """As in GpuFleet; omitted: 0."""
    reservation: NotRequired[str]
    """As in GpuFleet."""
    size: int
    """How many machines."""
    zones: NotRequired[list[str]]
    """Where machines may be; omitted: three that Compute Engine chooses."""
    disk_gb: NotRequired[float]
    """Of each machine's disk; omitted: 100."""
    peers: NotRequired[bool]
    """As in GpuFleet: the machines are in one zone, and may reach each other; omitted: no."""
    lifetime_seconds: NotRequired[int]
    """A machine is deleted after so long; omitted: never."""
    heal: NotRequired[bool]
    """A machine that vanished is made anew; omitted: yes."""
    existing_bucket: NotRequired[pulumi.Input[str]]
    """Name of a bucket that is there: it is used, and stays. Omitted: one is made."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to make, unique in all of Google Cloud; omitted: Pulumi makes one up."""
    protect: NotRequired[bool]
    """Pulumi does not delete the bucket; omitted: true."""
    nat: NotRequired[bool]
    """Machines reach the internet by Cloud NAT; omitted: only Google's own APIs."""
    image: pulumi.Input[str]
    """As in GpuFleet."""
    user_data: pulumi.Input[str]
    """Startup script of the machines."""
    expires: NotRequired[pulumi.Input[float]]
    """Epoch seconds after which anybody may delete the machines; omitted: never."""
    owner: NotRequired[str]
    """As in the tag `cloudgpu-owner`; omitted: made of the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """More of them. Of all that can have labels."""


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
    """A network, a bucket, a service account and a fleet in them."""

    group: pulumi.Output[str]
    """Self link of the managed instance group."""
    job_dir: pulumi.Output[str]
    """`gs://BUCKET/jobs`: what the machines may read and write."""
    service_account: pulumi.Output[str]
    """E-mail address of who the machines are."""

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
