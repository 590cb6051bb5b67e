"""Pulumi programs of `cloudgpu infra` and `cloudgpu cluster` on AWS: they map settings to components and outputs.

All resources are in the settings' region: the programs use an explicit provider, so the environment's region is
ignored.
"""

import pulumi
import pulumi_aws as aws

from ...provisioners.shared.infra_outputs import Infrastructure
from ..settings import OUTPUT, FleetOutputs, FleetSettings, InfraSettings
from .bucket import JobBucket, JobBucketArgs
from .fleet import GpuFleet, GpuFleetArgs
from .network import GpuNetwork
from .reaper import OrphanReaper, OrphanReaperArgs
from .role import MachineRole, MachineRoleArgs

_NAME = "cloudgpu"


def infra_program(settings: InfraSettings) -> None:
    """Create network, bucket, role and reaper; export Infrastructure's JSON.

    `settings.expires` is ignored: only the bucket bills, and no reaper removes it.
    """
    opts = pulumi.ResourceOptions(providers=[_provider(settings.region, settings.account)])
    network = GpuNetwork(f"{_NAME}-network", {"owner": settings.owner}, opts)
    bucket = JobBucket(f"{_NAME}-jobs", _bucket(settings), opts)
    machines: MachineRoleArgs = {"job_dir": bucket.job_dir, "owner": settings.owner, "region": settings.region}
    if settings.secrets:
        machines["secrets"] = list(settings.secrets.values())
    reaper: OrphanReaperArgs = {"owner": settings.owner}
    if settings.boundary:
        machines["boundary"] = reaper["boundary"] = settings.boundary
    role = MachineRole(f"{_NAME}-machines", machines, opts)
    OrphanReaper(f"{_NAME}-reaper", reaper, opts)

    def outputs(made: dict[str, object]) -> dict[str, object]:
        configured = {"cloud": "aws", "region": settings.region, "stack": settings.stack, "owner": settings.owner}
        return Infrastructure.from_json({**configured, **made, "secrets": list(settings.secrets)}).to_json()

    known = pulumi.Output.all(
        network=network.network_id,
        subnets=network.subnets,
        machine_role=role.profile_arn,
        job_dir=bucket.job_dir,
    )
    pulumi.export(OUTPUT, known.apply(outputs))


def fleet_program(settings: FleetSettings) -> None:
    """Create one fleet's launch template and group; export FleetOutputs' JSON. Raises ValueError for an invalid
    fleet."""
    fleet, stands_in = settings.fleet, settings.infrastructure
    args: GpuFleetArgs = {
        "fleet_name": fleet.name,
        "machine_type": fleet.machine_type,
        "size": fleet.size,
        "zones": list(fleet.zones),
        "market": fleet.market,
        "on_demand": fleet.on_demand,
        "disk_gb": fleet.disk_gb,
        "peers": fleet.peers,
        "heal": fleet.heal,
        "network_id": stands_in.network,
        "subnets": dict(stands_in.subnets),
        "profile_arn": stands_in.machine_role,
        "image": settings.image,
        "user_data": settings.user_data,
        "owner": settings.owner,
    }
    if settings.expires is not None:
        args["expires"] = settings.expires
    if settings.reservation is not None:
        args |= {"reservation": settings.reservation, "capacity_block": settings.capacity_block}
    opts = pulumi.ResourceOptions(providers=[_provider(fleet.region, settings.account)])
    made = GpuFleet(fleet.name, args, opts)

    def outputs(known: dict[str, str]) -> dict[str, object]:
        configured = {"name": fleet.name, "cloud": "aws", "region": fleet.region, "template_hash": fleet.template_hash}
        return FleetOutputs.from_json(
            {**configured, **known, "size": fleet.size, "fleet_dir": settings.fleet_dir}
        ).to_json()

    known = pulumi.Output.all(template=made.template_id, template_version=made.template_version, group=made.group)
    pulumi.export(OUTPUT, known.apply(outputs))


def _provider(region: str, account: str) -> aws.Provider:
    """Return a provider that refuses credentials of another account.

    Most resources are identified without an account, so in another account Pulumi would find them missing and recreate
    them.
    """
    return aws.Provider(f"{_NAME}-{region}", region=region, allowed_account_ids=[account] if account else None)


def _bucket(settings: InfraSettings) -> JobBucketArgs:
    args: JobBucketArgs = {"owner": settings.owner, "protect": settings.protect}
    if settings.bucket is not None:
        args["existing" if settings.adopt else "bucket"] = settings.bucket
    return args
