"""GPU machines on Azure: each writes what it sees of its GPUs into the container, and then waits for work."""

import pulumi
from pulumi_azure_native import authorization

from cloudgpu.infra.azure import GpuFleet, GpuNetwork, JobBucket, MachineRole, OrphanReaper

config = pulumi.Config()
region = config.get("region") or "eastus"
me = authorization.get_client_config_output()

network = GpuNetwork("cloudgpu-lab", {"region": region})
bucket = JobBucket(
    "cloudgpu-lab-jobs",
    {
        "region": region,
        "subscription": me.subscription_id,
        "users": [me.object_id],
        "protect": config.get_bool("protect") is not False,
    },
)
role = MachineRole(
    "lab-machines",
    {
        "region": region,
        "resource_group": network.resource_group,
        "subscription": me.subscription_id,
        "container": bucket.container_id,
        "prefix": "jobs",
    },
)
OrphanReaper(
    "cloudgpu-lab-reaper",
    {"region": region, "resource_group": network.resource_group, "subscription": me.subscription_id},
)

HELLO = """#!/bin/sh
nvidia-smi > /tmp/gpus.txt 2>&1
export AZCOPY_AUTO_LOGIN_TYPE=MSI AZCOPY_MSI_CLIENT_ID={client}
azcopy copy /tmp/gpus.txt "https://{account}.blob.core.windows.net/{container}/jobs/hello/$(hostname).txt"
"""

fleet = GpuFleet(
    "cloudgpu-lab-machines",
    {
        "fleet_name": "lab",
        "region": region,
        "machine_type": config.get("machineType") or "Standard_NC4as_T4_v3",
        "accelerator": "T4",
        "gpus": "1",
        "size": config.get_int("size") or 1,
        "market": config.get("market") or "spot",
        # By its number: machines are replaced when you say so, and not when Microsoft publishes an image.
        "image": config.require("image"),
        # Epoch seconds: the reaper ends the machines then, should they be forgotten. Another time replaces none.
        "expires": config.require_float("expires"),
        "user_data": pulumi.Output.format(
            HELLO, client=role.client_id, account=bucket.account, container=bucket.container
        ),
        "subscription": me.subscription_id,
        "subnet": network.subnet_id,
        "machine_role": role.identity_id,
    },
)

pulumi.export("group", fleet.group)
pulumi.export("job_dir", bucket.job_dir)
pulumi.export("account", bucket.account)
