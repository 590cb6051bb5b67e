"""AWS components and programs under strict mocks; a fleet's machines equal those of a direct launch."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import botocore
import pulumi
import pulumi_aws as aws
import pytest
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from pulumi._types import input_type_py_to_pulumi_names

from cloudgpu.infra.arguments import ArgumentError
from cloudgpu.infra.aws import GpuCluster, GpuFleet, JobBucket, MachineRole, OrphanReaper
from cloudgpu.infra.aws.network import range_of
from cloudgpu.infra.aws.programs import fleet_program, infra_program
from cloudgpu.infra.settings import FleetOutputs, FleetSettings, InfraSettings
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.aws.machine.images import Image
from cloudgpu.provisioners.aws.machine.request import Place, run_instances
from cloudgpu.provisioners.aws.machine.reservations import Reservation
from cloudgpu.provisioners.aws.machine.template import TemplateResources, buying, check_fleet, template
from cloudgpu.provisioners.aws.resources.network import Subnet
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.provisioners.stacks.fleet_queries import secrets_of
from cloudgpu.tests.standins.pulumi.mocks import Registered, StrictError, exports, only, run_strict

OWNER, REGION = "cloudgpu-tester", "us-east-1"
IMAGE = Image("ami-1", "/dev/sda1", 45)
INFRA = InfraSettings("aws", REGION, "infra-aws", OWNER)
STANDS_IN = Infrastructure(
    "aws",
    REGION,
    "infra-aws",
    OWNER,
    "vpc-1",
    {"use1-az1": "subnet-1", "use1-az4": "subnet-4"},
    machine_role="arn:aws:iam::1:instance-profile/machines",
    job_dir="s3://bucket/jobs",
)
PLAIN = {
    "network_id": "vpc-1",
    "subnets": dict(STANDS_IN.subnets),
    "profile_arn": STANDS_IN.machine_role,
    "owner": OWNER,
}
GROUP, TEMPLATE = "aws:autoscaling/group:Group", "aws:ec2/launchTemplate:LaunchTemplate"


def zones(_arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": REGION,
        "names": ["us-east-1a", "us-east-1b"],
        "zoneIds": ["use1-az4", "use1-az1"],
        "groupNames": [],
        "region": REGION,
    }


def ami(arguments: Mapping[str, Any]) -> dict[str, Any]:
    [wanted] = arguments["filters"]
    assert wanted["name"] == "image-id"
    ebs = {"volume_size": str(IMAGE.min_gb)}
    disk = {"deviceName": IMAGE.root_device, "ebs": ebs, "noDevice": "", "virtualName": ""}
    other = {**disk, "deviceName": "/dev/sdb", "ebs": {"volume_size": "900"}}
    return {"id": wanted["values"][0], "rootDeviceName": IMAGE.root_device, "blockDeviceMappings": [disk, other]}


def parameter(arguments: Mapping[str, Any]) -> dict[str, Any]:
    assert arguments["name"].startswith("/aws/service/deeplearning/ami/x86_64/")
    return {"id": arguments["name"], "name": arguments["name"], "value": "ami-newest"}


INVOKES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "aws:index/getAvailabilityZones:getAvailabilityZones": zones,
    "aws:index/getPartition:getPartition": lambda _: {"id": "aws", "partition": "aws", "dnsSuffix": "amazonaws.com"},
    "aws:ec2/getAmi:getAmi": ami,
    "aws:ssm/getParameter:getParameter": parameter,
}


def registered(program: Callable[[], Any], **options: Any) -> list[Registered]:
    return run_strict(program, invokes=INVOKES, **options)


def fleet(**changes: Any) -> FleetSpec:
    base = {
        "name": "big",
        "cloud": "aws",
        "region": REGION,
        "machine_type": "p4d.24xlarge",
        "accelerator": "A100-40GB",
        "gpus": "8",
        "size": 2,
        "disk_gb": 100.5,
    }
    return FleetSpec.model_validate({**base, **changes})


def settings(spec: FleetSpec, **changes: Any) -> FleetSettings:
    base = FleetSettings(
        "cluster-big", OWNER, spec, STANDS_IN, "#cloud-config\n", IMAGE.ami, "s3://bucket/jobs/fleets/big"
    )
    return dataclasses.replace(base, **changes)


def plain_fleet(**args: Any) -> list[Registered]:
    return registered(lambda: GpuFleet("big", {"machine_type": "g6.xlarge", "size": 1, **PLAIN, **args}))  # type: ignore[typeddict-item]


# --- no drift: a fleet's machines equal those of a launch -------------------------------------------------------------

CASES = {
    "one on demand": (fleet(size=1), None),
    "spot": (fleet(market="spot", on_demand=1), None),
    "peers": (fleet(peers=True, zones=("use1-az1",)), None),
    "many cards": (fleet(peers=True, zones=("use1-az1",), machine_type="p5.48xlarge"), None),
    "a card of its own": (fleet(peers=True, zones=("use1-az1",), machine_type="p6-b300.48xlarge"), None),
    "small disk": (fleet(disk_gb=10), None),
    "no adapter": (fleet(peers=True, machine_type="g6.xlarge"), None),
    "a reservation": (fleet(market="reservation"), Reservation("cr-1", is_block=False, end=None)),
    "a capacity block": (fleet(market="reservation"), Reservation("cr-1", is_block=True, end=1_800_000_000.0)),
}
OF_A_LAUNCH = {"ClientToken", "MinCount", "MaxCount"}
"""Fields of a launch that the group sets, not the template."""
OF_EACH = {"UserData", "TagSpecifications"}
"""Fields that differ between the machines of a launch, and between a fleet and a launch."""


def direct(spec: FleetSpec, reservation: Reservation | None, *, public: bool) -> dict[str, Any]:
    """Return the launcher's request for machines of the same kind in the same network."""
    nodes = tuple(
        NodeRequest(f"worker-{index}.1", "worker", index, index, spec.machine_type, spec.accelerator, Fraction(8))
        for index in range(2 if spec.peers else 1)
    )
    request = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef" * 2,
        owner=Owner(OWNER),
        job_dir="s3://bucket/jobs/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone=spec.zones[0] if spec.zones else None,
        market=spec.market,
        disk_gb=spec.disk_gb,
        nodes=nodes,
        lifetime_s=None,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
    )
    place = Place(
        Subnet("subnet-1", "vpc-1", "use1-az1", "us-east-1a", public=public, free=9),
        group="big-machines-id",
        profile_arn=STANDS_IN.machine_role,
        reservations={} if reservation is None else {spec.machine_type: reservation},
        placement_group="big-near-name" if spec.peers and spec.machine_type.startswith("p") else None,
    )
    return run_instances(request, nodes[0], place, IMAGE, "t" * 32)


