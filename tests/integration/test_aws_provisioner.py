"""The target aws over the wire: boto3 against the stand-in of tests/standins/aws, with faults."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import boto3
import pytest

from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.stacks.for_stacks import Reserved, reserved_for, reserved_until
from cloudgpu.tests.standins.aws import Aws, calls
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.clocks import FastClock, StillClock
from cloudgpu.tests.standins.faults import HTML, LOSE, RESET, Call, Fault, error

OWNER = Owner("cloudgpu-tester")
BUCKET = "jobs-of-tests"


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    server.control.reset()
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def provisioner(aws: Aws) -> AwsProvisioner:
    return another()


@functools.cache
def session() -> boto3.Session:
    """One for all: reading the SDK's models takes half a second each time."""
    return boto3.Session(aws_access_key_id=KEY, aws_secret_access_key="secret", region_name="us-east-1")


def another(clock: FastClock | None = None) -> AwsProvisioner:
    """A provisioner that has seen nothing yet, as that of another process."""
    return AwsProvisioner(session(), clock or FastClock())


def node(name: str = "worker-0.1", machine_type: str = "g4dn.xlarge", rank: int = 0) -> NodeRequest:
    role, _, rest = name.rpartition("-")
    return NodeRequest(name, role, int(rest.partition(".")[0]), rank, machine_type, "T4", Fraction(1))


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef0123456789abcdef",
        owner=OWNER,
        job_dir=f"s3://{BUCKET}/jobs/digits-abc",
        job_sha256="0" * 64,
        region="us-east-1",
        zone="use1-az1",
        market="on-demand",
        disk_gb=100.0,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def ec2(region: str = "us-east-1") -> Any:
    return session().client("ec2", region_name=region)


def iam_client() -> Any:
    return session().client("iam")


def zone_name(zone: str, region: str = "us-east-1") -> str:
    """The account's name of an AZ id."""
    zones = ec2(region).describe_availability_zones()["AvailabilityZones"]
    return str(next(one["ZoneName"] for one in zones if one["ZoneId"] == zone))


def tags_sent(params: dict[str, str], kind: str) -> dict[str, str]:
    """Of one TagSpecification of a call."""
    return calls.tags_for(params, kind)


