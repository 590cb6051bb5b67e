"""Stacks on AWS, from creation to teardown: Automation API, engine, provider and the cloud's stand-in.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH. The provider is a stand-in
for both.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

import boto3
import pytest

import cloudgpu
from cloudgpu.infra.aws.programs import fleet_program, infra_program
from cloudgpu.infra.engine import executable as engine
from cloudgpu.infra.engine.automation import ProgressCallbacks, Stack, opened
from cloudgpu.infra.engine.backend import backend_of
from cloudgpu.infra.errors import InfraError
from cloudgpu.infra.settings import FleetOutputs, FleetSettings, InfraSettings
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner
from cloudgpu.provisioners.aws.clients import Clients
from cloudgpu.provisioners.aws.lifecycle import gc
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.pulumi import aws as aws_provider
from cloudgpu.tests.standins.pulumi.engines import put_on_path
from cloudgpu.tests.standins.pulumi.provider import Provider
from cloudgpu.tests.standins.pulumi.serving import attached

pytestmark = pytest.mark.timeout(600)

REGION, OWNER = "us-east-1", "cloudgpu-tester"
TIMEOUT_S = 180.0
INFRA = InfraSettings("aws", REGION, "infra-aws-us-east-1", OWNER)
FLEET = FleetSpec(
    name="big",
    cloud="aws",
    region=REGION,
    machine_type="g4dn.xlarge",
    accelerator="T4",
    gpus="1",
    size=2,
)
BY_HAND = {"ec2:TerminateInstances", "autoscaling:TerminateInstanceInAutoScalingGroup"}
"""Actions that only these tests call."""


class Desk:
    """Brings stacks up and down, and inspects the account that they are in."""

    def __init__(self, aws: Aws, provider: Provider) -> None:
        self.aws, self.provider = aws, provider
        self.ec2: Any = boto3.client("ec2")
        self.scaling: Any = boto3.client("autoscaling")
        self.image = str(self.ec2.describe_images()["Images"][0]["ImageId"])

    @functools.cached_property
    def profile(self) -> str:
        """ARN of the instance profile for machines of fleets without an infra stack."""
        iam: Any = boto3.client("iam")
        iam.create_role(RoleName="machines", AssumeRolePolicyDocument="{}")
        made = iam.create_instance_profile(InstanceProfileName="machines")["InstanceProfile"]
        iam.add_role_to_instance_profile(InstanceProfileName="machines", RoleName="machines")
        return str(made["Arn"])

    @contextlib.contextmanager
    def stack(self, name: str) -> Iterator[Stack]:
        found = engine.find()
        assert found is not None
        with opened(name, backend_of(None, os.environ), found, ProgressCallbacks(), os.environ) as stack:
            yield stack

    def infra_up(self, settings: InfraSettings = INFRA) -> Infrastructure:
        with self.stack(settings.stack) as stack:
            return Infrastructure.from_json(stack.up(lambda: infra_program(settings))["cloudgpu"])

    def settings(self, fleet: FleetSpec = FLEET) -> FleetSettings:
        """Return the settings of a fleet in the default VPC."""
        subnets = self.ec2.describe_subnets()["Subnets"]
        stands = Infrastructure(
            *("aws", REGION, "infra", OWNER),
            network=subnets[0]["VpcId"],
            subnets={one["AvailabilityZoneId"]: one["SubnetId"] for one in subnets},
            machine_role=self.profile,
            job_dir="s3://b/jobs",
        )
        return FleetSettings(
            "cluster-big",
            OWNER,
            fleet,
            stands,
            user_data="#!/bin/sh\n",
            image=self.image,
            fleet_dir="s3://b/jobs/fleets/big",
            expires=2_000_000_000.0,
        )

    def up(self, fleet: FleetSpec = FLEET, **changes: Any) -> FleetOutputs:
        with self.stack("cluster-big") as stack:
            stack.recover()
            settings = replace(self.settings(fleet), **changes)
            return FleetOutputs.from_json(stack.up(lambda: fleet_program(settings))["cloudgpu"])

    def down(self, name: str) -> None:
        with self.stack(name) as stack:
            assert not stack.down(keep_protected=False).resources

    def machines(self) -> list[dict[str, Any]]:
        """Return the machines that are neither terminated nor shutting down."""
        listed = [one for found in self.ec2.describe_instances()["Reservations"] for one in found["Instances"]]
        return [one for one in listed if one["State"]["Name"] not in ("terminated", "shutting-down")]

    def ids(self) -> set[str]:
        return {str(one["InstanceId"]) for one in self.machines()}

    def left(self) -> dict[str, list[str]]:
        """Return the names of resources that a new account does not have, by kind."""
        iam: Any = boto3.client("iam")
        found = {
            "machines": sorted(self.ids()),
            "groups": [one["AutoScalingGroupName"] for one in self.groups()],
            "templates": [one["LaunchTemplateName"] for one in self.ec2.describe_launch_templates()["LaunchTemplates"]],
            "placement": [one["GroupName"] for one in self.ec2.describe_placement_groups()["PlacementGroups"]],
            "security": [
                one["GroupName"]
                for one in self.ec2.describe_security_groups()["SecurityGroups"]
                if one["GroupName"] != "default"
            ],
            "vpcs": [one["VpcId"] for one in self.ec2.describe_vpcs()["Vpcs"] if not one["IsDefault"]],
            "roles": [one["RoleName"] for one in iam.list_roles()["Roles"] if one["Path"] != "/"],
            "profiles": [
                one["InstanceProfileName"]
                for one in iam.list_instance_profiles()["InstanceProfiles"]
                if one["Path"] != "/"
            ],
            "buckets": [one["Name"] for one in boto3.client("s3").list_buckets()["Buckets"]],
            "functions": [one["FunctionName"] for one in boto3.client("lambda").list_functions()["Functions"]],
            "rules": [one["Name"] for one in boto3.client("events").list_rules()["Rules"]],
        }
        return {kind: names for kind, names in found.items() if names}

    def undocumented(self) -> set[str]:
        """Return the EC2, Auto Scaling and IAM actions that were called but are not allowed in
        docs/reference/aws-permissions.md."""
        section = (Path(cloudgpu.__file__).parent / "docs" / "reference" / "aws-permissions.md").read_text()
        policy = section.partition("## Stacks")[2].partition("```json")[2].partition("```")[0]
        listed = [one["Action"] for one in json.loads(policy)["Statement"]]
        allowed = [action for one in listed for action in (one if isinstance(one, list) else [one])]
        calls = self.aws.control.calls()
        asked = {f"{one.service}:{one.action}" for one in calls if one.service in ("ec2", "autoscaling", "iam")}
        assert len(asked) > 5
        return {one for one in asked if not any(fnmatchcase(one, pattern) for pattern in allowed)}

    def groups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
        return found


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until, "too late"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def desk(engine_kind: str, server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    server.control.reset()
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    put_on_path(engine_kind, tmp_path / "bin", monkeypatch)
    provider = aws_provider.provider()
    with attached(provider) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield Desk(server, provider)


def changes(stack: Stack, program: Callable[[], None]) -> list[str]:
    return sorted({change.op for change in stack.preview(program)})


# --- infra ------------------------------------------------------------------------------------------------------------


@pytest.mark.on_engine
def test_infra_from_creation_to_teardown(desk: Desk) -> None:
    outputs = desk.infra_up()
    assert desk.undocumented() == set()
    zones = {one["ZoneId"] for one in desk.ec2.describe_availability_zones()["AvailabilityZones"]}
    assert set(outputs.subnets) == zones
    subnets = desk.ec2.describe_subnets(SubnetIds=list(outputs.subnets.values()))["Subnets"]
    assert all(one["VpcId"] == outputs.network and one["MapPublicIpOnLaunch"] for one in subnets)
    groups = desk.ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [outputs.network]}])
    assert [
        (one["GroupName"], one["IpPermissions"], one["IpPermissionsEgress"]) for one in groups["SecurityGroups"]
    ] == [("default", [], [])]
    [table] = [
        one
        for one in desk.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [outputs.network]}])[
            "RouteTables"
        ]
        if any(association.get("SubnetId") for association in one["Associations"])
    ]
    assert len(table["Associations"]) == len(zones)
    assert any(one.get("GatewayId", "").startswith("igw-") for one in table["Routes"])
    bucket = outputs.job_dir.removeprefix("s3://").removesuffix("/jobs")
    s3: Any = boto3.client("s3")
    assert all(s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"].values())
    assert s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert "aws:SecureTransport" in s3.get_bucket_policy(Bucket=bucket)["Policy"]
    assert outputs.machine_role.startswith(f"arn:aws:iam::123456789012:instance-profile/cloudgpu/{OWNER}/")

    launch_in(desk, outputs)
    assert gc.find([REGION], Clients()).leftovers == [], "gc leaves alone what a stack has made"

    with desk.stack(INFRA.stack) as stack:
        stack.recover()
        assert changes(stack, lambda: infra_program(INFRA)) == ["same"]
        left = stack.down(keep_protected=True)
    assert any(one.protected for one in left.resources)
    assert desk.left() == {"buckets": [bucket]}

    s3.delete_bucket_policy(Bucket=bucket)  # it refuses requests without TLS, which this test sends
    s3.put_object(Bucket=bucket, Key="jobs/digits/checkpoints/1/manifest.json", Body=b"{}")
    assert desk.infra_up(replace(INFRA, protect=False)).job_dir == outputs.job_dir, (
        "the bucket was kept: it is used again"
    )
    desk.down(INFRA.stack)
    assert desk.left() == {}


def launch_in(desk: Desk, stands: Infrastructure) -> None:
    """Launch and terminate a job's machine in the stack's network, without any IAM call."""
    infra_outputs.save(stands)
    desk.aws.control.forget()
    zone = "use1-az1"  # not every zone offers the type
    request = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef" * 2,
        owner=Owner(OWNER),
        job_dir=f"{stands.job_dir}/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone=zone,
        market="on-demand",
        disk_gb=100.0,
        nodes=(NodeRequest("worker-0.1", "worker", 0, 0, "g4dn.xlarge", "T4", Fraction(1)),),
        lifetime_s=None,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    provisioner = AwsProvisioner(clock=FastClock())
    allocation = provisioner.launch(request)
    [machine] = desk.machines()
    assert machine["SubnetId"] == stands.subnets[zone]
    assert machine["IamInstanceProfile"]["Arn"] == stands.machine_role
    provisioner.terminate(allocation)
    assert desk.machines() == []
    assert not [call for call in desk.aws.control.calls() if call.service == "iam"]


# --- fleets -----------------------------------------------------------------------------------------------------------


@pytest.mark.on_engine
def test_a_fleet_from_nothing_to_nothing(desk: Desk) -> None:
    outputs = desk.up()
    assert (outputs.size, outputs.template_hash, outputs.template_version) == (2, FLEET.template_hash, "1")
    [group] = desk.groups()
    assert group["AutoScalingGroupName"] == outputs.group and (group["MinSize"], group["MaxSize"]) == (0, 2)
    first = desk.ids()
    assert len(first) == 2
    for one in desk.machines():
        labels = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        assert {key: value for key, value in labels.items() if key.startswith("cloudgpu-")} == {
            "cloudgpu-owner": OWNER,
            "cloudgpu-stack": "cluster-big",
            "cloudgpu-fleet": "big",
            "cloudgpu-expires": "2000000000",
        }
    [version] = desk.ec2.describe_launch_template_versions(LaunchTemplateId=outputs.template)["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required" and data["ImageId"] == desk.image
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert base64.b64decode(data["UserData"]) == b"#!/bin/sh\n"

    with desk.stack("cluster-big") as stack:
        stack.recover()
        assert changes(stack, lambda: fleet_program(desk.settings())) == ["same"]
    assert desk.ids() == first, "a preview touches nothing"

    # A machine is terminated by hand: the group replaces it, and the stack does not change.
    gone = first.pop()
    desk.ec2.terminate_instances(InstanceIds=[gone])
    desk.groups()  # makes the stand-in's Auto Scaling check its machines
    wait(lambda: len(desk.ids()) == 2)
    now = desk.ids()
    assert first < now and gone not in now
    assert desk.up() == outputs and desk.ids() == now, "an `up` without changes touches nothing"

    # A machine leaves by itself: the group stays smaller until the next `up`.
    desk.scaling.terminate_instance_in_auto_scaling_group(InstanceId=now.pop(), ShouldDecrementDesiredCapacity=True)
    assert desk.groups()[0]["DesiredCapacity"] == 1 and desk.ids() == now
    desk.up(FLEET.model_copy(update={"size": 3}))
    wait(lambda: len(desk.ids()) == 3)
    assert now < desk.ids(), "nobody is replaced by more"
    desk.up(FLEET.model_copy(update={"size": 1}))
    wait(lambda: len(desk.ids()) == 1)

    # A changed template replaces all machines.
    before = desk.ids()
    changed = desk.up(FLEET.model_copy(update={"size": 2, "disk_gb": 200.0}))
    assert (changed.template, changed.group, changed.template_version) == (outputs.template, outputs.group, "2")
    assert changed.template_hash != outputs.template_hash
    wait(lambda: len(desk.ids()) == 2 and not before & desk.ids())
    assert desk.undocumented() <= BY_HAND
    [group] = desk.groups()
    assert {one["LaunchTemplate"]["Version"] for one in (group, *group["Instances"])} == {"2"}

    desk.down("cluster-big")
    assert desk.left() == {}


def test_a_failure_in_the_middle_is_taken_up_where_it_was(desk: Desk) -> None:
    desk.aws.control.fail("CreateAutoScalingGroup", error("LimitExceeded", message="too many groups"), times=5)
    with desk.stack("cluster-big") as stack, pytest.raises(InfraError, match="too many groups"):
        stack.up(lambda: fleet_program(desk.settings()))
    left = desk.left()
    assert set(left) == {"templates", "security"}
    desk.aws.control.heal()
    desk.up()
    assert len(desk.ids()) == 2
    assert desk.left()["templates"] == left["templates"], "what was made before the failure is used"
    desk.down("cluster-big")
    assert desk.left() == {}


def test_spot_machines_that_talk_to_each_other(desk: Desk) -> None:
    """The fleet has Elastic Fabric Adapters, a placement group, rules for peers and an on-demand part."""
    peers = FLEET.model_copy(
        update={
            "machine_type": "p4d.24xlarge",
            "accelerator": "A100-40GB",
            "gpus": "8",
            "peers": True,
            "market": "spot",
            "on_demand": 1,
            "zones": ("use1-az1",),
        }
    )
    outputs = desk.up(peers)
    [version] = desk.ec2.describe_launch_template_versions(LaunchTemplateId=outputs.template)["LaunchTemplateVersions"]
    [interface] = version["LaunchTemplateData"]["NetworkInterfaces"]
    assert interface["InterfaceType"] == "efa"
    [placed] = desk.ec2.describe_placement_groups()["PlacementGroups"]
    assert placed["Strategy"] == "cluster"
    [group] = desk.groups()
    assert group["MixedInstancesPolicy"]["InstancesDistribution"]["OnDemandBaseCapacity"] == 1
    assert len(group["VPCZoneIdentifier"].split(",")) == 1
    [security] = [one for one in desk.ec2.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default"]
    [inward] = security["IpPermissions"]
    assert [one["GroupId"] for one in inward["UserIdGroupPairs"]] == [security["GroupId"]] and not inward["IpRanges"]
    desk.down("cluster-big")
    assert desk.left() == {}


def test_with_another_accounts_credentials_nothing_is_taken_for_gone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = boto3.client("sts")
    group = desk.up(account=own.get_caller_identity()["Account"]).group
    role = {"RoleArn": "arn:aws:iam::222222222222:role/other", "RoleSessionName": "other"}
    other = own.assume_role(**role)["Credentials"]
    names = {"AWS_ACCESS_KEY_ID": "AccessKeyId", "AWS_SECRET_ACCESS_KEY": "SecretAccessKey"}
    with monkeypatch.context() as theirs:
        for variable, name in {**names, "AWS_SESSION_TOKEN": "SessionToken"}.items():
            theirs.setenv(variable, other[name])
        for step in (Stack.recover, functools.partial(Stack.down, keep_protected=False)):
            with desk.stack("cluster-big") as stack, pytest.raises(InfraError, match="account ID not allowed"):
                step(stack)
    assert [one["AutoScalingGroupName"] for one in desk.groups()] == [group]
    desk.down("cluster-big")
    assert desk.groups() == []