def as_ec2_says(value: Any) -> Any:
    """Convert Pulumi's inputs to the form of EC2's API: the inverse of infra/pulumi_arguments.py, written
    independently."""
    renamed = {"securityGroups": "Groups"}
    if isinstance(value, dict):
        return {renamed.get(key, key[0].upper() + key[1:]): as_ec2_says(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_ec2_says(one) for one in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("private", [False, True], ids=["public", "private"])
@pytest.mark.parametrize("case", CASES)
def test_what_pulumi_registers_is_what_a_launch_asks_for(case: str, private: bool) -> None:
    spec, reservation = CASES[case]
    args: dict[str, Any] = {
        "machine_type": spec.machine_type,
        "zones": list(spec.zones),
        "market": spec.market,
        "on_demand": spec.on_demand,
        "disk_gb": spec.disk_gb,
        "peers": spec.peers,
        "private": private,
        "image": IMAGE.ami,
    }
    if reservation is not None:
        args |= {"reservation": reservation.reservation, "capacity_block": reservation.is_block}
    ours = as_ec2_says(only(plain_fleet(**args), TEMPLATE).inputs)
    theirs = direct(spec, reservation, public=not private)
    for interface in theirs["NetworkInterfaces"]:
        assert interface.pop("SubnetId") == "subnet-1"  # set by the group
    if spec.market == "spot":
        assert theirs.pop("InstanceMarketOptions")["MarketType"] == "spot"  # set by the group
    assert set(ours) - set(theirs) == {"Tags", "UpdateDefaultVersion"}  # fields of the template itself
    assert set(theirs) - set(ours) == OF_A_LAUNCH
    for field in sorted(set(theirs) - OF_A_LAUNCH - OF_EACH):
        assert ours[field] == theirs[field], field
    kinds = [one["ResourceType"] for one in theirs["TagSpecifications"]]
    assert [one["ResourceType"] for one in ours["TagSpecifications"]] == [
        kind for kind in kinds if kind != "spot-instances-request"
    ]


def shape(service: str, version: str, name: str) -> Any:
    path = Path(botocore.__file__).parent / "data" / service / version / "service-2.json.gz"
    return ServiceModel(json.loads(gzip.decompress(path.read_bytes()))).shape_for(name)


@pytest.mark.parametrize("case", CASES)
def test_the_wire_format_is_that_of_aws(case: str) -> None:
    spec, reservation = CASES[case]
    around = TemplateResources(
        IMAGE.ami, IMAGE.root_device, 100, "arn:p", "sg-1", True, "IyE=", {"a": "b"}, "pg", reservation
    )
    report = ParamValidator().validate(template(spec, around), shape("ec2", "2016-11-15", "RequestLaunchTemplateData"))
    assert not report.has_errors(), report.generate_report()
    group = {"AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 1, **buying(spec, "lt-1", "3")}
    report = ParamValidator().validate(group, shape("autoscaling", "2011-01-01", "CreateAutoScalingGroupType"))
    assert not report.has_errors(), report.generate_report()


# --- fleets -----------------------------------------------------------------------------------------------------------


def test_a_fleet_s_group() -> None:
    found = registered(lambda: fleet_program(settings(fleet(zones=("use1-az4",)), expires=2e9)))
    group = only(found, GROUP).inputs
    assert (group["minSize"], group["desiredCapacity"], group["maxSize"]) == (0, 2, 2)
    assert group["vpcZoneIdentifiers"] == ["subnet-4"]
    assert group["launchTemplate"] == {"id": "big-template-id", "version": "1"}
    assert "mixedInstancesPolicy" not in group and group["capacityRebalance"] is False
    assert group["waitForCapacityTimeout"] == "0"
    assert group["suspendedProcesses"] == ["AZRebalance"]
    assert group["instanceRefresh"]["strategy"] == "Rolling"
    [hook] = group["initialLifecycleHooks"]
    assert hook["lifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    assert {one["key"]: one["value"] for one in group["tags"] if one["propagateAtLaunch"]} == {
        "Name": "big",
        "cloudgpu-owner": OWNER,
        "cloudgpu-stack": "test",
        "cloudgpu-fleet": "big",
        "cloudgpu-expires": "2000000000",
    }
    data = only(found, TEMPLATE).inputs
    assert base64.b64decode(data["userData"]) == b"#cloud-config\n"
    outputs = FleetOutputs.from_json(exports(found)["cloudgpu"])
    assert outputs == FleetOutputs(
        *("big", "aws", REGION, fleet(zones=("use1-az4",)).template_hash, "big-template-id", "1", "big-group-name", 2),
        fleet_dir="s3://bucket/jobs/fleets/big",
    )


def test_another_time_to_expire_replaces_no_machine() -> None:
    def made(expires: float) -> tuple[Any, Any]:
        found = registered(lambda: fleet_program(settings(fleet(), expires=expires)))
        data = only(found, TEMPLATE).inputs
        return {**data, "tags": None}, only(found, GROUP).inputs["tags"]

    (template_, tags_), (later, tags_later) = made(2e9), made(2e9 + 3_600)
    assert template_ == later and tags_ != tags_later


def test_spot_is_bought_by_the_group_without_a_highest_price() -> None:
    found = registered(lambda: fleet_program(settings(fleet(market="spot", on_demand=1))))
    policy = only(found, GROUP).inputs["mixedInstancesPolicy"]
    assert policy["instancesDistribution"] == {
        "onDemandBaseCapacity": 1,
        "onDemandPercentageAboveBaseCapacity": 0,
        "spotAllocationStrategy": "price-capacity-optimized",
    }
    assert only(found, GROUP).inputs["capacityRebalance"] is True
    assert "instanceMarketOptions" not in only(found, TEMPLATE).inputs


def test_a_block_that_is_paid_for_is_launched_into() -> None:
    paid = settings(fleet(market="reservation", zones=("use1-az1",)), reservation="cr-1", capacity_block=True)
    assert FleetSettings.from_json(paid.to_json()) == paid
    data = only(registered(lambda: fleet_program(paid)), TEMPLATE).inputs
    assert data["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert data["capacityReservationSpecification"] == {"capacityReservationTarget": {"capacityReservationId": "cr-1"}}


def test_a_fleet_that_does_not_heal_replaces_nothing() -> None:
    group = only(registered(lambda: fleet_program(settings(fleet(heal=False, market="spot")))), GROUP).inputs
    assert group["suspendedProcesses"] == ["AZRebalance", "ReplaceUnhealthy"] and group["capacityRebalance"] is False


def test_size_zero_keeps_the_group() -> None:
    group = only(registered(lambda: fleet_program(settings(fleet(size=0)))), GROUP).inputs
    assert (group["desiredCapacity"], group["maxSize"]) == (0, 1)


def test_only_peers_may_connect() -> None:
    rule = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    alone = registered(lambda: fleet_program(settings(fleet())))
    assert [one for one in alone if one.type == rule] == []
    assert not {"ingress", "egress"} & set(only(alone, "aws:ec2/securityGroup:SecurityGroup").inputs)
    together = only(registered(lambda: fleet_program(settings(fleet(peers=True, zones=("use1-az1",))))), rule)
    assert together.inputs["referencedSecurityGroupId"] == together.inputs["securityGroupId"] == "big-machines-id"
    assert not {"cidrIpv4", "cidrIpv6", "prefixListId"} & set(together.inputs)


def test_without_an_image_it_is_aws_s_newest() -> None:
    assert only(plain_fleet(), TEMPLATE).inputs["imageId"] == "ami-newest"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"machine_type": "p5.48xlarge", "peers": True}, "reach no other zone: name one zone"),
        ({"market": "flex-start"}, "EC2 has no market flex-start"),
        ({"market": "reservation"}, "id of a reservation belong together"),
        ({"reservation": "cr-1"}, "id of a reservation belong together"),
        ({"zones": ["use1-az6"]}, "there is no subnet in use1-az6, only in use1-az1, use1-az4"),
        ({"size": "two"}, "two"),
    ],
)
def test_what_ec2_cannot_have_is_said_before_anything_is_made(args: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, StrictError), match=message):
        plain_fleet(**args)


