"""An infra stack in the stand-in's account without Pulumi: the resources of `cloudgpu infra up` that launches use."""

from __future__ import annotations

import json
from typing import Any

from cloudgpu.infra.aws.role import fleet_policy
from cloudgpu.provisioners.shared import infra_outputs, tags
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure

PROFILE = "cloudgpu-machines"
OF_STACK = [{"Key": key, "Value": value} for key, value in tags.stack_tags("cloudgpu-tester", "infra").items()]
_PATH = "/cloudgpu/cloudgpu-tester/"


def create_stack(
    session: Any, region: str, jobs: str, zones: tuple[str, ...] = ("use1-az1", "use1-az2")
) -> Infrastructure:
    """Create a VPC with public subnets in these zones and an instance profile; save the outputs in this state
    directory.

    `session`: boto3's, or another source of clients. `jobs`: URL below which its machines have full access.
    """
    ec2, iam = session.client("ec2"), session.client("iam")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate(zones):
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZoneId=zone)["Subnet"]
        subnets[zone] = made["SubnetId"]
        ec2.create_tags(Resources=[made["SubnetId"]], Tags=[{"Key": "cloudgpu-subnet", "Value": ""}])
        ec2.modify_subnet_attribute(SubnetId=made["SubnetId"], MapPublicIpOnLaunch={"Value": True})
    iam.create_role(RoleName=PROFILE, Path=_PATH, AssumeRolePolicyDocument="{}", Tags=OF_STACK)
    profile = iam.create_instance_profile(InstanceProfileName=PROFILE, Path=_PATH, Tags=OF_STACK)["InstanceProfile"]
    iam.add_role_to_instance_profile(InstanceProfileName=PROFILE, RoleName=PROFILE)
    document = json.dumps(fleet_policy(jobs, "aws", profile["Arn"]))
    iam.put_role_policy(RoleName=PROFILE, PolicyName="jobs", PolicyDocument=document)
    outputs = Infrastructure(
        "aws", region, "infra-aws", "cloudgpu-tester", vpc, subnets, machine_role=profile["Arn"], job_dir=jobs
    )
    infra_outputs.save(outputs)
    return outputs
