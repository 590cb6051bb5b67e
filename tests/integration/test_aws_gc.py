"""Tests of `cloudgpu gc` on AWS: leaks of each kind are found by their tags alone and removed; others' are kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.submit.submission import owner_name
from cloudgpu.provisioners import tagged_resources
from cloudgpu.provisioners.aws.clients import Clients
from cloudgpu.provisioners.aws.lifecycle import gc
from cloudgpu.provisioners.base import Owner
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.sessions import session
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HTML, LOSE, error

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGION = "eu-west-1"
TOKEN = "0123456789abcdef" * 2
NAME = f"cloudgpu-{TOKEN}"
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Aws:
    server.control.reset()
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path / "home"), "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    return server


def labels(owner: str | None = None, expires: float | None = None, token: str = TOKEN) -> list[dict[str, str]]:
    values = {
        tags.OWNER: owner or owner_name(),
        tags.JOB: "ghost-abcdefgh",
        tags.ATTEMPT: "2",
        tags.TOKEN: token,
        **({} if expires is None else {tags.EXPIRES: str(int(expires))}),
    }
    return [{"Key": key, "Value": value} for key, value in values.items()]


def tagged(kind: str, **changes: Any) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": labels(**changes)}]


def ec2(region: str = REGION) -> Any:
    return session().client("ec2", region_name=region)


def identities() -> Any:
    return session().client("iam")


def start_machine(*kinds: str, **more: Any) -> None:
    """Launch one machine of which only resources of these kinds are tagged by cloudgpu."""
    client = ec2()
    image = client.describe_images()["Images"][0]["ImageId"]
    specifications = [one for kind in kinds for one in tagged(kind)]
    client.run_instances(
        ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1, TagSpecifications=specifications, **more
    )


def make_instance() -> None:
    start_machine("instance", "volume", "network-interface")


def make_spot_request() -> None:
    """Launch a Spot machine of which only the Spot request is tagged by cloudgpu."""
    start_machine("spot-instances-request", InstanceMarketOptions={"MarketType": "spot"})


def make_volume(**changes: Any) -> None:
    ec2().create_volume(AvailabilityZone="eu-west-1a", Size=100, TagSpecifications=tagged("volume", **changes))


def make_interface() -> None:
    subnet = ec2().describe_subnets()["Subnets"][0]["SubnetId"]
    ec2().create_network_interface(SubnetId=subnet, TagSpecifications=tagged("network-interface"))


def make_security_group() -> None:
    vpc = ec2().describe_vpcs()["Vpcs"][0]["VpcId"]
    ec2().create_security_group(
        GroupName=NAME, Description="leaked", VpcId=vpc, TagSpecifications=tagged("security-group")
    )


def make_placement_group() -> None:
    ec2().create_placement_group(GroupName=NAME, Strategy="cluster", TagSpecifications=tagged("placement-group"))


def make_template() -> str:
    image = ec2().describe_images()["Images"][0]["ImageId"]
    data = {"ImageId": image, "InstanceType": "g4dn.xlarge"}
    made = ec2().create_launch_template(
        LaunchTemplateName=NAME, LaunchTemplateData=data, TagSpecifications=tagged("launch-template")
    )
    return str(made["LaunchTemplate"]["LaunchTemplateId"])


def make_scaling_group() -> None:
    """Create an Auto Scaling group with one machine, which inherits its tags."""
    scaling: Any = session().client("autoscaling", region_name=REGION)
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=NAME,
        MinSize=0,
        MaxSize=1,
        DesiredCapacity=1,
        VPCZoneIdentifier=ec2().describe_subnets()["Subnets"][0]["SubnetId"],
        LaunchTemplate={"LaunchTemplateId": make_template(), "Version": "1"},
        Tags=[{**tag, "PropagateAtLaunch": True} for tag in labels()],
    )


def make_role() -> None:
    iam, path = identities(), f"/cloudgpu/{owner_name()}/"
    iam.create_role(RoleName=NAME, Path=path, AssumeRolePolicyDocument="{}", Tags=labels())
    iam.put_role_policy(RoleName=NAME, PolicyName="job", PolicyDocument=json.dumps(POLICY))


def make_profile() -> None:
    make_role()
    iam, path = identities(), f"/cloudgpu/{owner_name()}/"
    iam.create_instance_profile(InstanceProfileName=NAME, Path=path, Tags=labels())
    iam.add_role_to_instance_profile(InstanceProfileName=NAME, RoleName=NAME)


LEAKS: dict[str, Callable[[], object]] = {
    "instance": make_instance,
    "Spot request": make_spot_request,
    "volume": make_volume,
    "network interface": make_interface,
    "security group": make_security_group,
    "launch template": make_template,
    "Auto Scaling group": make_scaling_group,
    "placement group": make_placement_group,
    "role": make_role,
    "instance profile": make_profile,
}


def run_gc(*arguments: str, regions: tuple[str, ...] = (REGION,)) -> subprocess.CompletedProcess[str]:
    where = [word for region in regions for word in ("--region", region)]
    command = [CLOUDGPU, "gc", "--cloud", "aws", *where, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def found(clients: Clients | None = None) -> list[tagged_resources.Leftover]:
    return gc.find([REGION], clients or Clients(session(), FastClock())).leftovers


def kinds(left: tagged_resources.Leftover) -> set[str]:
    return {thing.kind for thing in left.things}


def test_every_kind_that_can_be_removed_is_leaked_here(aws: Aws) -> None:
    assert set(LEAKS) == set(gc._DELETE) | {"instance", gc._GROUP}


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_of_each_kind_is_found_and_removed(aws: Aws, kind: str) -> None:
    LEAKS[kind]()
    [left] = found()
    assert kind in kinds(left)
    assert (left.owner, left.job_id, left.attempt, left.token) == (owner_name(), "ghost-abcdefgh", 2, TOKEN)
    gc.remove(left, Clients(session(), FastClock()))
    assert found() == []
    gc.remove(left, Clients(session(), FastClock()))  # idempotent


def test_all_that_a_launch_left_is_one_and_goes_in_one_command(aws: Aws) -> None:
    for make in (make_instance, make_volume, make_security_group, make_placement_group, make_profile):
        make()
    [one] = json.loads(run_gc("--dry-run", "--json").stdout)["leftovers"]
    assert {thing["kind"] for thing in one["things"]} >= {"instance", "volume", "security group", "role"}
    assert (one["state"], one["removable"], one["regions"]) == ("orphaned", True, ["eu-west-1"])
    refused = run_gc()
    assert (refused.returncode, "add --yes" in refused.stderr) == (2, True)
    done = run_gc("--yes")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "removed what was left of ghost-abcdefgh, attempt 2" in done.stderr
    assert found() == []
    assert "nothing to do" in run_gc().stderr


def test_prices_ages_and_expiries_are_shown(aws: Aws) -> None:
    make_instance()
    make_volume(token="f" * 32, expires=time.time() + 7_170)
    [machine, volume] = sorted(found(), key=lambda left: left.token)
    assert machine.price is not None and 0.5 < machine.price < 1.0  # a g4dn.xlarge in Ireland, with a disk
    assert volume.price is not None and 0 < volume.price < machine.price
    assert volume.created is not None and time.time() - volume.created < 600
    shown = run_gc("--dry-run").stdout
    assert "1h 59m" in shown or "1h 58m" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_what_belongs_to_others_goes_only_once_it_has_expired_and_only_when_asked_for(aws: Aws) -> None:
    make_volume(owner="cloudgpu-somebody", expires=time.time() - 60, token="a" * 32)
    make_volume(owner="cloudgpu-somebody", expires=time.time() + 3_600, token="b" * 32)
    make_volume(owner="cloudgpu-somebody", token="c" * 32)
    states = {one["token"][0]: one["state"] for one in json.loads(run_gc("--dry-run", "--json").stdout)["leftovers"]}
    assert states == {"a": "expired", "b": "another's", "c": "another's"}
    run_gc("--yes")
    assert len(found()) == 3
    run_gc("--yes", "--others")
    assert {left.token[0] for left in found()} == {"b", "c"}


def test_expired_only_leaves_what_its_owner_may_still_want(aws: Aws) -> None:
    make_volume(token="a" * 32, expires=time.time() - 60)
    make_volume(token="b" * 32, expires=time.time() + 3_600)
    make_volume(token="c" * 32)
    run_gc("--yes", "--expired-only")
    assert {left.token[0] for left in found()} == {"b", "c"}


def test_all_regions_are_looked_at_but_those_that_deny_it_which_are_named(aws: Aws) -> None:
    make_volume()
    ec2("ap-south-1").create_volume(
        AvailabilityZone="ap-south-1a", Size=1, TagSpecifications=tagged("volume", token="b" * 32)
    )
    aws.control.fail("Describe*", error("UnauthorizedOperation", 403), where={"region": "us-west-2"}, times=None)
    done = run_gc("--yes", regions=())
    assert done.returncode == 6
    assert "aws us-west-2 was not looked at" in done.stderr
    assert "us-west-1 was not" not in done.stderr
    aws.control.heal()
    assert gc.find([REGION, "ap-south-1"]).leftovers == []


def test_only_the_regions_asked_for_are_looked_at(aws: Aws) -> None:
    make_volume()
    assert "nothing to do" in run_gc("--yes", regions=("us-east-1",)).stderr
    [left] = found()
    assert left.regions == [REGION]
    refused = run_gc(regions=("eu-west-11",))
    assert "eu-west-11" in refused.stderr
    assert refused.returncode in {4, 6}


@pytest.mark.parametrize("fault", [LOSE, HTML], ids=lambda fault: fault.kind)
def test_lost_answers_and_5xx_do_no_harm(aws: Aws, fault: Any) -> None:
    make_instance()
    make_profile()
    for action in ("TerminateInstances", "DeleteVolume", "DeleteRole", "DeleteInstanceProfile", "Describe*"):
        aws.control.fail(action, fault)
    clients = Clients(session(), FastClock())
    for left in found(clients):
        gc.remove(left, clients)
    aws.control.heal()
    assert found() == []


def test_a_target_without_gc_has_no_leftovers(aws: Aws) -> None:
    assert tagged_resources.find("local", Owner(owner_name())).leftovers == []
