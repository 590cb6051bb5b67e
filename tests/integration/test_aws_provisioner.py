"""Tests of AwsProvisioner with boto3 against the stand-in of tests/standins/aws, with faults."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import boto3
import pytest

from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.stacks.fleet_queries import Reserved, reserved_for, reserved_until
from cloudgpu.tests.contract.targets.standin import refused, until
from cloudgpu.tests.standins.aws import Aws, calls
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import LOSE, Fault, error

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
    """Return a session that all tests share: loading boto3's models takes half a second."""
    return boto3.Session(aws_access_key_id=KEY, aws_secret_access_key="secret", region_name="us-east-1")


def another(clock: FastClock | None = None) -> AwsProvisioner:
    """Return a provisioner with empty caches, like one of another process."""
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
    """Return the account's name of the zone with this AZ id."""
    zones = ec2(region).describe_availability_zones()["AvailabilityZones"]
    return str(next(one["ZoneName"] for one in zones if one["ZoneId"] == zone))


def tags_sent(params: dict[str, str], kind: str) -> dict[str, str]:
    """Return the tags that the call sent for this resource type."""
    return calls.tags_for(params, kind)


def ours(client: Any) -> list[Any]:
    """Return the security groups of launches."""
    return [one for one in client.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default"]


def left(region: str = "us-east-1") -> dict[str, list[str]]:
    """Return all resources of launches by kind, without kinds that have none."""
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


# --- launch parameters ------------------------------------------------------------------------------------------------


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


# --- idempotency ------------------------------------------------------------------------------------------------------


def test_a_token_that_was_used_with_other_parameters_is_its_machines(aws: Aws, provisioner: AwsProvisioner) -> None:
    """No listing shows the machine yet, but EC2 rejects the token with other parameters; launch() then finds it."""
    aws.control.set_lag(60.0)
    aws.control.fail("RunInstances", LOSE, times=None)
    refused(provisioner, request())
    aws.control.heal()
    aws.control.forget()
    with ThreadPoolExecutor(1) as pool:
        launch = pool.submit(another().launch, request(lifetime_s=60))
        until(lambda: any(call.status == 400 for call in aws.control.calls("RunInstances")))
        aws.control.set_lag(0.0)
        allocation = launch.result()
    assert [one.instance_id for one in aws.control.instances()] == list(allocation.machines.values())


def test_what_no_listing_shows_is_ended_by_what_it_is_attached_to(aws: Aws, provisioner: AwsProvisioner) -> None:
    """The launch's answer is lost and no listing shows the machine: its interface in the security group has its id."""
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
        until(lambda: bool(aws.control.calls("TerminateInstances")))
        aws.control.set_lag(0.0)
        end.result()
    assert {call.params["InstanceId.1"] for call in aws.control.calls("TerminateInstances")} == {lost.instance_id}
    assert left() == {}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_region_that_is_full_where_the_type_is_sold_is_full(aws: Aws, provisioner: AwsProvisioner) -> None:
    offers = ec2().describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p6-b200.48xlarge"]}]
    )["InstanceTypeOfferings"]
    assert 0 < len(offers) < 6
    for offer in offers:
        aws.control.set_capacity("p6-b200.48xlarge", offer["Location"], "on-demand", 0)
    refusal = refused(provisioner, request(node(machine_type="p6-b200.48xlarge"), zone=None))
    assert (refusal.error_class, refusal.scope) == ("capacity", "region")


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
    """A clock whose sleep() also ends EC2's eventual consistency lag."""

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
    """EC2 lists a machine for about an hour after its termination. Only a young unlisted machine is pending."""
    now = provisioner.launch(request(node("worker-0.2")))
    merged = dataclasses.replace(now, machines={"worker-0.1": "i-0123456789abcdef0", **now.machines})
    states = {state.node: state.phase for state in another().observe(merged)}
    assert states == {"worker-0.1": "gone", "worker-0.2": "running"}
    young = {**now.launched_at, "worker-0.1": time.time()}
    [first, _] = another().observe(dataclasses.replace(merged, launched_at=young))
    assert first.phase == "pending"


def test_added_interfaces_and_volumes_are_removed_too(provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request())
    client = ec2()
    [group] = ours(client)
    subnet = client.describe_subnets()["Subnets"][0]["SubnetId"]
    client.create_network_interface(SubnetId=subnet, Groups=[group["GroupId"]])
    labels = [{"ResourceType": "volume", "Tags": [{"Key": "cloudgpu-token", "Value": request().token}]}]
    client.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=labels)
    provisioner.terminate(allocation)
    assert left() == {}


# --- credentials, region, VPC -----------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("action", ["DescribeRegions", "RunInstances"])
def test_credentials_that_are_refused_leave_nothing(
    aws: Aws, provisioner: AwsProvisioner, denied: Fault, says: str, action: str
) -> None:
    aws.control.fail(action, denied, times=None)
    refusal = refused(provisioner, request())
    assert refusal.error_class == ("expired" if "sso" in says else "auth")
    for text in (denied.code, denied.message.rstrip("."), says, action):
        assert text in str(refusal)
    assert refusal.may_have_created is (action == "RunInstances")
    if refusal.is_login and action == "RunInstances":  # a retry of the launch finds the machine, or terminate() does
        assert left() != {}
        aws.control.heal()
        provisioner.terminate(Allocation("aws", "digits-abc", 1, request().token, {}, region="us-east-1"))
    assert left() == {}


def test_a_configured_region_that_does_not_exist_does_not_matter(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-esat-1")
    AwsProvisioner(clock=FastClock()).launch(request())
    assert {call.region for call in aws.control.calls("DescribeRegions")} == {"us-east-1"}


def test_what_is_meant_for_decoding_is_left_out_of_the_message(aws: Aws, provisioner: AwsProvisioner) -> None:
    words = "User: arn:aws:iam::1:user/x is not authorized to perform: ec2:RunInstances on resource: y"
    message = f"{words} Encoded authorization failure message: {'k' * 500}"
    aws.control.fail("RunInstances", error("UnauthorizedOperation", 403, message), times=None)
    refusal = refused(provisioner, request())
    assert words in str(refusal) and "kkk" not in str(refusal)


def test_a_wrong_clock_is_reported(aws: Aws) -> None:
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


def test_a_block_whose_machines_are_being_terminated_is_not_used(aws: Aws, provisioner: AwsProvisioner) -> None:
    aws.control.reserve("p5.4xlarge", zone_name("use1-az1"), 1, end_s=1_750)
    refusal = refused(provisioner, request(node(machine_type="p5.4xlarge"), market="reservation"))
    assert refusal.error_class == "capacity" and "no active reservation" in str(refusal)
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
