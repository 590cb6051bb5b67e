"""Leak tests of jobs with `recover: fleet` on AWS: killed supervisors and failed calls leave nothing of the group.

test_aws_leaks.py has the same tests for launches without an Auto Scaling group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.tests.integration.test_aws_leaks import CALLS, IMPORTS, THROTTLED, AwsAgents
from cloudgpu.tests.standins.aws.jobs import BUCKET, AwsJobs, aws_jobs
from cloudgpu.tests.standins.aws.stacks import create_stack
from cloudgpu.tests.standins.faults import KILL_AFTER, LOSE, Fault, error
from cloudgpu.tests.standins.leaks import CANCELS_IN_THE_LONG_RUN, KILLS, Leaks, Scene, stage, sweeps
from cloudgpu.tests.standins.long_mode import LONG

pytestmark = pytest.mark.timeout(3_600)

TYPE = "p4d.24xlarge"
"""Machine type with a cluster placement group, if there are several machines."""
NODES = 2
SCENE = Scene(
    "aws",
    f"""
name: leaks
resources:
  {{cloud: aws, machine_type: {TYPE}, accelerator: "A100-40GB:8", region: us-east-1, market: spot, nodes: {NODES}}}
job_dir: s3://{BUCKET}/jobs
recover: fleet
run: sleep 0.2
launcher: none
""",
    CALLS,
    "!Describe*|Get*|List*",
    sometimes=frozenset({"TerminateInstances"}),  # only if it sees machines before their group has ended them
)
CHANGES = {
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "CreatePlacementGroup",
    "CreateLaunchTemplate",
    "CreateAutoScalingGroup",
    "SuspendProcesses",
    "DeleteAutoScalingGroup",
    "DeleteLaunchTemplate",
    "DeletePlacementGroup",
    "DeleteSecurityGroup",
}
SWEEPS = sweeps({**THROTTLED, "autoscaling": error("Throttling", 400, "Rate exceeded")}, error("InternalError", 500))


class GroupAgents(AwsAgents):
    def nodes(self) -> Iterator[tuple[str, int, str]]:
        """Yield all nodes of each attempt whose machines all run: which machine has which node does not matter."""
        there = [one.tags for one in self._jobs.control.instances(running=True)]
        running = Counter((tags["cloudgpu-job"], int(tags["cloudgpu-attempt"])) for tags in there)
        for (job_id, attempt), number in running.items():
            if number == NODES:
                yield from ((job_id, attempt, f"worker-{index}.1") for index in range(NODES))


class GroupLeaks(Leaks[AwsJobs]):
    def check_machines(self, job: Job) -> None:
        """Check that one group launched all machines of the job, and not more than needed."""
        found = self.jobs.instances(job)
        assert all(one.gone is not None for one in found), self.jobs.diagnostics(job)
        assert len({one.tags["aws:autoscaling:groupName"] for one in found}) <= 1, self.jobs.diagnostics(job)
        assert len(found) <= NODES, self.jobs.diagnostics(job)


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupLeaks]:
    with (
        stage(tmp_path_factory.mktemp("leaks"), "aws", IMPORTS) as (folder, agents, zygote),
        aws_jobs(folder, agents, boot=False) as jobs,
        GroupAgents(jobs),
    ):
        create_stack(jobs.session, "us-east-1", jobs.parent)
        jobs.remains.ignore_existing()
        yield GroupLeaks(jobs, jobs.control, SCENE, zygote)


def test_undisturbed(leaks: GroupLeaks) -> None:
    leaks.undisturbed()
    assert leaks.changes == CHANGES


@KILLS
@CANCELS_IN_THE_LONG_RUN
def test_killed_at_every_call(leaks: GroupLeaks, fault: Fault, cancel: bool) -> None:
    leaks.kill_at_every_call(fault, cancel=cancel)


@pytest.mark.parametrize("sweep", SWEEPS if LONG else ["answer lost"])
def test_every_call_goes_wrong(leaks: GroupLeaks, sweep: str) -> None:
    leaks.fail_every_call(SWEEPS[sweep])


@pytest.mark.parametrize("fault", [LOSE, KILL_AFTER], ids=lambda fault: fault.kind)
@pytest.mark.parametrize("action", ["CreateAutoScalingGroup", "DeleteAutoScalingGroup"])
def test_a_group_whose_machines_take_long_to_end(leaks: GroupLeaks, fault: Fault, action: str) -> None:
    """The group, and every resource that its machines use, exists until the machines are gone."""
    leaks.jobs.control.set_stopping(0.5)
    try:
        job = leaks.submit()
        leaks.control.fail(action, fault, where=CALLS, times=1)
        leaks.run(job)
        leaks.check_whole(job)
    finally:
        leaks.jobs.control.set_stopping(0.0)