def ours(client: Any) -> list[Any]:
    """Security groups of launches."""
    return [one for one in client.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default"]


def left(region: str = "us-east-1") -> dict[str, list[str]]:
    """What there is of ours."""
    client, iam = ec2(region), iam_client()
    alive = [
        instance["InstanceId"]
        for reservation in client.describe_instances()["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] != "terminated"
    ]
    found = {
        "instances": alive,
        "volumes": [volume["VolumeId"] for volume in client.describe_volumes()["Volumes"]],
        "interfaces": [one["NetworkInterfaceId"] for one in client.describe_network_interfaces()["NetworkInterfaces"]],
        "groups": [
            group["GroupName"]
            for group in client.describe_security_groups()["SecurityGroups"]
            if group["GroupName"] != "default"
        ],
        "roles": [role["RoleName"] for role in iam.list_roles(PathPrefix="/cloudgpu/")["Roles"]],
        "profiles": [
            profile["InstanceProfileName"]
            for profile in iam.list_instance_profiles(PathPrefix="/cloudgpu/")["InstanceProfiles"]
        ],
        "placement": [one["GroupName"] for one in client.describe_placement_groups()["PlacementGroups"]],
    }
    return {kind: names for kind, names in found.items() if names}


def test_a_machine_is_launched_watched_and_removed_with_all_that_was_made_for_it(provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request())
    assert set(allocation.machines) == {"worker-0.1"}
    [state] = another().observe(allocation)
    assert (state.phase, state.detail, state.taken) == ("running", "", False)
    assert set(left()) == {"instances", "volumes", "interfaces", "groups", "roles", "profiles"}
    provisioner.terminate(allocation)
    [state] = provisioner.observe(allocation)
    assert state.phase == "gone" and "Client.UserInitiatedShutdown" in state.detail
    assert left() == {}


# --- what a machine is launched with ----------------------------------------------------------------------------------


def test_machines_are_not_gone_because_the_credentials_are_of_another_account(
    aws: Aws, provisioner: AwsProvisioner
) -> None:
    allocation = provisioner.launch(request())
    mine = provisioner.account()
    assert allocation.account == mine == "123456789012"
    aws.control.belong("AKIASTRANGER", "222222222222")
    stranger = AwsProvisioner(boto3.Session("AKIASTRANGER", "secret", region_name="us-east-1"), FastClock())
    asked = dataclasses.replace(allocation, machines={})
    said = "its machines are in AWS account 123456789012, these credentials are of 222222222222"
    for verb in (
        stranger.observe,
        stranger.terminate,
        lambda one: stranger.remove(one, list(one.machines)),
        lambda one: stranger.explain(one, "worker-0.1"),
        lambda _: stranger.launch(request(account=mine)),
        lambda _: stranger.check_account(mine),
    ):
        for one in (allocation, asked):
            with pytest.raises(ProvisionError, match=said) as caught:
                verb(one)
            assert (caught.value.error_class, caught.value.code) == ("auth", "OtherAccount")
    assert {call.action for call in aws.control.calls() if call.caller == "AKIASTRANGER"} == {"GetCallerIdentity"}
    assert provisioner.observe(dataclasses.replace(allocation, account=""))[0].phase != "gone"
    provisioner.launch(request(account=mine))
    provisioner.terminate(allocation)


def test_the_machine_is_as_asked_for_and_everything_is_tagged_from_the_start(
    aws: Aws, provisioner: AwsProvisioner
) -> None:
    allocation = provisioner.launch(request(market="spot"))
    [instance_id] = allocation.machines.values()
    [reservation] = ec2().describe_instances(InstanceIds=[instance_id])["Reservations"]
    [instance] = reservation["Instances"]
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert instance["Placement"]["AvailabilityZone"] == zone_name("use1-az1")
    [volume] = ec2().describe_volumes()["Volumes"]
    assert (volume["VolumeType"], volume["Size"], volume["Encrypted"]) == ("gp3", 100, True)
    [sent] = aws.control.calls("RunInstances")
    assert sent.params["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert sent.params["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    wanted = {
        "cloudgpu-owner": OWNER.name,
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "1",
        "cloudgpu-token": request().token,
        "cloudgpu-expires": "2000000000",
        "cloudgpu-node": "worker-0.1",
        "cloudgpu-rank": "0",
    }
    for kind in ("instance", "volume", "network-interface", "spot-instances-request"):
        assert wanted.items() <= tags_sent(sent.params, kind).items(), kind
    assert not aws.control.calls("CreateTags"), "tags come with the call that makes the thing"
    provisioner.terminate(allocation)
    assert left() == {}


def test_the_role_reaches_the_jobs_folder_only(provisioner: AwsProvisioner) -> None:
    provisioner.launch(request(reads=("s3://data/set",), writes=("s3://results",)))
    iam = iam_client()
    [role] = iam.list_roles(PathPrefix="/cloudgpu/")["Roles"]
    policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="job")["PolicyDocument"]
    job, _, data, _, results, _ = policy["Statement"]
    assert job["Resource"] == [f"arn:aws:s3:::{BUCKET}/jobs/digits-abc/*", f"arn:aws:s3:::{BUCKET}/jobs/digits-abc"]
    assert data["Action"] == ["s3:GetObject"]
    assert data["Resource"] == ["arn:aws:s3:::data/set/*", "arn:aws:s3:::data/set"]
    assert "s3:PutObject" in results["Action"] and results["Resource"] == ["arn:aws:s3:::results/*"]
    assert policy["Statement"][1]["Condition"]["StringLike"]["s3:prefix"] == ["jobs/digits-abc/*", "jobs/digits-abc"]
    assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "ec2.amazonaws.com"}


def test_nothing_may_come_in_but_from_the_jobs_own_machines(provisioner: AwsProvisioner) -> None:
    provisioner.launch(request())
    [group] = ours(ec2())
    assert group["IpPermissions"] == []
    other = request(node(), node("worker-1.1", rank=1), token="e" * 32)
    provisioner.launch(other)
    [group] = [group for group in ours(ec2()) if group["GroupName"].endswith("eee")]
    [rule] = group["IpPermissions"]
    assert rule["IpProtocol"] == "-1" and rule["IpRanges"] == []
    assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group["GroupId"]]


def test_machines_with_fabric_adapters_are_placed_together(aws: Aws, provisioner: AwsProvisioner) -> None:
    machines = [node(f"worker-{rank}.1", "g4dn.8xlarge", rank) for rank in range(2)]
    allocation = provisioner.launch(request(*machines))
    sent = aws.control.calls("RunInstances")[0].params
    assert sent["Placement.GroupName"] == f"cloudgpu-{request().token}"
    assert sent["NetworkInterface.1.InterfaceType"] == "efa"
    provisioner.terminate(allocation)
    assert left() == {}


