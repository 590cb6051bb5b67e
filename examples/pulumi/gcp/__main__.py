"""GPU machines on Google Cloud: each writes what it sees of its GPUs into the bucket, and then waits for work."""

import pulumi

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
        # Pinned: machines are replaced when you set another, and not when Google publishes an image.
        "image": config.require("image"),
        # Epoch seconds: the reaper ends the machines then, should they be forgotten. Another time replaces none.
        "expires": config.require_float("expires"),
        "user_data": pulumi.Output.format(HELLO, job_dir=bucket.job_dir),
    },
)

pulumi.export("group", fleet.group)
pulumi.export("job_dir", bucket.job_dir)