def test_a_fleet_of_another_cloud_is_refused() -> None:
    with pytest.raises(ProvisionError, match="is of gcp, not of aws"):
        check_fleet(fleet(cloud="gcp"))


# --- the infrastructure that fleets use -------------------------------------------------------------------------------


def test_the_infra_program_exports_what_launches_use() -> None:
    outputs = Infrastructure.from_json(exports(registered(lambda: infra_program(INFRA)))["cloudgpu"])
    assert outputs == Infrastructure(
        *("aws", REGION, "infra-aws", OWNER, "cloudgpu-network-vpc-id"),
        {"use1-az1": "cloudgpu-network-use1-az1-id", "use1-az4": "cloudgpu-network-use1-az4-id"},
        machine_role="arn:aws:iam:us-east-1:123456789012:cloudgpu-machines-profile",
        job_dir="s3://cloudgpu-jobs-bucket-id/jobs",
    )


def test_machines_may_read_the_secrets_named_and_no_others() -> None:
    def statements(secrets: dict[str, str]) -> list[dict[str, Any]]:
        found = registered(lambda: infra_program(dataclasses.replace(INFRA, secrets=secrets)))
        assert Infrastructure.from_json(exports(found)["cloudgpu"]).secrets == list(secrets)
        policy = only(found, "aws:iam/rolePolicy:RolePolicy", "cloudgpu-machines-jobs").inputs["policy"]
        listed: list[dict[str, Any]] = json.loads(policy)["Statement"]
        return listed

    key = "arn:aws:kms:us-east-1:1:key/k.1"  # a reference may have any of IAM's characters
    few = statements({})
    more = statements(secrets_of("aws", REGION, ["aws-secretsmanager://a", f"aws-secretsmanager://a?kms-key={key}#k"]))
    assert more[: len(few)] == few
    assert [(one["Action"], one["Resource"]) for one in more[len(few) :]] == [
        ("secretsmanager:GetSecretValue", [f"arn:aws:secretsmanager:{REGION}:*:secret:a-??????"]),
        ("kms:Decrypt", [key]),
    ]
    wrong: Any = {"job_dir": "s3://b/jobs", "secrets": ["gcp-secretmanager://a"]}
    with pytest.raises(ArgumentError, match="secrets: 'gcp-secretmanager://a': expected aws-secretsmanager://"):
        registered(lambda: MachineRole("m", wrong))


