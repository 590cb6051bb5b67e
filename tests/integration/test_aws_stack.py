"""Launches where an infra stack is known: its subnets and its machines' role are used; IAM is not asked anything."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudgpu.infra.aws.role import fleet_policy
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.aws.resources.network import find_subnets, list_subnets, name_of
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.sessions import session
from cloudgpu.tests.standins.aws.stacks import OF_STACK, PROFILE, create_stack
from cloudgpu.tests.standins.clocks import FastClock

REGION = "us-east-1"
JOBS = "s3://jobs-of-tests/jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Aws:
    server.control.reset()
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def stack(aws: Aws) -> Infrastructure:
    """In two zones, known here."""
    outputs = create_stack(session(), REGION, JOBS)
    aws.control.forget()
    return outputs


def provisioner() -> AwsProvisioner:
    return AwsProvisioner(session(), FastClock())


def node(index: int = 0, incarnation: int = 1) -> NodeRequest:
    return NodeRequest(f"worker-{index}.{incarnation}", "worker", index, index, "g4dn.xlarge", "T4", Fraction(1))


def request(**changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef" * 2,
        owner=Owner("cloudgpu-tester"),
        job_dir=f"{JOBS}/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone="use1-az2",
        market="on-demand",
        disk_gb=100.0,
        nodes=(node(),),
        lifetime_s=None,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def machines() -> list[Any]:
    client: Any = session().client("ec2")
    return [one for found in client.describe_instances()["Reservations"] for one in found["Instances"]]


def asked_of_iam(aws: Aws) -> list[str]:
    return [call.action for call in aws.control.calls() if call.service == "iam"]


def roles() -> list[str]:
    client: Any = session().client("iam")
    return sorted(role["RoleName"] for role in client.list_roles(PathPrefix="/cloudgpu/")["Roles"])


def test_a_launch_stands_in_the_stack_and_asks_iam_for_nothing(aws: Aws, stack: Infrastructure) -> None:
    allocation = provisioner().launch(request())
    [machine] = machines()
    assert machine["SubnetId"] == stack.subnets["use1-az2"]
    assert machine["VpcId"] == stack.network
    assert machine["IamInstanceProfile"]["Arn"] == stack.machine_role
    provisioner().terminate(allocation)
    assert asked_of_iam(aws) == []
    assert [one["State"]["Name"] for one in machines()] == ["terminated"]
    assert roles() == [PROFILE]


@pytest.mark.parametrize(
    "changes",
    [
        {"reads": ("s3://somebody-else/data",)},
        {"writes": ("s3://jobs-of-tests/results",)},
        {"job_dir": "s3://jobs-of-tests/jobs-of-others/digits-abc"},
    ],
)
def test_what_the_stack_s_role_does_not_reach_takes_a_role_of_the_launch(
    aws: Aws, stack: Infrastructure, changes: dict[str, Any]
) -> None:
    allocation = provisioner().launch(request(**changes))
    [machine] = machines()
    assert machine["SubnetId"] == stack.subnets["use1-az2"]
    assert machine["IamInstanceProfile"]["Arn"] != stack.machine_role
    assert len(roles()) == 2
    provisioner().terminate(allocation)
    assert roles() == [PROFILE]


def test_an_attempt_keeps_the_role_it_began_with(aws: Aws, stack: Infrastructure) -> None:
    """The security group says which, to whoever adds a machine or ends all: the stack may be known no more there."""
    provisioner().launch(request())
    infra_outputs.forget("aws", REGION)
    allocation = provisioner().launch(request(nodes=(node(), node(incarnation=2))))
    assert {one["IamInstanceProfile"]["Arn"] for one in machines()} == {stack.machine_role}
    assert len(machines()) == 2
    provisioner().terminate(allocation)
    assert asked_of_iam(aws) == []


def test_an_attempt_that_began_without_a_stack_ends_without_one(aws: Aws, stack: Infrastructure) -> None:
    infra_outputs.forget("aws", REGION)
    allocation = provisioner().launch(request())
    assert len(roles()) == 2
    infra_outputs.save(stack)
    provisioner().terminate(allocation)
    assert roles() == [PROFILE]


def test_a_stack_of_another_account_is_named(aws: Aws, stack: Infrastructure) -> None:
    infra_outputs.save(dataclasses.replace(stack, subnets={"use1-az2": "subnet-of-others"}))
    with pytest.raises(ProvisionError, match=r"subnets of stack infra-aws are not in this account") as told:
        provisioner().launch(request())
    assert told.value.error_class == "invalid"
    assert machines() == []


def test_a_stack_that_is_not_known_here_is_used_before_the_default_vpc_and_after_what_is_tagged_by_hand(
    aws: Aws, stack: Infrastructure
) -> None:
    infra_outputs.forget("aws", REGION)
    ec2: Any = session().client("ec2")
    by_hand = next(one["SubnetId"] for one in ec2.describe_subnets()["Subnets"] if one["VpcId"] != stack.network)
    zone = ec2.describe_subnets(SubnetIds=[by_hand])["Subnets"][0]["AvailabilityZoneId"]
    ec2.create_tags(Resources=list(stack.subnets.values()), Tags=OF_STACK)
    assert [one.vpc for one in find_subnets(list_subnets(ec2), REGION)] == [stack.network] * 2
    ec2.create_tags(Resources=[by_hand], Tags=[{"Key": "cloudgpu-subnet", "Value": ""}])
    assert [(one.subnet, one.zone) for one in find_subnets(list_subnets(ec2), REGION)] == [(by_hand, zone)]
    ec2.delete_tags(Resources=list(stack.subnets.values()), Tags=[{"Key": "cloudgpu-stack"}])
    with pytest.raises(ProvisionError, match=r"in several VPCs.*cloudgpu infra status --cloud aws --region us-east-1"):
        find_subnets(list_subnets(ec2), REGION)


def test_a_fleet_s_machine_may_leave_its_own_group_and_no_other(
    aws: Aws, stack: Infrastructure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2: Any = session().client("ec2")
    iam: Any = session().client("iam")
    scaling: Any = session().client("autoscaling")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    made = ec2.create_launch_template(
        LaunchTemplateName="t", LaunchTemplateData={"ImageId": image, "InstanceType": "t3.micro"}
    )
    for name, profile in {"own": stack.machine_role, "another": f"{stack.machine_role}-of-others"}.items():
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=1,
            DesiredCapacity=1,
            VPCZoneIdentifier=stack.subnets["use1-az1"],
            LaunchTemplate={"LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"], "Version": "1"},
            Tags=[{"Key": "cloudgpu-profile", "Value": profile, "PropagateAtLaunch": False}],
        )
    groups = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    machine = {one["AutoScalingGroupName"]: one["Instances"][0]["InstanceId"] for one in groups}
    iam.create_user(UserName="machine")
    document = json.dumps(fleet_policy(JOBS, "aws", stack.machine_role))
    iam.put_user_policy(UserName="machine", PolicyName="machine", PolicyDocument=document)
    key = iam.create_access_key(UserName="machine")["AccessKey"]
    as_machine: Any = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=REGION)
    caller = as_machine.client("autoscaling")
    aws.control.enforce()
    try:
        leave = caller.terminate_instance_in_auto_scaling_group
        leave(InstanceId=machine["own"], ShouldDecrementDesiredCapacity=True)
        with pytest.raises(caller.exceptions.ClientError, match="AccessDenied"):
            leave(InstanceId=machine["another"], ShouldDecrementDesiredCapacity=True)
    finally:
        aws.control.enforce(False)
    sizes = {one["AutoScalingGroupName"]: one["DesiredCapacity"] for one in groups_of(scaling)}
    assert sizes == {"own": 0, "another": 1}


def groups_of(scaling: Any) -> list[Any]:
    found: list[Any] = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    return found


def test_a_stack_s_file_that_is_damaged_is_named(aws: Aws, stack: Infrastructure) -> None:
    infra_outputs.path_of("aws", REGION).write_text("{")
    with pytest.raises(ProvisionError, match=r"aws-us-east-1\.json cannot be read"):
        provisioner().launch(request())
    assert machines() == []


def test_a_stack_that_is_gone_is_told_with_the_command_that_looks(aws: Aws, stack: Infrastructure) -> None:
    """`infra status` takes a cloud with its region only."""
    looks = f"cloudgpu infra status --cloud aws --region {REGION}`"
    infra_outputs.save(dataclasses.replace(stack, subnets={"use1-az1": "subnet-gone"}))
    with pytest.raises(ProvisionError, match=looks) as network:
        provisioner().launch(request())
    profile = stack.machine_role.replace(PROFILE, "cloudgpu-gone")
    infra_outputs.save(dataclasses.replace(stack, machine_role=profile))
    with pytest.raises(ProvisionError, match=f"cloudgpu-gone.*{looks}") as role:
        provisioner().launch(request())
    assert (network.value.error_class, role.value.error_class) == ("invalid", "invalid"), "nobody waits for it"
    assert machines() == []
    groups: Any = session().client("ec2").describe_security_groups()
    assert not [one for one in groups["SecurityGroups"] if one["GroupName"] == name_of(request().token)]
