"""Leak tests of jobs on AWS: despite killed supervisors and failed calls, each job ends once and leaves no resource.

An undisturbed run records the calls. Then the stand-in kills the caller (SIGKILL) after each call of a launch and of a
teardown that changes something; then every answer is lost once, each call is throttled twice, and answered with server
errors. Machines do not boot: a thread writes what agents would.

With CLOUDGPU_LONG=1 (see tests/standins/leaks.py) the caller is killed before and after every call, also those that
only read, and each fault also hits one call at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.aws.jobs import BUCKET, TYPE, AwsJobs, aws_jobs
from cloudgpu.tests.standins.faults import Fault, error
from cloudgpu.tests.standins.leaks import CANCELS, KILLS, Agents, Leaks, Scene, stage, sweeps
from cloudgpu.tests.standins.long_mode import in_long_mode

pytestmark = pytest.mark.timeout(3_600)

NODES = 2
CALLS = {"caller": KEY, "service": "!s3"}
"""The submitter's calls except those to S3: the bucket's objects are kept and cost nothing here."""
SCENE = Scene(
    "aws",
    f"""
name: leaks
resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot, nodes: {NODES}}}
job_dir: s3://{BUCKET}/jobs
run: sleep 0.2
launcher: none
""",
    CALLS,
    "!Describe*|Get*|List*",
)
CHANGES = {
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "CreateRole",
    "PutRolePolicy",
    "CreateInstanceProfile",
    "AddRoleToInstanceProfile",
    "RunInstances",
    "TerminateInstances",
    "RemoveRoleFromInstanceProfile",
    "DeleteInstanceProfile",
    "DeleteRolePolicy",
    "DeleteRole",
    "DeleteSecurityGroup",
}
IMPORTS = ("boto3", "cloudgpu.provisioners.stacks.fleet_queries", "stringprep")
"""Modules that are imported once, before the supervisors are forked."""


class AwsAgents(Agents):
    def __init__(self, jobs: AwsJobs) -> None:
        super().__init__(jobs.parent)
        self._jobs = jobs

    def nodes(self) -> Iterator[tuple[str, int, str]]:
        for one in self._jobs.control.instances(running=True):
            yield one.tags["cloudgpu-job"], int(one.tags["cloudgpu-attempt"]), one.tags["cloudgpu-node"]


class AwsLeaks(Leaks[AwsJobs]):
    def check_machines(self, job: Job) -> None:
        """Check that each node had one machine, and that no rank had two machines at the same time."""
        ranks: dict[str, float] = {}
        for one in self.jobs.instances(job):
            assert one.launched >= ranks.get(one.tags["cloudgpu-rank"], 0.0), self.jobs.diagnostics(job)
            assert one.gone is not None
            ranks[one.tags["cloudgpu-rank"]] = one.gone
        nodes = [(one.tags["cloudgpu-attempt"], one.tags["cloudgpu-node"]) for one in self.jobs.instances(job)]
        assert len(nodes) == len(set(nodes)), self.jobs.diagnostics(job)


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsLeaks]:
    with (
        stage(tmp_path_factory.mktemp("leaks"), "aws", IMPORTS) as (folder, agents, zygote),
        aws_jobs(folder, agents, boot=False) as jobs,
        AwsAgents(jobs),
    ):
        yield AwsLeaks(jobs, jobs.control, SCENE, zygote)


def test_undisturbed(leaks: AwsLeaks) -> None:
    leaks.undisturbed()
    assert leaks.changes == CHANGES


@KILLS
@CANCELS
def test_killed_at_every_call(leaks: AwsLeaks, fault: Fault, cancel: bool) -> None:
    leaks.kill_at_every_call(fault, cancel=cancel)


THROTTLED = {  # each service's error code for throttling
    "ec2": error("RequestLimitExceeded", 503, "Request limit exceeded."),
    "iam": error("Throttling", 400, "Rate exceeded"),
    "ssm": error("ThrottlingException", 400, "Rate exceeded"),
    "servicequotas": error("TooManyRequestsException", 400, "Rate exceeded"),
}
SWEEPS = sweeps(THROTTLED, error("InternalError", 500))


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_call_goes_wrong(leaks: AwsLeaks, sweep: str) -> None:
    leaks.fail_every_call(SWEEPS[sweep])


@in_long_mode
@pytest.mark.parametrize("sweep", SWEEPS)
def test_one_call_goes_wrong(leaks: AwsLeaks, sweep: str) -> None:
    leaks.fail_one_call(SWEEPS[sweep])
