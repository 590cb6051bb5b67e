"""Every call of a launch and of an end on AWS is out of order for more than a minute, one after the other: what the
supervisor repeats gets through, starts each machine once, and leaves nothing.

In the ordinary run they answer 503; with CLOUDGPU_LONG=1 they are throttled, and their answers are lost, as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cloudgpu.provisioners import NodeRequest, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.shared.api_calls import UNKNOWN
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.launches import REQUEST, session
from cloudgpu.tests.standins.aws.process import Leftovers
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HTML, LOSE, Fault, error
from cloudgpu.tests.standins.long_mode import LONG

from .test_aws_grouped import Desk
from .test_aws_shared import offer

pytestmark = pytest.mark.timeout(900)

TIMES = 9
"""Answers in a row that are wrong: with the pauses between them, about a minute of the provisioner's clock."""
_RATE = error("Throttling", 400, "Rate exceeded")
THROTTLED = {
    "ec2": error("RequestLimitExceeded", 503, "Request limit exceeded."),
    "ssm": error("ThrottlingException", 400, "Rate exceeded"),
    "servicequotas": error("TooManyRequestsException", 400, "Rate exceeded"),
    "iam": _RATE,
    "autoscaling": _RATE,
    "sts": _RATE,
}
FAULTS = {"throttled": THROTTLED, "503": dict.fromkeys(THROTTLED, HTML), "lost": dict.fromkeys(THROTTLED, LOSE)}
OWN_MACHINES = {
    "ec2": "DescribeRegions DescribeSpotPriceHistory DescribeAvailabilityZones DescribeSubnets DescribeSecurityGroups "
    "DescribeImages CreateSecurityGroup AuthorizeSecurityGroupIngress AuthorizeSecurityGroupEgress DescribeInstances "
    "CreatePlacementGroup RunInstances TerminateInstances DescribeVolumes DeleteVolume DeletePlacementGroup "
    "DescribeNetworkInterfaces DeleteNetworkInterface DeleteSecurityGroup",
    "ssm": "GetParameters",
    "servicequotas": "GetServiceQuota",
    "sts": "GetCallerIdentity",
    "iam": "CreateRole PutRolePolicy CreateInstanceProfile GetInstanceProfile AddRoleToInstanceProfile "
    "RemoveRoleFromInstanceProfile DeleteInstanceProfile DeleteRolePolicy DeleteRole",
}
A_GROUP = {
    "ec2": "CreateLaunchTemplate DescribeLaunchTemplates DeleteLaunchTemplate",
    "autoscaling": "CreateAutoScalingGroup SuspendProcesses DescribeAutoScalingGroups DeleteAutoScalingGroup",
}
ONCE = {"GetServiceQuota", "AddRoleToInstanceProfile", "TerminateInstances", "DeleteVolume", "DeleteNetworkInterface"}
"""What is done though the answer was lost is not asked for again, and EC2 checks quotas itself."""
NODES = tuple(NodeRequest(f"worker-{n}.1", "worker", n, n, "g4dn.8xlarge", "T4", Fraction(1)) for n in (0, 1))

_T = TypeVar("_T")


class SkippingClock(FastClock):
    """Pauses take no time."""

    def sleep(self, seconds: float) -> None:
        self._skipped += seconds


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


def spoil(aws: Aws, calls: Mapping[str, str], faults: Mapping[str, Fault]) -> None:
    for service, actions in calls.items():
        for action in actions.split():
            aws.control.fail(action, faults[service], where={"service": service}, times=TIMES)


def persist(clock: FastClock, verb: Callable[[], _T]) -> _T:
    """Call a verb as the supervisor does: again, a while after each failure that may pass."""
    until = clock.monotonic() + 3_600
    while True:
        try:
            return verb()
        except ProvisionError as failure:
            assert failure.error_class in UNKNOWN and clock.monotonic() < until, failure
            clock.sleep(failure.retry_after or 10.0)


def spoilt(aws: Aws) -> dict[str, int]:
    """Return how many calls of each action were answered wrongly."""
    wrong = [call.action for call in aws.control.calls() if call.fault]
    return {action: wrong.count(action) for action in wrong}


def leave_behind(aws: Aws) -> None:
    """Put a disk and an interface there that only an accident leaves."""
    client: Any = session().client("ec2", region_name="us-east-1")
    [group] = [one for one in client.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default"]
    used = aws.control.calls("RunInstances")[0].params["NetworkInterface.1.SubnetId"]
    client.create_network_interface(SubnetId=used, Groups=[group["GroupId"]])
    labels = [{"ResourceType": "volume", "Tags": [{"Key": "cloudgpu-token", "Value": REQUEST.token}]}]
    client.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=labels)


@pytest.mark.parametrize("faults", FAULTS if LONG else ["503"])
def test_machines_of_ones_own(aws: Aws, faults: str) -> None:
    """Several Spot machines with fabric adapters: a launch that makes everything that a launch can make."""
    spoil(aws, OWN_MACHINES, FAULTS[faults])
    clock = SkippingClock()
    provisioner = AwsProvisioner(session(), clock)
    while provisioner.price(offer("g4dn.8xlarge")) is None:
        clock.sleep(10.0)
    request = replace(REQUEST, market="spot", nodes=NODES)
    allocation = persist(clock, lambda: provisioner.launch(request))
    assert {one.instance_id for one in aws.control.instances()} == set(allocation.machines.values())
    assert len(allocation.machines) == len(NODES)
    leave_behind(aws)
    assert {one.phase for one in persist(clock, lambda: provisioner.observe(allocation))} <= {"pending", "running"}
    persist(clock, lambda: provisioner.terminate(allocation))
    assert Leftovers(aws.url).find() == {}
    wrong = spoilt(aws)
    assert wrong.keys() == {action for actions in OWN_MACHINES.values() for action in actions.split()}
    few = {action for action, times in wrong.items() if times < TIMES}
    assert few <= (ONCE if faults == "lost" else {"GetServiceQuota"})


@pytest.mark.parametrize("faults", FAULTS if LONG else ["503"])
def test_a_group_of_ones_own(aws: Aws, faults: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    desk = Desk(aws, tmp_path)
    spoil(aws, A_GROUP, FAULTS[faults])
    clock = SkippingClock()
    provisioner = AwsProvisioner(session(), clock)
    allocation = persist(clock, lambda: provisioner.launch(desk.request))
    assert len(desk.machines()) == len(desk.request.nodes)
    persist(clock, lambda: provisioner.observe(allocation))
    persist(clock, lambda: provisioner.terminate(allocation))
    assert desk.remains.find() == {}
    assert spoilt(aws).keys() == {action for actions in A_GROUP.values() for action in actions.split()}
