"""Tests of AwsProvisioner with `recover: fleet`: each launch has a dedicated Auto Scaling group."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from cloudgpu.provisioners.aws.clients import Clients
from cloudgpu.provisioners.aws.lifecycle import gc
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.aws.resources import network, scaling_groups
from cloudgpu.provisioners.aws.resources.network import name_of
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.stacks import job_groups
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.account import InstanceState
from cloudgpu.tests.standins.aws.process import Leftovers
from cloudgpu.tests.standins.aws.sessions import session
from cloudgpu.tests.standins.aws.stacks import create_stack
from cloudgpu.tests.standins.clocks import FastClock, StillClock
from cloudgpu.tests.standins.faults import LOSE, error

REGION, OWNER, BUCKET = "us-east-1", Owner("cloudgpu-tester"), "jobs-of-tests"
T4, A100 = "g4dn.xlarge", "p4d.24xlarge"
TOKEN = "0123456789abcdef" * 2
AGENT = AgentFile(f"agent/{'a' * 64}.pyz", "a" * 64, "x86_64")
ZONES = {"us-east-1b", "us-east-1c"}
"""Zones of the infra stack."""
TIMEOUT_S = 180.0


def asked(jobs: str, *, nodes: int = 2, size: str = T4, gpu: str = "T4", **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token=TOKEN,
        owner=OWNER,
        job_dir=f"{jobs}/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone=None,
        market="spot",
        disk_gb=100.0,
        nodes=tuple(
            NodeRequest(f"worker-{index}.1", "worker", index, index, size, gpu, Fraction(1)) for index in range(nodes)
        ),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AGENT,
        grouped=True,
    )
    return dataclasses.replace(base, **changes)


@functools.cache
def shared() -> boto3.Session:
    """Return the session of all tests: making clients takes tenths of a second."""
    return session()


def client(service: str) -> Any:
    """Return one of boto3's clients, the same for all tests of one stand-in."""
    return _client(service, os.environ["AWS_ENDPOINT_URL"])


@functools.cache
def _client(service: str, url: str) -> Any:
    return shared().client(service, endpoint_url=url)  # type: ignore[call-overload]


CLIENTS = SimpleNamespace(client=client)
remains = functools.cache(Leftovers)


