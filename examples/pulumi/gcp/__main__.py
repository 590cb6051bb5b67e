"""GPU machines on Google Cloud: each writes what it sees of its GPUs into the bucket, and then waits for work."""

import pulumi
import pulumi_gcp as gcp

from cloudgpu.infra.gcp import GpuFleet, GpuNetwork, JobBucket, MachineRole, OrphanReaper

config, google = pulumi.Config(), pulumi.Config("gcp")
project, region = google.require("project"), google.require("region")

network = GpuNetwork("lab-network", {"region": region, "network_name": "cloudgpu-lab"})
bucket = JobBucket(
    "lab-jobs",
    {"region": region, "bucket": f"cloudgpu-lab-{project}", "protect": config.get_bool("protect") is not False},
)
role = MachineRole(
    "lab-machines",
    {"project": project, "account_id": "cloudgpu-lab", "bucket": bucket.bucket, "prefix": "jobs"},
)
OrphanReaper("lab-reaper", {"project": project, "region": region, "account_id": "cloudgpu-lab-reaper"})

HELLO = """#!/bin/sh
nvidia-smi > /tmp/gpus.txt 2>&1
gcloud storage cp /tmp/gpus.txt {job_dir}/hello/$(hostname).txt
"""

# Pinned, machines are replaced when you say so, and not when Google publishes an image.
image = (
    config.get("image")
    or gcp.compute.get_image_output(
        project="deeplearning-platform-release", family="common-cu129-ubuntu-2404-nvidia-580"
    ).self_link
)

fleet = GpuFleet(
    "lab",
    {
        "region": region,
        "machine_type": config.get("machineType") or "g2-standard-4",
        "accelerator": config.get("accelerator") or "L4",
        "size": config.get_int("size") or 1,
        "market": config.get("market") or "spot",
        "network": network.network_link,
        "subnetwork": network.subnetwork,
        "service_account": role.email,
        "image": image,
        "user_data": pulumi.Output.format(HELLO, job_dir=bucket.job_dir),
    },
)

pulumi.export("group", fleet.group)
pulumi.export("job_dir", bucket.job_dir)
