"""GPU machines on AWS: each writes what it sees of its GPUs into the bucket, and then waits for work."""

import pulumi
import pulumi_aws as aws

from cloudgpu.infra.aws import GpuFleet, GpuNetwork, JobBucket, MachineRole, OrphanReaper

config = pulumi.Config()
aws_region = aws.get_region_output().region

network = GpuNetwork("lab-network", {})
bucket = JobBucket("lab-jobs", {"protect": config.get_bool("protect") is not False})
role = MachineRole("lab-machines", {"job_dir": bucket.job_dir})
OrphanReaper("lab-reaper", {})

HELLO = """#!/bin/sh
nvidia-smi > /tmp/gpus.txt 2>&1
AWS_DEFAULT_REGION={region} aws s3 cp /tmp/gpus.txt {job_dir}/hello/$(hostname).txt
"""

fleet = GpuFleet(
    "lab",
    {
        "machine_type": config.get("machineType") or "g6.xlarge",
        "size": config.get_int("size") or 1,
        "market": config.get("market") or "spot",
        "network_id": network.network_id,
        "subnets": network.subnets,
        "profile_arn": role.profile_arn,
        # Pinned: machines are replaced when you set another, and not when AWS publishes an image.
        "image": config.require("image"),
        # Epoch seconds: the reaper ends the machines then, should they be forgotten. Another time replaces none.
        "expires": config.require_float("expires"),
        "user_data": pulumi.Output.format(HELLO, region=aws_region, job_dir=bucket.job_dir),
    },
)

pulumi.export("group", fleet.group)
pulumi.export("job_dir", bucket.job_dir)
pulumi.export("subnets", network.subnets)