def test_the_network_is_in_every_zone_and_closed() -> None:
    found = registered(lambda: infra_program(INFRA))
    subnets = [one.inputs for one in found if one.type == "aws:ec2/subnet:Subnet"]
    assert sorted((one["availabilityZoneId"], one["cidrBlock"]) for one in subnets) == [
        ("use1-az1", "10.90.16.0/20"),
        ("use1-az4", "10.90.64.0/20"),
    ]
    assert all("cloudgpu-subnet" in one["tags"] and one["mapPublicIpOnLaunch"] for one in subnets)
    default = only(found, "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup").inputs
    assert default["ingress"] == default["egress"] == []
    assert not [one for one in found if "securityGroupIngressRule" in one.type]
    endpoint = only(found, "aws:ec2/vpcEndpoint:VpcEndpoint").inputs
    assert endpoint["vpcEndpointType"] == "Gateway" and endpoint["routeTableIds"] == ["cloudgpu-network-routes-id"]


@pytest.mark.parametrize(
    ("zone", "cidr", "said"),
    [("use1-az4", "10.0.0.0/8", "no /16"), ("us-east-1a", "10.0.0.0/16", "no zone"), ("x-az16", "10.0.0.0/16", "no")],
)
def test_ranges_that_cannot_be(zone: str, cidr: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        range_of(zone, cidr)


def test_the_bucket_is_encrypted_private_and_protected() -> None:
    found = registered(lambda: infra_program(INFRA))
    kept = [one for one in found if one.type.startswith("aws:s3/")]
    assert len(kept) == 5 and all(one.protect for one in kept)
    bucket = only(found, "aws:s3/bucket:Bucket").inputs
    assert bucket["forceDestroy"] is False
    private = only(found, "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock").inputs
    assert [private[name] for name in sorted(private) if name != "bucket"] == [True] * 4
    policy = json.loads(only(found, "aws:s3/bucketPolicy:BucketPolicy").inputs["policy"])
    [statement] = policy["Statement"]
    assert statement["Effect"] == "Deny" and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    [rule] = only(found, "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration").inputs["rules"]
    assert rule["abortIncompleteMultipartUpload"] and rule["noncurrentVersionExpiration"]
    assert "expiration" not in rule  # a lifecycle rule must not delete checkpoints


def test_a_bucket_that_may_go_goes_with_everything_in_it() -> None:
    found = registered(lambda: infra_program(dataclasses.replace(INFRA, protect=False, bucket="mine")))
    bucket = only(found, "aws:s3/bucket:Bucket")
    assert (bucket.inputs["bucket"], bucket.inputs["forceDestroy"], bucket.protect) == ("mine", True, False)


def test_a_bucket_that_is_there_is_only_used() -> None:
    found = registered(lambda: infra_program(dataclasses.replace(INFRA, bucket="theirs", adopt=True)))
    assert not [one for one in found if one.type.startswith("aws:s3/")]
    assert exports(found)["cloudgpu"]["job_dir"] == "s3://theirs/jobs"


def test_the_role_reaches_job_dirs_and_lets_a_machine_leave_and_nothing_else() -> None:
    found = registered(lambda: MachineRole("machines", {"job_dir": "s3://bucket/jobs", "owner": OWNER}))
    policy = json.loads(only(found, "aws:iam/rolePolicy:RolePolicy").inputs["policy"])
    objects, listing, leave = policy["Statement"]
    assert objects["Resource"] == ["arn:aws:s3:::bucket/jobs/*", "arn:aws:s3:::bucket/jobs"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["jobs/*", "jobs"]}}
    assert leave["Action"] == "autoscaling:TerminateInstanceInAutoScalingGroup"
    profile = "arn:aws:iam:us-east-1:123456789012:machines-profile"
    assert leave["Condition"] == {"StringEquals": {"aws:ResourceTag/cloudgpu-profile": profile}}
    group = only(plain_fleet(profile_arn=profile), GROUP).inputs
    assert {"key": "cloudgpu-profile", "value": profile, "propagateAtLaunch": False} in group["tags"]
    role = only(found, "aws:iam/role:Role").inputs
    assert (
        role["path"] == only(found, "aws:iam/instanceProfile:InstanceProfile").inputs["path"] == f"/cloudgpu/{OWNER}/"
    )


