"""Tests of instances that EC2 terminates while they start: observe() reports the error as launch() would raise it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest

from cloudgpu.provisioners import LaunchRequest, NodeState
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.jobs import TYPE, AwsJobs, agents, jobs
from cloudgpu.tests.standins.aws.launches import REQUEST, session
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.cloud_jobs import counting, total

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)


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


def launched(aws: Aws, code: str, message: str = "", request: LaunchRequest = REQUEST) -> NodeState:
    """Launch a machine that EC2 terminates with this code while it starts, and return its observed state."""
    aws.control.fail_launches(code, message)
    provisioner = AwsProvisioner(session(), FastClock())
    allocation = provisioner.launch(request)
    aws.control.run_delayed()
    [state] = AwsProvisioner(session(), FastClock()).observe(allocation)
    assert state.phase == "gone" and code in state.detail
    return state


@pytest.mark.parametrize(
    ("code", "message", "kind", "says"),
    [
        ("Server.InsufficientInstanceCapacity", "Insufficient capacity.", ("capacity", "zone"), "us-east-1"),
        ("Server.InternalError", "Internal error on launch", ("capacity", "zone"), "while it started"),
        ("Client.InternalError", "Client error on launch", ("capacity", "zone"), "kms:CreateGrant"),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded", ("quota", "region"), "resources.disk"),
        ("Client.InstanceLimitExceeded", "Instance limit exceeded", ("quota", "region"), "Service Quotas"),
        ("Client.InvalidSnapshot.NotFound", "The snapshot was not found.", ("not_offered", "region"), "snapshot"),
        ("Client.InvalidKMSKey.InvalidState", "The key is disabled.", ("auth", "region"), "KMS key"),
        ("Client.InvalidKMSKey.NotFound", "The key does not exist.", ("auth", "region"), "KMS key"),
    ],
)
def test_each_reason_is_reported_as_a_refusal(
    aws: Aws, code: str, message: str, kind: tuple[str, str], says: str
) -> None:
    refused = launched(aws, code, message).refused
    assert refused is not None
    assert (refused.error_class, refused.scope, refused.code) == (*kind, code)
    assert says in str(refused) and message.rstrip(".") in str(refused)


def test_a_machine_that_starts_is_pending_and_one_that_was_ended_is_no_refusal(aws: Aws) -> None:
    provisioner = AwsProvisioner(session(), FastClock())
    aws.control.fail_launches("Server.InternalError", after_s=600.0)
    allocation = provisioner.launch(REQUEST)
    assert [(state.phase, state.refused) for state in provisioner.observe(allocation)] == [("pending", None)]
    provisioner.terminate(allocation)
    [state] = AwsProvisioner(session(), FastClock()).observe(allocation)
    assert (state.phase, state.refused) == ("gone", None)


def test_what_never_ran_has_not_started_for_the_bill(aws: Aws) -> None:
    """has_started is right with the machine's id as well as, after a lost answer, with the launch token alone."""
    for named, after_s, has_started in [(True, 0.0, False), (False, 0.0, False), (True, None, True)]:
        request = replace(REQUEST, token=f"{named:d}{after_s is None:d}" * 16)
        if after_s is not None:
            aws.control.fail_launches("Server.InsufficientInstanceCapacity", "Insufficient capacity.", after_s=after_s)
        provisioner = AwsProvisioner(session(), FastClock())
        allocation = provisioner.launch(request)
        aws.control.run_delayed()
        known = allocation if named else replace(allocation, machines={})
        assert AwsProvisioner(session(), FastClock()).terminate(known).has_started is has_started


def test_an_error_of_the_client_in_a_second_launch_of_the_job_is_a_missing_right(aws: Aws) -> None:
    first = launched(aws, "Client.InternalError").refused
    other_job = launched(aws, "Client.InternalError", request=replace(REQUEST, job_id="other", token="2" * 32)).refused
    second = launched(aws, "Client.InternalError", request=replace(REQUEST, zone="use1-az2", token="1" * 32)).refused
    assert [one and (one.error_class, one.scope) for one in (first, other_job, second)] == [
        ("capacity", "zone"),
        ("capacity", "zone"),
        ("auth", "region"),
    ]
    assert "kms:CreateGrant" in str(second)


RESOURCES = f"resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot}}\n"


def test_a_job_goes_on_in_the_next_zone_and_pays_nothing_for_the_first(jobs: AwsJobs) -> None:
    first = jobs.zones["use1-az1"]
    jobs.control.fail_launches(
        "Server.InsufficientInstanceCapacity", "Insufficient capacity.", zone=first, times=9, after_s=1.0
    )
    job = jobs.submit(counting(5), text=RESOURCES)
    jobs.finish(job)
    assert total(5) in jobs.log(job)
    refused, succeeded = job.attempts()
    assert (refused.outcome, refused.cause, refused.scope) == ("refused", "capacity", "zone"), jobs.diagnostics(job)
    assert refused.cost == Decimal(0)
    assert succeeded.outcome == "succeeded" and succeeded.offer.zone != refused.offer.zone
