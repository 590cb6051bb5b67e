"""Tests of the rate of AWS calls: token buckets that all jobs of a process share, and one layer of retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudgpu.provisioners import Allocation, LaunchRequest, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.launches import REQUEST, of_job, session
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HTML


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


def launched(provisioner: AwsProvisioner, request: LaunchRequest) -> tuple[Allocation, list[ProvisionError]]:
    """Launch as a supervisor does, with a retry after `retry_after`; return the allocation and the errors before it."""
    errors: list[ProvisionError] = []
    while True:
        try:
            return provisioner.launch(request), errors
        except ProvisionError as error:
            assert error.error_class == "throttled" and error.retry_after, error
            errors.append(error)
            time.sleep(error.retry_after)


def test_launches_at_once_are_not_refused_by_amazons_buckets(aws: Aws) -> None:
    """Sixteen launches take little more than the six seconds that AWS's rate limit implies."""
    aws.control.throttle()
    provisioner = AwsProvisioner(session())
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda number: launched(provisioner, of_job(number)), range(16)))
    calls = aws.control.calls("RunInstances")
    assert len({one for allocation, _ in done for one in allocation.machines.values()}) == 16
    assert len(calls) <= 24, "calls may be late, and meet the next ones; unpaced, four of five are refused"


def fill(provisioner: AwsProvisioner, action: str) -> None:
    """Queue 300 other callers for an action's token bucket."""
    bucket = provisioner._clients._calling._bucket("ec2", "us-east-1", action)
    assert bucket is not None
    for number in range(300):
        bucket.take(f"another {number}")


def refusal(provisioner: AwsProvisioner) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(REQUEST)
    return caught.value


def test_a_launch_whose_turn_is_far_off_makes_nothing_until_then(aws: Aws) -> None:
    clock = FastClock()
    provisioner = AwsProvisioner(session(), clock)
    fill(provisioner, "launch")
    error = refusal(provisioner)
    assert (error.error_class, error.scope, error.is_unsent) == ("throttled", "region", True)
    assert error.retry_after is not None and 60 < error.retry_after < 200
    assert "2 RunInstances calls a second in us-east-1" in str(error)
    assert not error.may_have_created
    assert not [call for call in aws.control.calls() if call.service == "ec2" and call.action != "DescribeRegions"]
    clock.sleep(error.retry_after)
    assert provisioner.launch(REQUEST).machines


def test_a_launch_that_has_begun_keeps_its_turn(aws: Aws) -> None:
    clock = FastClock()
    provisioner = AwsProvisioner(session(), clock)
    fill(provisioner, "RunInstances")
    first = refusal(provisioner)
    assert first.retry_after is not None and 60 < first.retry_after < 200
    assert not aws.control.calls("RunInstances")
    fill(provisioner, "launch")
    clock.sleep(first.retry_after)
    assert provisioner.launch(REQUEST).machines
    assert len(aws.control.calls("CreateSecurityGroup")) == 1
    assert provisioner._clients._calling._begun == set()


@pytest.mark.parametrize("action", ["RunInstances", "CreateRole", "DescribeSubnets", "TerminateInstances"])
def test_one_layer_repeats_a_call(aws: Aws, action: str) -> None:
    """Only one layer retries: a minute of server errors costs about ten calls, not forty."""
    clock = FastClock()
    provisioner = AwsProvisioner(session(), clock)
    allocation = provisioner.launch(of_job(7)) if action == "TerminateInstances" else None
    aws.control.fail(action, HTML, times=None)
    begun = clock.monotonic()
    with pytest.raises(ProvisionError) as caught:
        provisioner.terminate(allocation) if allocation else provisioner.launch(REQUEST)
    minutes = (clock.monotonic() - begun) / 60
    assert caught.value.error_class == "transient"
    assert 3 <= len(aws.control.calls(action)) <= 20 * max(1.0, minutes), "one layer, whatever the jitter of its pauses"