def test_the_reaper_can_end_only_what_is_tagged() -> None:
    found = registered(lambda: OrphanReaper("reaper", {"owner": OWNER, "every_minutes": 1}))
    statements = json.loads(only(found, "aws:iam/rolePolicy:RolePolicy").inputs["policy"])["Statement"]
    free = [one for one in statements if "Condition" not in one]
    assert {action.partition(":")[2][:8] for one in free for action in one["Action"]} == {
        *("Describe", "CreateLo", "PutLogEv"),
    }
    for one in statements:
        assert "Condition" not in one or one["Condition"]["StringLike"]["aws:ResourceTag/cloudgpu-expires"] == "*"
    rule = only(found, "aws:cloudwatch/eventRule:EventRule").inputs
    assert rule["scheduleExpression"] == "rate(1 minute)"  # EventBridge refuses "1 minutes"


# --- all components ---------------------------------------------------------------------------------------------------


def cluster(**more: Any) -> Callable[[], Any]:
    return lambda: GpuCluster("lab", {"machine_type": "g6.xlarge", "size": 1, "expires": 2e9, **more})  # type: ignore[typeddict-item]


PROGRAMS = {
    "infra": lambda: infra_program(INFRA),
    "fleet": lambda: fleet_program(settings(fleet(peers=True, zones=("use1-az1",), market="spot"), expires=2e9)),
    "cluster": cluster(),
}