class Desk:
    """An account with an infra stack, and a provisioner."""

    def __init__(self, aws: Aws, folder: Path) -> None:
        self.aws, self.jobs = aws, f"s3://{BUCKET}/{folder.name}/jobs"
        client("s3").create_bucket(Bucket=BUCKET)
        self.ec2, self.scaling = client("ec2"), client("autoscaling")
        self.stack = create_stack(CLIENTS, REGION, self.jobs)
        self.zones = {
            one["ZoneName"]: one["ZoneId"] for one in self.ec2.describe_availability_zones()["AvailabilityZones"]
        }
        self.remains = remains(aws.url)
        self.remains.ignore_existing()
        self.provisioner = self.another()
        self.request = asked(self.jobs)
        JobDir(self.request.job_dir).put(AGENT.key, b"an agent")
        aws.control.forget()

    def another(self) -> AwsProvisioner:
        """Return a provisioner with empty caches, like one of another process."""
        return AwsProvisioner(shared(), FastClock())

    def launch(self, **changes: Any) -> Allocation:
        return self.provisioner.launch(dataclasses.replace(self.request, **changes))

    def refused(self, **changes: Any) -> ProvisionError:
        with pytest.raises(ProvisionError) as raised:
            self.launch(**changes)
        return raised.value

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Observe with empty caches."""
        return self.another().observe(allocation)

    def machines(self) -> list[InstanceState]:
        return self.aws.control.instances(running=True)

    def group(self) -> Any:
        [found] = self.scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
        return found

    def template(self) -> Any:
        """Return the data of the only launch template."""
        [made] = self.ec2.describe_launch_templates()["LaunchTemplates"]
        [version] = self.ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"])[
            "LaunchTemplateVersions"
        ]
        return version["LaunchTemplateData"]

    def until(self, met: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not met():
            assert time.monotonic() < end, self.aws.control.instances()
            time.sleep(0.05)

    def leave(self, machine: InstanceState) -> None:
        """Terminate the machine and shrink its group, as the machine itself does when it is idle."""
        self.scaling.terminate_instance_in_auto_scaling_group(
            InstanceId=machine.instance_id, ShouldDecrementDesiredCapacity=True
        )

    def end(self, allocation: Allocation) -> None:
        self.another().terminate(allocation)
        assert self.remains.find() == {}


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def desk(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    server.control.reset()
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    return Desk(server, tmp_path)


def elsewhere(allocation: Allocation) -> Allocation:
    """Return the allocation as known to a caller that got no answer to its launch: only the token, no machines."""
    return Allocation(
        "aws", allocation.job_id, allocation.attempt, allocation.token, {}, region=REGION, owner=OWNER.name
    )


def labels(of: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in of if not tag["Key"].startswith("aws:")}


# --- launch, observe, terminate ---------------------------------------------------------------------------------------


def test_a_group_of_the_launch_s_own_and_nothing_left(desk: Desk) -> None:
    allocation = desk.launch()
    group = desk.group()
    name = allocation.details[job_groups.GROUP]
    assert group["AutoScalingGroupName"] == name and name.startswith(name_of(TOKEN))
    assert allocation.machines == {f"worker-{index}.1": f"{name}/worker-{index}" for index in range(2)}
    assert (group["MinSize"], group["MaxSize"], group["DesiredCapacity"]) == (0, 2, 2)
    assert {one["ProcessName"] for one in group["SuspendedProcesses"]} == {"AZRebalance"}
    assert group["CapacityRebalance"] is True
    machines = desk.machines()
    assert {one.zone for one in machines} == ZONES and len(machines) == 2
    tags = {
        "Name": "digits-abc-1",
        "cloudgpu-owner": OWNER.name,
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "1",
        "cloudgpu-token": TOKEN,
        "cloudgpu-expires": "2000000000",
        "cloudgpu-fleet": "digits-abc-1",
    }
    for one in machines:
        assert one.market == "spot" and one.tags == {**tags, "aws:autoscaling:groupName": name}
    assert labels(group["Tags"]) == {**tags, "cloudgpu-profile": desk.stack.machine_role}
    [template] = desk.ec2.describe_launch_templates()["LaunchTemplates"]
    assert labels(template["Tags"]) == tags
    data = desk.template()
    assert data["IamInstanceProfile"]["Arn"] == desk.stack.machine_role
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    boot = base64.b64decode(data["UserData"]).decode()
    assert allocation.details[job_groups.FLEET_DIR] in boot and "one_job" in boot
    states = desk.observe(allocation)
    assert [(one.node, one.phase, one.queued) for one in states] == [
        ("worker-0.1", "pending", False),
        ("worker-1.1", "pending", False),
    ], "they boot, and are paid for"
    assert desk.provisioner.explain(allocation, "worker-0.1") == ""
    desk.provisioner.remove(allocation, ["worker-0.1"])
    assert len(desk.machines()) == 2, "its machines are the group's to replace"
    assert not [call for call in desk.aws.control.calls() if call.service == "iam"]
    desk.end(allocation)
    assert [one.phase for one in desk.observe(dataclasses.replace(allocation, launched_at={}))] == ["gone"] * 2
    [order] = Fleet(allocation.details[job_groups.FLEET_DIR]).view().orders
    assert order.end is not None, "machines that boot late find nothing to do"


def test_a_lost_machine_is_replaced_and_one_that_has_left_is_not(desk: Desk) -> None:
    allocation = desk.launch(market="on-demand")
    first, second = desk.machines()
    desk.aws.control.crash(first.instance_id)
    desk.until(lambda: len(desk.machines()) == 2)
    assert {one.zone for one in desk.machines()} == ZONES
    desk.leave(second)
    assert len(desk.machines()) == 1
    again = desk.another().launch(dataclasses.replace(desk.request, market="on-demand"))
    assert again.machines == allocation.machines and len(desk.machines()) == 1
    [last] = desk.machines()
    desk.leave(last)
    group = desk.group()
    assert (group["DesiredCapacity"], desk.machines()) == (0, [])
    assert {(one.phase, one.refused is None) for one in desk.another().observe(allocation)} == {("gone", False)}
    desk.end(allocation)


def test_it_is_found_and_ended_by_its_token_alone(desk: Desk) -> None:
    allocation = desk.launch()
    [found] = desk.another().find(OWNER)
    assert (found.token, found.job_id, found.attempt) == (TOKEN, "digits-abc", 1)
    [left] = gc.find([REGION], Clients(shared(), FastClock())).leftovers
    assert {"Auto Scaling group", "launch template", "instance", "security group"} <= {one.kind for one in left.things}
    desk.end(found)
    assert allocation.token == TOKEN and desk.another().find(OWNER) == []


def test_a_group_of_which_all_machines_have_left_is_found_and_removed(desk: Desk) -> None:
    desk.launch()
    for machine in desk.machines():
        desk.leave(machine)
    [found] = desk.another().find(OWNER)
    assert found.token == TOKEN
    clients = Clients(shared(), FastClock())
    [left] = gc.find([REGION], clients).leftovers
    assert ("Auto Scaling group", "0 of 0 machines") in {(one.kind, one.detail) for one in left.things}
    gc.remove(left, clients)
    assert desk.remains.find() == {}


@pytest.mark.parametrize("kept", ["group", "template"])
def test_what_no_security_group_leads_to_any_more_is_collected(desk: Desk, kept: str) -> None:
    allocation = desk.launch()
    for machine in desk.machines():
        desk.leave(machine)
    group, [template] = desk.group(), desk.ec2.describe_launch_templates()["LaunchTemplates"]
    if kept == "template":
        desk.scaling.delete_auto_scaling_group(AutoScalingGroupName=group["AutoScalingGroupName"], ForceDelete=True)
    else:
        desk.ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])
    security = desk.remains.find()["groups"][0]
    [found] = desk.ec2.describe_security_groups(GroupNames=[security])["SecurityGroups"]
    desk.ec2.delete_security_group(GroupId=found["GroupId"])
    clients = Clients(shared(), FastClock())
    [left] = gc.find([REGION], clients).leftovers
    assert left.token == allocation.token and len(left.things) == 1
    gc.remove(left, clients)
    assert desk.remains.find() == {}


# --- idempotency ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    ["CreateSecurityGroup", "CreateLaunchTemplate", "CreateAutoScalingGroup", "SuspendProcesses"],
)
def test_an_answer_that_is_lost_makes_nothing_twice(desk: Desk, action: str) -> None:
    desk.aws.control.fail(action, LOSE, times=1)
    allocation = desk.launch()
    assert len(desk.machines()) == 2
    assert {one["ProcessName"] for one in desk.group()["SuspendedProcesses"]} == {"AZRebalance"}
    desk.end(allocation)


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateAutoScalingGroup", "SuspendProcesses"])
def test_a_launch_that_was_cut_off_goes_on_where_it_was(
    desk: Desk, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lifecycle.group_launch", "throttling"):
        monkeypatch.setattr(f"cloudgpu.provisioners.aws.{module}.RETRY_TIMEOUT_S", 0.0)
    desk.aws.control.fail(action, error("InternalError", 500))
    assert desk.refused().error_class == "transient"
    assert desk.remains.find() != {}, "it is not known what came of it"
    allocation = desk.another().launch(desk.request)
    assert len(desk.machines()) == 2 and len(desk.aws.control.instances()) == 2
    assert {one["ProcessName"] for one in desk.group()["SuspendedProcesses"]} == {"AZRebalance"}
    desk.end(allocation)


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateAutoScalingGroup", "SuspendProcesses"])
def test_what_was_cut_off_is_ended_by_its_token(desk: Desk, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lifecycle.group_launch", "throttling"):
        monkeypatch.setattr(f"cloudgpu.provisioners.aws.{module}.RETRY_TIMEOUT_S", 0.0)
    desk.aws.control.fail(action, LOSE)
    desk.refused()
    [found] = desk.another().find(OWNER)
    desk.end(found)


def test_a_launch_that_comes_late_does_not_come_back_to_life(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process terminates the allocation after the security group was created, before the scaling group."""
    make = network.connect_peers

    def late(ec2: Any, group: str) -> None:
        make(ec2, group)
        desk.another().terminate(elsewhere(Allocation("aws", "digits-abc", 1, TOKEN, {})))

    monkeypatch.setattr(network, "connect_peers", late)
    refusal = desk.refused()
    assert refusal.error_class == "transient" and "does not exist" in str(refusal)
    assert desk.aws.control.instances() == []
    assert set(desk.remains.find()) <= {"templates"}, "nothing that could start machines"


