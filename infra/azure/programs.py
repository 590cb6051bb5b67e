"""Pulumi programs of `cloudgpu infra` and `cloudgpu cluster` on Azure: shared infrastructure, and a fleet in it."""

from __future__ import annotations

import pulumi

from ...provisioners.azure.machine.template import check_fleet
from ...provisioners.azure.names import leaving_role
from ...provisioners.azure.resources.containers import Container, split_url
from ...provisioners.shared.infra_outputs import Infrastructure
from ..settings import OUTPUT, FleetOutputs, FleetSettings, InfraSettings
from .bucket import CONTAINER, PREFIX, JobBucket, JobBucketArgs
from .fleet import GpuFleet, GpuFleetArgs, arguments_of
from .network import GpuNetwork
from .reaper import OrphanReaper
from .role import MachineRole


def infra_program(settings: InfraSettings) -> None:
    """Create network, role, bucket and reaper; export Infrastructure's JSON.

    `settings.expires` is ignored: the network and its group are free and never expire. Raises ValueError for an invalid
    bucket name.
    """
    name = f"cloudgpu-{settings.stack}"
    network = GpuNetwork(name, {"region": settings.region, "owner": settings.owner})
    container, job_dir = _bucket(f"{name}-data", settings)
    role = MachineRole(
        f"{name}-role",
        {
            "region": settings.region,
            "resource_group": network.resource_group,
            "subscription": settings.account,
            "container": container,
            "prefix": PREFIX,
            "switch_off": True,
            "leaving_role": leaving_role(settings.stack, settings.account),
            "owner": settings.owner,
            "secrets": list(settings.secrets.values()),
        },
    )
    OrphanReaper(
        f"{name}-reaper",
        {
            "region": settings.region,
            "resource_group": network.resource_group,
            "subscription": settings.account,
            "owner": settings.owner,
        },
    )
    known = {"cloud": settings.cloud, "region": settings.region, "stack": settings.stack, "owner": settings.owner}
    found = {
        "network": network.network_id,
        "subnet": network.subnet_id,
        "role": role.identity_id,
        "client": role.client_id,
        "job_dir": job_dir,
    }
    pulumi.export(
        OUTPUT,
        pulumi.Output.all(**found).apply(
            lambda made: Infrastructure(
                **known,
                network=made["network"],
                subnets={"": made["subnet"]},
                machine_role=made["role"],
                machine_role_id=made["client"],
                job_dir=made["job_dir"],
                secrets=list(settings.secrets),
            ).to_json()
        ),
    )


def fleet_program(settings: FleetSettings) -> None:
    """Create a fleet in a dedicated resource group; export FleetOutputs' JSON.

    Raises ValueError for an image that is not an Azure one, ProvisionError for a fleet that Azure does not support.
    """
    fleet, there = settings.fleet, settings.infrastructure
    check_fleet(fleet, reserved=settings.reservation is not None)
    args: GpuFleetArgs = {
        **arguments_of(fleet),  # type: ignore[typeddict-item] # same names and types
        "image": settings.image,
        "user_data": settings.user_data,
        "subscription": settings.account,
        "subnet": there.subnets[""],
        "machine_role": there.machine_role,
        "owner": settings.owner,
    }
    if settings.expires is not None:
        args["expires"] = settings.expires
    if settings.reservation is not None:
        args["reservation"] = settings.reservation
    made = GpuFleet(f"cloudgpu-{settings.stack}", args)
    pulumi.export(
        OUTPUT,
        made.group.apply(
            lambda group: FleetOutputs(
                name=fleet.name,
                cloud=fleet.cloud,
                region=fleet.region,
                template_hash=fleet.template_hash,
                template="",
                template_version="",
                group=group,
                size=fleet.size,
                fleet_dir=settings.fleet_dir,
            ).to_json()
        ),
    )


def _bucket(name: str, settings: InfraSettings) -> tuple[pulumi.Input[str], pulumi.Input[str]]:
    """Return the container's resource id and the URL of the jobs' folder in it. Create the container unless the
    settings name an existing one to adopt."""
    if settings.adopt:
        found = Container.from_tag(settings.bucket or "")
        if found is None:
            raise ValueError(f"{settings.bucket} is no container to go on with: it must be GROUP/ACCOUNT/CONTAINER")
        return found.scope(settings.account), f"az://{found.container}@{found.account}/{PREFIX}"
    from pulumi_azure_native import authorization

    args: JobBucketArgs = {
        "region": settings.region,
        "subscription": settings.account,
        "owner": settings.owner,
        "users": [authorization.get_client_config_output().object_id],
        "protect": settings.protect,
    }
    if settings.bucket is not None:
        account, _, container = settings.bucket.partition("/")
        split_url(f"az://{container or CONTAINER}@{account}")
        args["account"], args["container"] = account, container or CONTAINER
    made = JobBucket(name, args)
    return made.container_id, made.job_dir
