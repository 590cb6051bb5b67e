"""Pulumi programs of `cloudgpu infra` and `cloudgpu cluster` on Google Cloud: shared infrastructure, and a fleet in
it."""

import hashlib

import pulumi
import pulumi_gcp

from ...provisioners.shared.infra_outputs import Infrastructure
from ..settings import OUTPUT, FleetOutputs, FleetSettings, InfraSettings
from .bucket import PREFIX, JobBucket, JobBucketArgs
from .common import shortened
from .fleet import GpuFleet, GpuFleetArgs
from .network import GpuNetwork
from .reaper import OrphanReaper, OrphanReaperArgs
from .role import MachineRole

_ACCOUNT_ID = 30
"""Maximum length of a service account's id."""


def infra_program(settings: InfraSettings) -> None:
    """Create network, bucket, service account and reaper of one region; export Infrastructure's JSON."""
    region, project = settings.region, settings.account
    opts = _in_project(project, region)
    network = GpuNetwork("network", {"region": region, "network_name": f"cloudgpu-{region}"}, opts)
    kept: JobBucketArgs = {"region": region, "owner": settings.owner, "protect": settings.protect}
    kept["existing" if settings.adopt else "bucket"] = settings.bucket or bucket_name(project, region)
    bucket = JobBucket("bucket", kept, opts)
    role = MachineRole(
        "machine",
        {
            "project": project,
            "account_id": shortened(f"cloudgpu-{region}", _ACCOUNT_ID),
            "bucket": bucket.bucket,
            "prefix": PREFIX,
            "leave_group": True,
            "secrets": list(settings.secrets.values()),
        },
        opts,
    )
    account_id = shortened(f"cloudgpu-reaper-{region}", _ACCOUNT_ID)
    reaper: OrphanReaperArgs = {"project": project, "region": region, "account_id": account_id, "owner": settings.owner}
    OrphanReaper("reaper", reaper, opts)
    known = Infrastructure("gcp", region, settings.stack, settings.owner, network="").to_json()
    outputs = {
        "network": network.network,
        "subnets": {"": network.subnetwork},
        "machine_role": role.email,
        "job_dir": bucket.job_dir,
        "secrets": list(settings.secrets),
    }
    pulumi.export(OUTPUT, {**known, **outputs})


def fleet_program(settings: FleetSettings) -> None:
    """Create one fleet's template and group in an infra stack's network; export FleetOutputs' JSON.

    Raises ProvisionError for an unsupported fleet.
    """
    fleet, stands = settings.fleet, settings.infrastructure
    args: GpuFleetArgs = {
        "region": fleet.region,
        "machine_type": fleet.machine_type,
        "market": fleet.market,
        "on_demand": fleet.on_demand,
        "size": fleet.size,
        "zones": list(fleet.zones),
        "disk_gb": fleet.disk_gb,
        "peers": fleet.peers,
        "heal": fleet.heal,
        "image": settings.image,
        "user_data": settings.user_data,
        "network": f"projects/{settings.account}/global/networks/{stands.network}",
        "subnetwork": stands.subnets[""],
        "service_account": stands.machine_role,
        "read_secrets": bool(stands.secrets),
        "owner": settings.owner,
    }
    if settings.expires is not None:
        args |= {"expires": settings.expires}
    if fleet.accelerator is not None:
        args |= {"accelerator": fleet.accelerator, "gpus": fleet.gpus}
    if fleet.lifetime_s is not None:
        args |= {"lifetime_seconds": fleet.lifetime_s}
    if settings.reservation is not None:
        args |= {"reservation": settings.reservation}
    made = GpuFleet(fleet.name, args, _in_project(settings.account, fleet.region))
    known = FleetOutputs(
        name=fleet.name,
        cloud="gcp",
        region=fleet.region,
        template_hash=fleet.template_hash,
        template="",
        template_version="",
        group="",
        size=fleet.size,
        fleet_dir=settings.fleet_dir,
    ).to_json()
    pulumi.export(OUTPUT, {**known, "template": made.template, "group": made.group})


def _in_project(project: str, region: str) -> pulumi.ResourceOptions:
    """Return options with an explicit provider, so that the environment's project is not used."""
    return pulumi.ResourceOptions(providers={"gcp": pulumi_gcp.Provider("google", project=project, region=region)})


def bucket_name(project: str, region: str) -> str:
    """Return the name of a project's bucket for jobs in a region.

    It contains a hash, since names are global in Google Cloud and some project ids are not allowed in bucket names.
    """
    return f"cloudgpu-{region}-{hashlib.sha256(f'{project}/{region}'.encode()).hexdigest()[:16]}"