def test_a_group_that_is_being_deleted_is_not_taken_for_ours(desk: Desk) -> None:
    desk.aws.control.set_stopping(600.0)
    allocation = desk.launch()
    desk.scaling.delete_auto_scaling_group(AutoScalingGroupName=allocation.details[job_groups.GROUP], ForceDelete=True)
    refusal = desk.refused()
    assert refusal.error_class == "transient" and "is being deleted" in str(refusal)


# --- refusals ---------------------------------------------------------------------------------------------------------


def full(desk: Desk, *zones: str, places: int = 0, market: str = "spot") -> None:
    for zone in zones:
        desk.aws.control.set_capacity(T4, zone, market, places)


def troubles(desk: Desk, allocation: Allocation) -> list[ProvisionError]:
    states = desk.observe(allocation)
    assert [one.phase for one in states] == ["gone", "gone"]
    return [one.refused for one in states if one.refused is not None]


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_the_group_goes_on_in_another_zone_by_itself(desk: Desk, market: str) -> None:
    full(desk, "us-east-1b", market=market)
    allocation = desk.launch(market=market)
    assert [one.zone for one in desk.machines()] == ["us-east-1c"] * 2
    assert {one.phase for one in desk.observe(allocation)} == {"pending"}
    desk.end(allocation)


