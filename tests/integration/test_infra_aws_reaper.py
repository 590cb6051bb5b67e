"""The reaper's function over the wire, as the account's administrator and with only its own role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from cloudgpu.infra.aws.reaper import reaper_policy
from cloudgpu.infra.aws.reaper_handler import handler, is_expired
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.faults import error

NOW = 2_000_000_000
EXPIRED, LATER = NOW - 1, NOW + 1
OURS = "cloudgpu-tester"


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    server.control.reset()
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    yield server
    server.control.enforce(False)


@pytest.fixture
def with_the_role_only(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that restricts all later calls to the reaper's policy."""
    iam: Any = boto3.client("iam")
    iam.create_user(UserName="reaper")
    document = json.dumps(reaper_policy("arn:aws:logs:us-east-1:1:log-group:reaper", "aws"))
    iam.put_user_policy(UserName="reaper", PolicyName="ends", PolicyDocument=document)
    key = iam.create_access_key(UserName="reaper")["AccessKey"]

    def permit() -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        aws.control.enforce()

    return permit


def labels(expires: float | str | None, owner: str = OURS) -> list[dict[str, str]]:
    values = {tags.OWNER: owner} | ({} if expires is None else {tags.EXPIRES: str(expires)})
    return [{"Key": key, "Value": value} for key, value in values.items()]


def start(of: list[dict[str, str]]) -> str:
    ec2: Any = boto3.client("ec2")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    specification = [{"ResourceType": "instance", "Tags": of}]
    [one] = ec2.run_instances(
        ImageId=image, InstanceType="t3.micro", MinCount=1, MaxCount=1, TagSpecifications=specification
    )["Instances"]
    return str(one["InstanceId"])


def make_group(name: str, of: list[dict[str, str]], size: int = 2) -> None:
    ec2: Any = boto3.client("ec2")
    scaling: Any = boto3.client("autoscaling")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    made = ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"ImageId": image, "InstanceType": "t3.micro"}
    )
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=size,
        DesiredCapacity=size,
        VPCZoneIdentifier=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
        LaunchTemplate={"LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"], "Version": "1"},
        Tags=[{**tag, "PropagateAtLaunch": True} for tag in of],
    )


def alive() -> list[str]:
    ec2: Any = boto3.client("ec2")
    machines = [one for found in ec2.describe_instances()["Reservations"] for one in found["Instances"]]
    return sorted(one["InstanceId"] for one in machines if one["State"]["Name"] != "terminated")


def test_only_expired_resources_are_deleted(aws: Aws, with_the_role_only: Any) -> None:
    expired = start(labels(EXPIRED))
    kept = [start(labels(LATER)), start(labels(None)), start(labels("soon")), start(labels(EXPIRED, owner="payroll"))]
    make_group("expired", labels(EXPIRED))
    make_group("later", labels(LATER), size=1)
    ec2: Any = boto3.client("ec2")
    volumes = [
        ec2.create_volume(
            AvailabilityZone="us-east-1a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": of}]
        )["VolumeId"]
        for of in (labels(EXPIRED), labels(LATER))
    ]
    before = alive()
    assert len(before) == 8
    with_the_role_only()
    ended = handler({"now": NOW}, None)
    aws.control.enforce(False)
    assert ended == {"groups": ["expired"], "machines": [expired], "volumes": [volumes[0]]}
    assert set(kept) < set(alive()) and len(alive()) == 5
    left = {one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]}
    assert volumes[1] in left and volumes[0] not in left
    assert handler({"now": NOW}, None) == {"groups": [], "machines": [], "volumes": []}


def test_a_group_s_machines_go_with_their_group_which_would_replace_them(aws: Aws) -> None:
    make_group("expired", labels(EXPIRED))
    ended = handler({"now": NOW}, None)
    assert ended["machines"] == [] and alive() == []
    scaling: Any = boto3.client("autoscaling")
    [group] = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    assert (group["DesiredCapacity"], group["MaxSize"]) == (0, 0)


def test_without_a_time_it_is_the_clock_s(aws: Aws) -> None:
    past, future = start(labels(1_000)), start(labels(4_000_000_000))
    assert handler({}, None)["machines"] == [past]
    assert alive() == [future]


def test_a_refused_call_is_reported_and_the_rest_is_deleted(aws: Aws) -> None:
    first, _ = sorted([start(labels(EXPIRED)), start(labels(EXPIRED))])
    aws.control.fail("TerminateInstances", error("OperationNotPermitted"), where={"InstanceId.1": first})
    with pytest.raises(RuntimeError, match=rf"^{first}: .*OperationNotPermitted"):
        handler({"now": NOW}, None)
    assert alive() == [first]
    aws.control.heal()
    assert handler({"now": NOW}, None)["machines"] == [first]
    assert alive() == []


def test_the_role_cannot_end_what_is_not_tagged(aws: Aws, with_the_role_only: Any) -> None:
    foreign, later = start(labels(None)), start(labels(EXPIRED, owner="payroll"))
    make_group("foreign", labels(None))
    with_the_role_only()
    ec2: Any = boto3.client("ec2")
    scaling: Any = boto3.client("autoscaling")
    for one in (foreign, later):
        with pytest.raises(ec2.exceptions.ClientError, match="UnauthorizedOperation"):
            ec2.terminate_instances(InstanceIds=[one])
    with pytest.raises(ec2.exceptions.ClientError, match="AccessDenied"):
        scaling.update_auto_scaling_group(AutoScalingGroupName="foreign", MinSize=0, MaxSize=0, DesiredCapacity=0)


@pytest.mark.parametrize("text", ["", "never", "-5", "1e3", "１２", "12.5"])
def test_an_unparsable_expiry_has_not_passed(text: str) -> None:
    assert not is_expired(labels(text), NOW)