@pytest.mark.parametrize("preview", [False, True], ids=["up", "preview"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_everything_is_tagged(program: str, preview: bool) -> None:
    found = registered(PROGRAMS[program], preview=preview)
    untagged = []
    for one in (one for one in found if one.type.startswith("aws:")):
        args = args_of(one.type)
        given = one.inputs.get("tags") or {}
        values = given if isinstance(given, dict) else {tag["key"]: tag["value"] for tag in given}
        if "tags" in input_type_py_to_pulumi_names(args).values() and not (
            values.get("cloudgpu-owner", "").startswith("cloudgpu-") and values.get("cloudgpu-stack") == "test"
        ):
            untagged.append((one.type, one.name, given))
    assert untagged == []


def args_of(token: str) -> Any:
    module, _, name = token.split(":")[1].partition("/")[0], "", token.split(":")[2]
    package = getattr(aws, {"lambda": "lambda_"}.get(module, module))
    return getattr(package, f"{name}InitArgs", None) or getattr(package, f"{name}Args")


def test_its_provider_works_in_one_account_only() -> None:
    account = "123456789012"
    for program in (
        lambda: infra_program(dataclasses.replace(INFRA, account=account)),
        lambda: fleet_program(settings(fleet(), account=account)),
    ):
        assert only(registered(program), "pulumi:providers:aws").inputs["allowedAccountIds"] == f'["{account}"]'


def test_children_are_named_after_their_parents_and_use_their_provider() -> None:
    def program() -> None:
        given = aws.Provider("elsewhere", region="eu-west-1")
        GpuCluster("lab", {"machine_type": "g6.xlarge", "size": 1}, pulumi.ResourceOptions(providers=[given]))

    found = registered(program)
    parts = [one for one in found if one.type.startswith(("aws:", "cloudgpu-aws:"))]
    assert len(parts) > 20
    names = {one.urn: one.name for one in found}
    for one in parts:
        assert one.name == "lab" or one.name.startswith(f"{names[one.parent]}-"), one.name
        assert not one.custom or "::elsewhere::" in one.provider, one.name


def test_type_tokens_stay() -> None:
    """A changed token would replace every resource."""
    assert {one.type for one in registered(cluster()) if not one.custom} - {"pulumi:pulumi:Stack"} == {
        "cloudgpu-aws:index:GpuCluster",
        "cloudgpu-aws:index:GpuFleet",
        "cloudgpu-aws:index:GpuNetwork",
        "cloudgpu-aws:index:JobBucket",
        "cloudgpu-aws:index:MachineRole",
    }
    found = registered(lambda: OrphanReaper("reaper", {}))
    assert found[1].type == "cloudgpu-aws:index:OrphanReaper"


def test_a_cluster_may_use_a_bucket_that_is_there() -> None:
    found = registered(cluster(existing_bucket="theirs"))
    assert not [one for one in found if one.type.startswith("aws:s3/")]
    assert "arn:aws:s3:::theirs/jobs/*" in only(found, "aws:iam/rolePolicy:RolePolicy").inputs["policy"]


def test_a_cluster_s_bucket_may_have_a_name_and_its_machines_be_reserved() -> None:
    found = registered(cluster(bucket="ours", market="reservation", reservation="cr-1", capacity_block=True))
    assert only(found, "aws:s3/bucket:Bucket").inputs["bucket"] == "ours"
    target = only(found, "aws:ec2/launchTemplate:LaunchTemplate").inputs["capacityReservationSpecification"][
        "capacityReservationTarget"
    ]
    assert target == {"capacityReservationId": "cr-1"}


def test_unknown_job_dirs_are_refused() -> None:
    with pytest.raises(ProvisionError, match="must be s3://BUCKET"):
        registered(lambda: MachineRole("machines", {"job_dir": "gs://bucket/jobs"}))


def test_a_bucket_s_prefix_may_be_another() -> None:
    job_dirs: list[str] = []
    registered(lambda: JobBucket("jobs", {"existing": "b", "prefix": "/teams/a/"}).job_dir.apply(job_dirs.append))
    assert job_dirs == ["s3://b/teams/a"]