@pytest.mark.parametrize(("places", "zone"), [(0, None), (1, "use1-az2")])
@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_no_capacity_in_any_zone_is_reported_and_ends_the_order(
    desk: Desk, market: str, places: int, zone: str | None
) -> None:
    full(desk, *desk.zones, places=places, market=market)
    allocation = desk.launch(market=market, zone=zone)
    assert len(desk.machines()) == places
    refusals = troubles(desk, allocation)
    assert [one.error_class for one in refusals] == ["capacity"] * 2
    assert {one.scope for one in refusals} == {"region" if zone is None else "zone"}
    desk.end(allocation)


def test_zones_with_capacity_are_hints_in_the_spelling_of_offers(desk: Desk) -> None:
    """They may be zones outside the stack."""
    full(desk, *ZONES, market="on-demand")
    allocation = desk.launch(market="on-demand")
    [refusal, _] = troubles(desk, allocation)
    offered = {desk.zones[name] for name in set(desk.zones) - ZONES}
    assert set(refusal.hints) and set(refusal.hints) <= offered
    desk.end(allocation)


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_a_quota_that_is_used_up_meanwhile_is_reported(desk: Desk, market: str) -> None:
    desk.aws.control.fail("GetServiceQuota", error("InternalError", 500), times=50)  # no check before the launch
    codes = {"spot": "L-3819A6DF", "on-demand": "L-DB2E81BA"}
    desk.aws.control.set_quota(REGION, codes[market], 4)
    allocation = desk.launch(market=market)
    assert [one.error_class for one in troubles(desk, allocation)] == ["quota"] * 2
    desk.end(allocation)


def test_over_quota_is_refused_before_anything_is_made(desk: Desk) -> None:
    desk.aws.control.set_quota(REGION, "L-3819A6DF", 4)
    assert desk.refused().error_class == "quota"
    assert desk.remains.find() == {}


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateAutoScalingGroup", "SuspendProcesses"])
def test_what_is_refused_leaves_nothing(desk: Desk, action: str) -> None:
    code = "UnauthorizedOperation" if action == "CreateLaunchTemplate" else "AccessDenied"
    desk.aws.control.fail(action, error(code, 403, f"not authorized to perform {action}"))
    assert desk.refused().error_class == "auth"
    assert desk.remains.find() == {}