# --- again and again --------------------------------------------------------------------------------------------------


def test_the_same_request_gives_the_same_machines(aws: Aws, provisioner: AwsProvisioner) -> None:
    first = provisioner.launch(request())
    again = another().launch(request(lifetime_s=1_800))
    assert again.machines == first.machines
    assert len(aws.control.calls("RunInstances")) == 1


def test_a_node_that_was_lost_is_replaced_and_nothing_else_is_touched(provisioner: AwsProvisioner, aws: Aws) -> None:
    first = provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    aws.control.crash(first.machines["worker-1.1"])
    states = {state.node: state for state in another().observe(first)}
    assert states["worker-0.1"].phase == "running" and states["worker-1.1"].phase == "gone"
    again = provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    assert again.machines == first.machines, "what was started once and is gone is not started again"
    second = provisioner.launch(request(node(), node("worker-1.2", rank=1)))
    assert second.machines["worker-0.1"] == first.machines["worker-0.1"]
    assert len(aws.control.instances(running=True)) == 2
    provisioner.terminate(second)
    assert left() == {}


def test_a_machine_that_is_of_no_more_use_is_ended_alone(aws: Aws, provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    for _ in range(2):
        another().remove(allocation, ["worker-1.1"])
    assert len(aws.control.calls("TerminateInstances")) == 1
    [alive] = aws.control.instances(running=True)
    assert alive.instance_id == allocation.machines["worker-0.1"]


def test_after_its_end_a_launch_with_the_same_token_begins_anew(aws: Aws, provisioner: AwsProvisioner) -> None:
    first = provisioner.launch(request())
    provisioner.terminate(first)
    second = provisioner.launch(request())
    assert second.machines != first.machines
    assert [state.phase for state in another().observe(second)] == ["running"]


@pytest.mark.parametrize("fault", [LOSE, RESET, HTML, error("RequestLimitExceeded", 503), error("InternalError", 500)])
def test_what_came_of_a_call_is_not_known(aws: Aws, provisioner: AwsProvisioner, fault: Fault) -> None:
    aws.control.fail("RunInstances", fault, times=2)
    allocation = provisioner.launch(request())
    assert [one.instance_id for one in aws.control.instances()] == list(allocation.machines.values())
    assert len({call.params["ClientToken"] for call in aws.control.calls("RunInstances")}) == 1


def test_the_answer_was_lost_and_the_caller_died_then_the_image_changed(aws: Aws, provisioner: AwsProvisioner) -> None:
    """The next caller's parameters are others: EC2 refuses the token, and the machine is found by it."""
    aws.control.set_lag(1.0)
    aws.control.fail("RunInstances", LOSE, times=None)
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(request())
    assert caught.value.error_class == "transient"
    aws.control.heal()
    allocation = another().launch(request(lifetime_s=60))
    assert [one.instance_id for one in aws.control.instances()] == list(allocation.machines.values())


def test_a_token_that_was_used_with_other_parameters_is_its_machines(aws: Aws, provisioner: AwsProvisioner) -> None:
    """The same, before any listing shows the machine: EC2 knows the token, and refuses it."""
    aws.control.set_lag(60.0)
    aws.control.fail("RunInstances", LOSE, times=None)
    refused(provisioner, request())
    aws.control.heal()
    aws.control.forget()
    with ThreadPoolExecutor(1) as pool:
        launch = pool.submit(another().launch, request(lifetime_s=60))
        wait_for(lambda: any(call.status == 400 for call in aws.control.calls("RunInstances")))
        aws.control.set_lag(0.0)
        allocation = launch.result()
    assert [one.instance_id for one in aws.control.instances()] == list(allocation.machines.values())


def test_what_cannot_be_seen_is_not_taken_for_gone_nor_launched_twice(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.set_lag(60.0)
    aws.control.fail("RunInstances", LOSE, times=None)
    refused(provisioner, request())
    aws.control.heal()
    assert refused(another(), request(lifetime_s=60)).error_class == "transient"
    assert len(aws.control.instances()) == 1
    aws.control.set_lag(0.0)
    assert len(another().launch(request(lifetime_s=60)).machines) == 1
    assert len(aws.control.instances()) == 1


def test_what_no_listing_shows_is_ended_by_what_it_is_attached_to(aws: Aws, provisioner: AwsProvisioner) -> None:
    """Nobody knows the machine's id, and no listing shows it: it is attached to the launch's security group."""
    aws.control.fail("RunInstances", LOSE, times=None)
    refused(provisioner, request())
    aws.control.heal()
    [lost] = aws.control.instances()
    aws.control.set_lag(60.0)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(
            another().terminate,
            Allocation("aws", "digits-abc", 1, request().token, {}, region="us-east-1", owner=OWNER.name),
        )
        wait_for(lambda: bool(aws.control.calls("TerminateInstances")))
        aws.control.set_lag(0.0)
        end.result()
    assert {call.params["InstanceId.1"] for call in aws.control.calls("TerminateInstances")} == {lost.instance_id}
    assert left() == {}


@pytest.mark.parametrize("fault", [LOSE, RESET, HTML], ids=lambda fault: fault.kind)
def test_every_call_of_a_life_fails_once(aws: Aws, provisioner: AwsProvisioner, fault: Fault) -> None:
    actions = {call.action for call in life(aws, provisioner)}
    for action in sorted(actions):
        aws.control.fail(action, fault)
    life(aws, another())
    assert {call.fault for call in aws.control.calls()} == {"", fault.kind}


def life(aws: Aws, provisioner: AwsProvisioner) -> list[Call]:
    """From launch to end; the calls. Nothing is left."""
    aws.control.forget()
    before = {one.instance_id for one in aws.control.instances()}
    allocation = provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    assert {one.instance_id for one in aws.control.instances()} - before == set(allocation.machines.values())
    provisioner.observe(allocation)
    provisioner.terminate(allocation)
    called = aws.control.calls()
    assert left() == {}
    return called


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# --- what EC2 refuses -------------------------------------------------------------------------------------------------


def test_no_capacity_leaves_nothing_and_names_other_zones_as_offers_do(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.set_capacity("g4dn.xlarge", zone_name("use1-az1"), "on-demand", 0)
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.scope, refusal.code) == ("capacity", "zone", "InsufficientInstanceCapacity")
    assert refusal.hints and all(hint.startswith("use1-az") for hint in refusal.hints)
    assert "use1-az1" not in refusal.hints
    assert "start worker-0.1 (on-demand g4dn.xlarge)" in str(refusal)
    assert len(aws.control.calls("RunInstances")) == 1, "no capacity is an answer, though it comes with status 500"
    assert left() == {}


def test_all_machines_or_none(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.set_capacity("g4dn.xlarge", zone_name("use1-az1"), "on-demand", 1)
    asked = request(node(), node("worker-1.1", rank=1))
    assert refused(provisioner, asked).error_class == "capacity"
    assert left() == {}
    aws.control.set_capacity("g4dn.xlarge", zone_name("use1-az1"), "on-demand", 2)
    allocation = provisioner.launch(asked)
    assert {state.phase for state in another().observe(allocation)} == {"running"}


def test_many_machines_are_asked_for_at_once_but_not_before_one_was_got(aws: Aws, provisioner: AwsProvisioner) -> None:
    zone, nodes = zone_name("use1-az1"), [node(f"worker-{rank}.1", rank=rank) for rank in range(10)]
    aws.control.set_capacity("g4dn.xlarge", zone, "on-demand", 7)
    assert refused(provisioner, request(*nodes)).error_class == "capacity"
    assert len(aws.control.calls("RunInstances")) == 9, "one, four, and four of which two were refused"
    assert left() == {}
    aws.control.set_capacity("g4dn.xlarge", zone, "on-demand", 10)
    allocation = provisioner.launch(request(*nodes))
    assert list(allocation.machines) == [one.node for one in nodes]
    assert len(aws.control.instances(running=True)) == 10


def test_a_replacement_that_cannot_be_had_leaves_the_others_alone(aws: Aws, provisioner: AwsProvisioner) -> None:
    first = provisioner.launch(request(node(), node("worker-1.1", rank=1), node("worker-2.1", rank=2)))
    for lost in ("worker-1.1", "worker-2.1"):
        aws.control.crash(first.machines[lost])
    aws.control.set_capacity("g4dn.xlarge", zone_name("use1-az1"), "on-demand", 2)
    asked = request(node(), node("worker-1.2", rank=1), node("worker-2.2", rank=2))
    assert refused(provisioner, asked).error_class == "capacity"
    [alive] = aws.control.instances(running=True)
    assert alive.instance_id == first.machines["worker-0.1"]


def test_without_a_zone_all_of_the_region_are_tried(aws: Aws, provisioner: AwsProvisioner) -> None:
    zones = [one["ZoneName"] for one in ec2().describe_availability_zones()["AvailabilityZones"]]
    for zone in zones:
        aws.control.set_capacity("g4dn.xlarge", zone, "spot", 0)
    refusal = refused(provisioner, request(zone=None, market="spot"))
    assert (refusal.error_class, refusal.scope) == ("capacity", "region")
    aws.control.set_capacity("g4dn.xlarge", zone_name("use1-az4"), "spot", 2)
    allocation = provisioner.launch(request(node(), node("worker-1.1", rank=1), zone=None, market="spot"))
    assert {one.zone for one in aws.control.instances(running=True)} == {zone_name("use1-az4")}
    again = provisioner.launch(request(node(), node("worker-1.1", rank=1), zone=None, market="spot"))
    assert again.machines == allocation.machines


def test_a_zone_where_some_machines_have_booted_is_the_last_of_an_attempt(
    aws: Aws, provisioner: AwsProvisioner
) -> None:
    """They may have taken their nodes in the job dir, so that machines of another zone would find them taken."""
    zones = [one["ZoneName"] for one in ec2().describe_availability_zones()["AvailabilityZones"]]
    for zone in zones:
        aws.control.set_capacity("g4dn.xlarge", zone, "spot", 1)
    asked = request(node(), node("worker-1.1", rank=1), zone=None, market="spot")
    assert refused(provisioner, asked).error_class == "capacity"
    tried = {one.zone for one in aws.control.instances()}
    assert len(tried) == 1 and left() == {}
    for zone in zones:
        aws.control.set_capacity("g4dn.xlarge", zone, "spot", 2)
    provisioner.launch(dataclasses.replace(asked, attempt=2, token="f" * 32))
    [zone] = {one.zone for one in aws.control.instances(running=True)}
    assert zone not in tried


def test_a_region_that_is_full_where_the_type_is_sold_is_full(aws: Aws, provisioner: AwsProvisioner) -> None:
    offers = ec2().describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p6-b200.48xlarge"]}]
    )["InstanceTypeOfferings"]
    assert 0 < len(offers) < 6
    for offer in offers:
        aws.control.set_capacity("p6-b200.48xlarge", offer["Location"], "on-demand", 0)
    refusal = refused(provisioner, request(node(machine_type="p6-b200.48xlarge"), zone=None))
    assert (refusal.error_class, refusal.scope) == ("capacity", "region")


def test_too_small_a_quota_is_told_before_anything_is_made(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.set_quota("us-east-1", "L-DB2E81BA", 4)
    refusal = refused(provisioner, request(node(), node("worker-1.1", rank=1)))
    assert (refusal.error_class, refusal.scope) == ("quota", "region")
    assert not aws.control.calls("RunInstances") and not aws.control.calls("Create*")


def test_what_was_made_just_now_may_not_be_known_to_the_next_call(aws: Aws, provisioner: AwsProvisioner) -> None:
    for action in ("PutRolePolicy", "GetInstanceProfile", "AddRoleToInstanceProfile"):
        aws.control.fail(action, error("NoSuchEntity", 404))
    aws.control.fail("AuthorizeSecurityGroupIngress", error("InvalidGroup.NotFound", 400))
    aws.control.fail("RunInstances", error("InvalidParameterValue", 400, "Profile x has no associated IAM Roles"))
    allocation = provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    assert len(aws.control.instances()) == 2
    provisioner.terminate(allocation)
    assert left() == {}


class Learning(FastClock):
    """While it pauses, EC2 learns of all that is new."""

    def __init__(self, aws: Aws) -> None:
        super().__init__()
        self._aws = aws

    def sleep(self, seconds: float) -> None:
        self._aws.control.set_lag(0.0)
        super().sleep(seconds)


def test_a_new_profile_that_is_not_known_everywhere_is_waited_for(aws: Aws) -> None:
    aws.control.set_lag(0.0, profiles=600.0)
    assert len(another(Learning(aws)).launch(request()).machines) == 1
    assert len(aws.control.calls("RunInstances")) == 2


def test_machines_that_listings_do_not_show_yet_are_pending_and_end_all_the_same(
    aws: Aws, provisioner: AwsProvisioner
) -> None:
    aws.control.set_lag(600.0)
    allocation = provisioner.launch(request())
    assert [state.phase for state in provisioner.observe(allocation)] == ["pending"]
    another(Learning(aws)).terminate(allocation)
    assert left() == {}


def test_what_ec2_has_forgotten_is_gone_though_another_was_launched_just_now(provisioner: AwsProvisioner) -> None:
    """EC2 shows a machine for about an hour after its end; its successor is young."""
    now = provisioner.launch(request(node("worker-0.2")))
    merged = dataclasses.replace(now, machines={"worker-0.1": "i-0123456789abcdef0", **now.machines})
    states = {state.node: state.phase for state in another().observe(merged)}
    assert states == {"worker-0.1": "gone", "worker-0.2": "running"}
    young = {**now.launched_at, "worker-0.1": time.time()}
    [first, _] = another().observe(dataclasses.replace(merged, launched_at=young))
    assert first.phase == "pending"


def test_what_nobody_remembers_is_ended_and_found(aws: Aws, provisioner: AwsProvisioner) -> None:
    """The answer was lost and so was the caller: no allocation names the machine."""
    aws.control.fail("RunInstances", LOSE, times=None)
    with pytest.raises(ProvisionError):
        provisioner.launch(request())
    aws.control.heal()
    other = another()
    [found] = other.find(OWNER)
    assert (found.job_id, found.attempt, found.token) == ("digits-abc", 1, request().token)
    assert list(found.machines) == ["worker-0.1"]
    assert other.find(Owner("somebody-else")) == []
    nameless = dataclasses.replace(found, machines={})
    other.terminate(nameless)
    assert left() == {} and other.find(OWNER) == []


def test_terminate_waits_until_the_machines_are_gone(aws: Aws, provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request())
    aws.control.set_stopping(0.5)
    begun = time.monotonic()
    provisioner.terminate(allocation)
    assert time.monotonic() - begun >= 0.5
    assert left() == {}
    aws.control.forget()
    provisioner.terminate(allocation)
    assert {call.action for call in aws.control.calls()} <= {"DescribeSecurityGroups", "DescribeInstances"}


def test_a_spot_machine_that_was_taken_says_so(aws: Aws, provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request(market="spot"))
    aws.control.interrupt(allocation.machines["worker-0.1"], seconds=0)
    wait_for(lambda: another().observe(allocation)[0].phase == "gone")
    [state] = another().observe(allocation)
    assert state.taken and "Server.SpotInstanceTermination" in state.detail


def test_what_somebody_added_to_the_group_or_took_off_a_machine_goes_too(provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request())
    client = ec2()
    [group] = ours(client)
    subnet = client.describe_subnets()["Subnets"][0]["SubnetId"]
    client.create_network_interface(SubnetId=subnet, Groups=[group["GroupId"]])
    labels = [{"ResourceType": "volume", "Tags": [{"Key": "cloudgpu-token", "Value": request().token}]}]
    client.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=labels)
    provisioner.terminate(allocation)
    assert left() == {}


# --- many jobs --------------------------------------------------------------------------------------------------------


def test_watching_a_hundred_jobs_costs_one_call(aws: Aws, provisioner: AwsProvisioner) -> None:
    first = provisioner.launch(request())
    jobs = [dataclasses.replace(first, token=f"{number:032x}") for number in range(100)]
    time.sleep(0.01)
    aws.control.forget()
    fresh = another(StillClock())
    with ThreadPoolExecutor(20) as pool:
        states = list(pool.map(fresh.observe, jobs))
    assert all(state.phase == "running" for [state] in states)
    assert sorted(call.action for call in aws.control.calls()) == ["DescribeInstances", "GetCallerIdentity"]


def test_launches_and_ends_at_once_share_their_looks(aws: Aws, provisioner: AwsProvisioner) -> None:
    jobs = [request(token=f"{number:032x}", job_id=f"job-{number}") for number in range(12)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        allocations = list(pool.map(provisioner.launch, jobs))
        assert len({machine for one in allocations for machine in one.machines.values()}) == len(jobs)
        launched = len(aws.control.calls())
        assert launched <= 1 + 16 * len(jobs)
        aws.control.set_stopping(0.3)
        list(pool.map(provisioner.terminate, allocations))
    assert left() == {}
    ends = aws.control.calls()[launched:]
    looks = [call for call in ends if call.action == "DescribeInstances"]
    assert len(looks) < 2 * len(jobs), "each job looks for itself"


# --- what is wrong with the account -----------------------------------------------------------------------------------


def test_no_credentials(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    refusal = refused(AwsProvisioner(clock=FastClock()), request())
    assert (refusal.error_class, refusal.scope) == ("auth", "cloud")
    assert "AWS_ACCESS_KEY_ID" in str(refusal) and "Unable to locate credentials" in str(refusal)


@pytest.mark.parametrize(
    ("denied", "says"),
    [
        (error("ExpiredToken", 400, "The provided token has expired."), "aws sso login"),
        (error("AuthFailure", 401, "AWS was not able to validate the provided access credentials"), "access key"),
        (error("RequestExpired", 400, "Request has expired."), "aws sso login"),
        (
            error("UnauthorizedOperation", 403, "You are not authorized to perform this operation."),
            "aws-permissions.md",
        ),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
@pytest.mark.parametrize("action", ["DescribeRegions", "DescribeSubnets", "CreateSecurityGroup", "RunInstances"])
def test_credentials_that_are_refused_leave_nothing(
    aws: Aws, provisioner: AwsProvisioner, denied: Fault, says: str, action: str
) -> None:
    aws.control.fail(action, denied, times=None)
    refusal = refused(provisioner, request())
    assert refusal.error_class == ("expired" if "sso" in says else "auth")
    for text in (denied.code, denied.message.rstrip("."), says, action):
        assert text in str(refusal)
    assert refusal.may_have_created is (action in {"CreateSecurityGroup", "RunInstances"})
    if refusal.is_login and action == "RunInstances":  # the next try finds it, or the launch's end
        assert left() != {}
        aws.control.heal()
        provisioner.terminate(Allocation("aws", "digits-abc", 1, request().token, {}, region="us-east-1"))
    assert left() == {}


def test_who_logs_in_again_need_not_start_anything_anew(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    provisioner = AwsProvisioner(clock=FastClock())
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert refused(provisioner, request()).error_class == "auth"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", aws.environ["AWS_ACCESS_KEY_ID"])
    assert len(provisioner.launch(request()).machines) == 1


def test_a_configured_region_that_does_not_exist_does_not_matter(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-esat-1")
    AwsProvisioner(clock=FastClock()).launch(request())
    assert {call.region for call in aws.control.calls("DescribeRegions")} == {"us-east-1"}


def test_what_is_meant_for_decoding_is_left_out_of_the_message(aws: Aws, provisioner: AwsProvisioner) -> None:
    words = "User: arn:aws:iam::1:user/x is not authorized to perform: ec2:RunInstances on resource: y"
    told = f"{words} Encoded authorization failure message: {'k' * 500}"
    aws.control.fail("RunInstances", error("UnauthorizedOperation", 403, told), times=None)
    refusal = refused(provisioner, request())
    assert words in str(refusal) and "kkk" not in str(refusal)


def test_a_clock_that_is_wrong_is_told(aws: Aws) -> None:
    class Late(FastClock):
        def now(self) -> float:
            return time.time() - 1_200

    aws.control.fail("DescribeRegions", error("AuthFailure", 401, "could not be validated"), times=None)
    assert "clock is 20 minutes behind AWS's" in str(refused(another(Late()), request()))


def test_a_region_that_does_not_exist(provisioner: AwsProvisioner) -> None:
    refusal = refused(provisioner, request(region="us-esat-1", zone=None))
    assert refusal.error_class == "invalid"
    assert "did you mean us-east-1" in str(refusal)


def test_no_default_vpc(aws: Aws, provisioner: AwsProvisioner) -> None:
    client = ec2()
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.scope) == ("invalid", "region")
    assert "aws ec2 create-default-vpc" in str(refusal)
    assert not aws.control.calls("CreateSecurityGroup")


def test_subnets_that_are_tagged_are_used(aws: Aws, provisioner: AwsProvisioner) -> None:
    client = ec2()
    vpc = client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = client.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24", AvailabilityZone=zone_name("use1-az1"))
    client.create_tags(Resources=[subnet["Subnet"]["SubnetId"]], Tags=[{"Key": "cloudgpu-subnet", "Value": ""}])
    provisioner.launch(request())
    [sent] = aws.control.calls("RunInstances")
    assert sent.params["NetworkInterface.1.SubnetId"] == subnet["Subnet"]["SubnetId"]
    assert sent.params["NetworkInterface.1.AssociatePublicIpAddress"] == "false"


def test_an_endpoint_that_is_not_encrypted_is_refused(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://aws.example.com")
    refusal = refused(another(), request())
    assert refusal.error_class == "invalid" and "not encrypted" in str(refusal)


def test_find_leaves_out_regions_that_are_denied_and_fails_where_one_does_not_answer(
    aws: Aws, provisioner: AwsProvisioner
) -> None:
    provisioner.launch(request())
    aws.control.fail(
        "DescribeSecurityGroups", error("UnauthorizedOperation", 403), where={"region": "eu-*"}, times=None
    )
    assert len(provisioner.find(OWNER)) == 1
    aws.control.fail("DescribeSecurityGroups", error("InternalError", 500), where={"region": "sa-*"}, times=None)
    with pytest.raises(ProvisionError, match="sa-east-1"):
        provisioner.find(OWNER)


def refused(provisioner: AwsProvisioner, asked: LaunchRequest) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(asked)
    return caught.value


# --- reservations -----------------------------------------------------------------------------------------------------


def test_a_capacity_block_is_launched_into(aws: Aws, provisioner: AwsProvisioner) -> None:
    block = aws.control.reserve("p5.4xlarge", zone_name("use1-az1"), 1, end_s=7_200)
    asked = request(node(machine_type="p5.4xlarge"), market="reservation")
    allocation = provisioner.launch(asked)
    [sent] = aws.control.calls("RunInstances")
    key = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert (sent.params[key], sent.params["InstanceMarketOptions.MarketType"]) == (block, "capacity-block")
    provisioner.terminate(allocation)
    assert left() == {}


def test_a_reservation_that_begins_later_says_when(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.reserve("p5.4xlarge", zone_name("use1-az1"), 1, start_s=600, end_s=7_200)
    refusal = refused(provisioner, request(node(machine_type="p5.4xlarge"), market="reservation"))
    assert refusal.error_class == "capacity" and "begins at" in str(refusal)
    assert refusal.retry_after is not None and 500 < refusal.retry_after <= 600


def test_a_block_whose_machines_are_being_ended_is_of_no_use(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.reserve("p5.4xlarge", zone_name("use1-az1"), 1, end_s=1_750)
    refusal = refused(provisioner, request(node(machine_type="p5.4xlarge"), market="reservation"))
    assert refusal.error_class == "capacity" and "no active reservation" in str(refusal)
    assert not aws.control.calls("Create*")


def test_without_a_reservation_that_is_large_enough_nothing_is_made(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.reserve("p5.4xlarge", zone_name("use1-az1"), 1)
    pair = [node(f"worker-{rank}.1", "p5.4xlarge", rank) for rank in range(2)]
    refusal = refused(provisioner, request(*pair, market="reservation"))
    assert refusal.error_class == "capacity" and "no reservation has more than 1 free" in str(refusal)
    assert not aws.control.calls("Create*")


def reserved_fleet(size: int, *zones: str) -> FleetSpec:
    wanted: dict[str, Any] = {"accelerator": "H100-80GB", "gpus": "1", "market": "reservation"}
    place: dict[str, Any] = {"cloud": "aws", "region": "us-east-1", "zones": zones}
    return FleetSpec(name="big", machine_type="p5.4xlarge", size=size, **place, **wanted)


def test_machines_end_before_their_capacity_block_does(aws: Aws) -> None:
    place = ("p5.4xlarge", zone_name("use1-az1"), 2)
    block, other, unlimited = (aws.control.reserve(*place, end_s=end_s) for end_s in (7_200, 9_000, None))
    fleet = reserved_fleet(2)

    def left(reservation: str) -> float | None:
        until = reserved_until(fleet, reservation)
        return until and until - time.time()

    assert left(block) == pytest.approx(7_200 - 1_800, abs=60)
    assert left(other) == pytest.approx(9_000 - 1_800, abs=60)
    assert left(unlimited) is None
    aws.control.extend_block(block, 90_000)
    assert left(block) == pytest.approx(90_000 - 1_800, abs=60)
    aws.control.extend_block(block, -1)
    assert left(block) == 0 == left("cr-0123456789abcdef0")


def test_a_cluster_gets_a_reservation_in_a_zone_where_it_may_be(aws: Aws) -> None:
    small = aws.control.reserve("p5.4xlarge", zone_name("use1-az1"), 2)
    block = aws.control.reserve("p5.4xlarge", zone_name("use1-az2"), 3, end_s=7_200)

    def asked(size: int, *zones: str) -> Reserved:
        return reserved_for(reserved_fleet(size, *zones))

    assert asked(2) == Reserved("use1-az1", small, is_block=False)
    assert asked(2, "use1-az2", "use1-az3") == Reserved("use1-az2", block, is_block=True)
    assert asked(3) == asked(3, "use1-az1", "use1-az2") == Reserved("use1-az2", block, is_block=True)
    with pytest.raises(ProvisionError, match="no reservation has more than 2 free"):
        asked(3, "use1-az1")
