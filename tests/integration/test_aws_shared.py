"""What the jobs of a process ask AWS once, and what of it is asked again: places, prices, quotas."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.provisioners import LaunchRequest, NodeRequest, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.launches import REQUEST, of_job, session
from cloudgpu.tests.standins.aws.process import Leftovers
from cloudgpu.tests.standins.clocks import FastClock, StillClock
from cloudgpu.tests.standins.faults import HTML, LOSE, Fault, error

GPUS = "L-DB2E81BA"
"""Quota of on-demand G machines: g4dn.xlarge has 4 vCPUs."""


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as made:
        yield made


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    server.control.reset()
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


def ec2() -> Any:
    return session().client("ec2", region_name="us-east-1")


def refused(provisioner: AwsProvisioner, request: LaunchRequest) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(request)
    return caught.value


def offer(machine_type: str = "g4dn.xlarge", zone: str = "use1-az1") -> Offer:
    role = RoleOffer("worker", 1, machine_type, "T4", Fraction(1), 4, 16.0, None)
    return Offer("aws", "us-east-1", zone, "spot", (role,), 100.0, Decimal("0.01"), None, None)


def test_a_launch_beside_others_is_a_few_calls_and_one_for_each_machine(aws: Aws) -> None:
    provisioner = AwsProvisioner(session(), StillClock())
    provisioner.price(offer())
    provisioner.launch(of_job(1))
    aws.control.forget()
    provisioner.price(offer("g5.xlarge", "use1-az2"))
    provisioner.launch(of_job(2))
    of_ec2 = Counter(call.action for call in aws.control.calls() if call.service != "iam")
    assert of_ec2 == {"DescribeSecurityGroups": 1, "CreateSecurityGroup": 1, "RunInstances": 1}


def test_prices_zones_and_subnets_are_asked_again_in_time(aws: Aws) -> None:
    clock = StillClock()
    provisioner = AwsProvisioner(session(), clock)
    for pause, asked in ((0.0, 1), (59.0, 1), (2.0, 2)):
        clock._skipped += pause
        provisioner.price(offer())
        assert len(aws.control.calls("DescribeSpotPriceHistory")) == asked
    assert len(aws.control.calls("DescribeAvailabilityZones")) == 1
    provisioner.launch(of_job(1))
    clock._skipped += 601.0
    provisioner.price(offer())
    provisioner.launch(of_job(2))
    assert len(aws.control.calls("DescribeSubnets")) == 2 == len(aws.control.calls("DescribeAvailabilityZones"))


def test_a_subnet_that_went_away_is_not_used_a_second_time(aws: Aws) -> None:
    provisioner = AwsProvisioner(session(), FastClock())
    provisioner.launch(of_job(1))
    [used] = [call.params["NetworkInterface.1.SubnetId"] for call in aws.control.calls("RunInstances")]
    gone = error("InvalidSubnetID.NotFound", 400, f"The subnet ID '{used}' does not exist")
    aws.control.fail("RunInstances", gone, where={"NetworkInterface.1.SubnetId": used}, times=None)
    aws.control.forget()
    assert refused(provisioner, of_job(2)).code == "InvalidSubnetID.NotFound"
    assert not aws.control.calls("DescribeSubnets")
    refused(provisioner, of_job(2))
    assert len(aws.control.calls("DescribeSubnets")) == 1, "what was remembered is asked anew after the refusal"


def test_a_quota_that_is_in_use_is_waited_for(aws: Aws) -> None:
    aws.control.set_quota("us-east-1", GPUS, 4.0)
    provisioner = AwsProvisioner(session(), FastClock())
    first = provisioner.launch(of_job(1))
    told = refused(provisioner, of_job(2))
    assert (told.error_class, told.scope) == ("capacity", "region")
    assert "4 vCPUs more are needed, but" in str(told) and "4 are in use; they are waited for" in str(told)
    assert not aws.control.calls("CreateSecurityGroup")[1:], "nothing is made for it"
    provisioner.terminate(first)
    assert provisioner.launch(of_job(2)).machines


def test_a_quota_that_is_below_what_a_job_needs_is_not(aws: Aws) -> None:
    aws.control.set_quota("us-east-1", GPUS, 4.0)
    pair = tuple(NodeRequest(f"worker-{n}.1", "worker", n, n, "g4dn.xlarge", "T4", Fraction(1)) for n in (0, 1))
    told = refused(AwsProvisioner(session(), FastClock()), dataclasses.replace(REQUEST, nodes=pair))
    assert (told.error_class, told.scope) == ("quota", "region")
    assert "8 vCPUs more are needed, but" in str(told) and "allows 4;" in str(told)


@pytest.mark.parametrize("market", ["on-demand", "spot"])
@pytest.mark.parametrize(("limit", "error_class"), [(4.0, "capacity"), (None, "quota")])
def test_what_others_use_of_a_quota_is_waited_for_where_the_limit_is_known(
    aws: Aws, market: str, limit: float | None, error_class: str
) -> None:
    """Machines of others are in no listing of ours: EC2 refuses what is too much."""
    code = GPUS if market == "on-demand" else "L-3819A6DF"
    if limit is None:
        aws.control.fail("GetServiceQuota", error("AccessDeniedException", 400), times=None)
    aws.control.set_quota("us-east-1", code, 4.0)
    others = dataclasses.replace(of_job(1), owner=dataclasses.replace(REQUEST.owner, name="another"), market=market)
    AwsProvisioner(session(), FastClock()).launch(others)
    told = refused(AwsProvisioner(session(), FastClock()), dataclasses.replace(of_job(2), market=market))
    assert told.code in ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded")
    assert (told.error_class, told.scope) == (error_class, "region")


@pytest.mark.parametrize(
    ("action", "what"), [("CreateRole", "RolesPerAccount"), ("CreateInstanceProfile", "InstanceProfilesPerAccount")]
)
def test_roles_that_the_jobs_before_have_used_up_are_waited_for(aws: Aws, action: str, what: str) -> None:
    """IAM lets an account have 1,000 of each, and each launch has its own."""
    aws.control.fail(action, error("LimitExceeded", 409, f"Cannot exceed quota for {what}: 1000"), times=None)
    provisioner = AwsProvisioner(session(), FastClock())
    told = refused(provisioner, of_job(1))
    assert (told.error_class, told.scope) == ("capacity", "cloud")
    assert "they are waited for" in str(told) and "cloudgpu infra up" in str(told)
    assert Leftovers(aws.url).find() == {}
    aws.control.heal()
    assert provisioner.launch(of_job(1)).machines


def test_launches_at_the_same_time_do_not_count_on_the_same_vcpus(aws: Aws) -> None:
    """Listings do not show the first machine yet."""
    aws.control.set_quota("us-east-1", GPUS, 4.0)
    aws.control.set_lag(600.0)
    provisioner = AwsProvisioner(session(), FastClock())
    provisioner.launch(of_job(1))
    assert refused(provisioner, of_job(2)).error_class == "capacity"
    assert len(aws.control.calls("RunInstances")) == 1


def test_how_long_a_new_profile_is_unknown_is_learned_once(aws: Aws) -> None:
    """Eight tenths of a second of the stand-in's are 40 s of this clock's, at most: it counts real time as well."""
    aws.control.set_lag(0.0, profiles=0.8)
    provisioner = AwsProvisioner(session(), FastClock())
    provisioner.launch(of_job(1))
    assert 2 <= len(aws.control.calls("RunInstances")) <= 7
    aws.control.forget()
    provisioner.launch(of_job(2))
    assert len(aws.control.calls("RunInstances")) <= 3


THROTTLED = {"ec2": error("RequestLimitExceeded", 503), "iam": error("Throttling", 400)}
# fmt: off
LOOKS_AND_REST = {
    "DescribeRegions", "DescribeSpotPriceHistory", "DescribeAvailabilityZones", "DescribeSubnets", "DescribeVolumes",
    "DescribeSecurityGroups", "DescribeInstances", "DescribeImages", "GetParameters", "GetServiceQuota",
    "GetInstanceProfile", "AuthorizeSecurityGroupIngress", "AuthorizeSecurityGroupEgress", "CreatePlacementGroup",
    "RunInstances", "TerminateInstances", "DeleteVolume", "DescribeNetworkInterfaces", "DeleteNetworkInterface",
    "DeleteRolePolicy", "DeletePlacementGroup", "DeleteSecurityGroup",
}
# fmt: on


@pytest.mark.parametrize("fault", [LOSE, HTML, None], ids=["lost", "503", "throttled"])
def test_each_call_of_a_launch_with_everything_goes_wrong_once(aws: Aws, fault: Fault | None) -> None:
    """Several Spot machines with fabric adapters; a disk and an interface that somebody has left in their place."""
    for action in sorted(LOOKS_AND_REST):
        service = "iam" if action in ("GetInstanceProfile", "DeleteRolePolicy") else "ec2"
        aws.control.fail(action, fault or THROTTLED[service])
    provisioner = AwsProvisioner(session(), FastClock())
    nodes = tuple(NodeRequest(f"worker-{n}.1", "worker", n, n, "g4dn.8xlarge", "T4", Fraction(1)) for n in (0, 1))
    assert provisioner.price(offer("g4dn.8xlarge")) is not None
    allocation = provisioner.launch(dataclasses.replace(REQUEST, market="spot", nodes=nodes))
    assert {one.instance_id for one in aws.control.instances()} == set(allocation.machines.values())
    client = ec2()
    [group] = [one for one in client.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default"]
    subnet = aws.control.calls("RunInstances")[0].params["NetworkInterface.1.SubnetId"]
    client.create_network_interface(SubnetId=subnet, Groups=[group["GroupId"]])
    labels = [{"ResourceType": "volume", "Tags": [{"Key": "cloudgpu-token", "Value": REQUEST.token}]}]
    client.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=labels)
    provisioner.observe(allocation)
    provisioner.terminate(allocation)
    assert Leftovers(aws.url).find() == {}
    assert {call.action for call in aws.control.calls() if call.fault} == LOOKS_AND_REST