def test_without_a_stack_nothing_is_made_and_what_to_do_is_said(desk: Desk) -> None:
    infra_outputs.forget("aws", REGION)
    refusal = desk.refused()
    assert (refusal.error_class, refusal.scope) == ("invalid", "region")
    assert f"cloudgpu infra up --cloud aws --region {REGION}" in str(refusal)
    assert desk.remains.find() == {}


def test_a_stack_whose_role_is_gone_is_an_error_that_names_infra_status(desk: Desk) -> None:
    gone = desk.stack.machine_role + "-gone"
    infra_outputs.save(dataclasses.replace(desk.stack, machine_role=gone))
    refusal = desk.refused()
    assert refusal.error_class == "invalid"
    assert f"cloudgpu infra status --cloud aws --region {REGION}" in str(refusal)
    assert desk.remains.find() == {}


# --- placement, reservations and the template -------------------------------------------------------------------------


def test_machines_with_fast_fabric_are_placed_together_in_one_zone(desk: Desk) -> None:
    request = asked(desk.jobs, size=A100, gpu="A100-40GB", market="on-demand")
    for attempt, zone in ((1, "us-east-1b"), (2, "us-east-1c")):
        allocation = desk.provisioner.launch(dataclasses.replace(request, attempt=attempt))
        assert [one.zone for one in desk.machines()] == [zone] * 2
        assert desk.template()["Placement"] == {"GroupName": name_of(TOKEN)}
        assert {one["InterfaceType"] for one in desk.template()["NetworkInterfaces"]} == {"efa"}
        desk.end(allocation)


def test_a_reservation_is_launched_into(desk: Desk) -> None:
    reservation = desk.aws.control.reserve(T4, "us-east-1c", 2)
    allocation = desk.launch(market="reservation")
    target = desk.template()["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": reservation}
    assert [one.zone for one in desk.machines()] == ["us-east-1c"] * 2
    desk.end(allocation)


def test_machines_in_a_capacity_block_save_before_it_ends(desk: Desk) -> None:
    """The machines cannot query when the block ends, so the expiry is in the fleet's settings."""
    desk.aws.control.reserve(T4, "us-east-1c", 2, end_s=7_200)
    before = time.time()
    request = asked(desk.jobs, market="reservation", expires=before + 90_000)
    allocation = desk.provisioner.launch(request)
    folder = Fleet(allocation.details["fleet_dir"])
    expires = folder.view().settings.expires
    assert expires == pytest.approx(before + 7_200 - 1_800, abs=60)
    assert desk.provisioner.launch(request).machines == allocation.machines
    assert folder.view().settings.expires == expires, "the same launch again has no other end"
    desk.end(allocation)


def test_one_poll_for_all_jobs_of_a_process(desk: Desk) -> None:
    allocations = [desk.launch(token=f"{number:032x}", job_id=f"digits-{number}") for number in range(3)]
    desk.aws.control.forget()
    watcher = AwsProvisioner(shared(), StillClock())
    for allocation in allocations:
        watcher.observe(allocation)
    looks = [call.action for call in desk.aws.control.calls() if call.service != "s3"]
    assert sorted(looks) == ["DescribeAutoScalingGroups", "DescribeInstances", "GetCallerIdentity"]
    for allocation in allocations:
        desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}


@pytest.mark.parametrize("market", ["spot", "on-demand"])
@pytest.mark.parametrize(("size", "gpu"), [(T4, "T4"), (A100, "A100-40GB")])
def test_it_is_what_the_component_makes(
    desk: Desk, market: str, size: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch's template and group equal those that the Pulumi component GpuFleet creates, field by field."""
    from cloudgpu.tests.standins.pulumi.mocks import only
    from cloudgpu.tests.unit.test_infra_aws import GROUP, TEMPLATE, as_ec2_says, plain_fleet

    arguments: list[Any] = []

    def recorded(what: Callable[..., Any]) -> Callable[..., Any]:
        def record(*words: Any) -> Any:
            arguments.append(words[2])
            return what(*words)

        return record

    monkeypatch.setattr(scaling_groups, "make_template", recorded(scaling_groups.make_template))
    monkeypatch.setattr(scaling_groups, "make_scaling_group", recorded(scaling_groups.make_scaling_group))
    request = asked(desk.jobs, size=size, gpu=gpu, market=market, zone="use1-az1")
    allocation = desk.provisioner.launch(request)
    desk.end(allocation)
    ours, wanted = arguments
    args: dict[str, Any] = {
        "machine_type": size,
        "size": 2,
        "zones": ["use1-az1"],
        "market": market,
        "disk_gb": request.disk_gb,
        "peers": True,
        "image": ours["ImageId"],
        "user_data": base64.b64decode(ours["UserData"]).decode(),
        "profile_arn": desk.stack.machine_role,
        "fleet_name": "digits-abc-1",
    }
    made = plain_fleet(**args)
    theirs = as_ec2_says(only(made, TEMPLATE).inputs)
    assert set(theirs) - set(ours) == {"Tags", "UpdateDefaultVersion"}  # of the template, not of the machines
    for interface in (*ours["NetworkInterfaces"], *theirs["NetworkInterfaces"]):
        assert len(interface.pop("Groups")) == 1  # each has its own security group
    if size == A100:
        assert theirs.pop("Placement")["GroupName"] and ours.pop("Placement") == {"GroupName": name_of(TOKEN)}
    kinds = [[one["ResourceType"] for one in of.pop("TagSpecifications")] for of in (ours, theirs)]
    assert kinds[0] == kinds[1]
    for field in ours:
        assert ours[field] == theirs[field], field

    registered = as_ec2_says(only(made, GROUP).inputs)
    for field in ("MinSize", "MaxSize", "DesiredCapacity", "HealthCheckType", "HealthCheckGracePeriod"):
        assert wanted[field] == registered[field], field
    assert wanted["CapacityRebalance"] == registered["CapacityRebalance"] == (market == "spot")
    hooks = [{"LifecycleHookName": hook.pop("Name"), **hook} for hook in registered["InitialLifecycleHooks"]]
    assert wanted["LifecycleHookSpecificationList"] == hooks
    assert len(wanted["VPCZoneIdentifier"].split(",")) == len(registered["VpcZoneIdentifiers"]) == 1
    buys = "MixedInstancesPolicy" if market == "spot" else "LaunchTemplate"
    assert buys in wanted and buys in registered
    if market == "spot":
        ours_, theirs_ = (one[buys]["InstancesDistribution"] for one in (wanted, registered))
        assert ours_ == theirs_
    right = {"Key": "cloudgpu-profile", "Value": desk.stack.machine_role, "PropagateAtLaunch": False}
    assert right in wanted["Tags"] and right in registered["Tags"]
    [suspended] = [call.params for call in desk.aws.control.calls("SuspendProcesses")]
    assert suspended["ScalingProcesses.member.1"] == "AZRebalance" and registered["SuspendedProcesses"] == [
        "AZRebalance"
    ]


def test_its_machines_may_leave_it(desk: Desk) -> None:
    """The machines' role may shrink their group."""
    allocation = desk.launch(market="on-demand")
    iam: Any = client("iam")
    iam.create_user(UserName="machine")
    role = "cloudgpu-machines"
    document = iam.get_role_policy(RoleName=role, PolicyName="jobs")["PolicyDocument"]
    iam.put_user_policy(UserName="machine", PolicyName="machine", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName="machine")["AccessKey"]
    as_machine: Any = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=REGION)
    machine = desk.machines()[0]
    desk.aws.control.enforce()
    try:
        as_machine.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=machine.instance_id, ShouldDecrementDesiredCapacity=True
        )
    finally:
        desk.aws.control.enforce(False)
    assert (desk.group()["DesiredCapacity"], len(desk.machines())) == (1, 1)
    desk.end(allocation)
