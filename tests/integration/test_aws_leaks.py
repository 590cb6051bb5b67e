"""Whatever happens to a supervisor and to its calls, a job on AWS ends, once, and nothing of it is left.

kill -9 at every call of a launch and of a teardown that changes something, as an undisturbed run shows them: the
stand-in kills whoever makes the call when it has done it. Then every answer is lost once, each call throttled twice,
and answered with errors of the server. Machines do not boot here: a thread writes what agents would.

With CLOUDGPU_LONG=1: see tests/standins/leaks.py; kills fall before and after every call, also those that only look,
and each fault hits one call at a time as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.aws.jobs import BUCKET, TYPE, AwsJobs, aws_jobs
from cloudgpu.tests.standins.faults import HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Fault, error
from cloudgpu.tests.standins.leaks import LONG, Agents, Leaks, Scene
from cloudgpu.tests.standins.zygote import Zygote

pytestmark = pytest.mark.timeout(3_600)

NODES = 2
CALLS = {"caller": KEY, "service": "!s3"}
"""Of the submitter to everything but the bucket, where nothing bills, and nothing is left that is not wanted."""
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
IMPORTS = ("boto3", "cloudgpu.tests.standins.hasty")
"""Taken over by each supervisor from the process it is a fork of."""


class AwsAgents(Agents):
    def __init__(self, jobs: AwsJobs) -> None:
        super().__init__(jobs.parent)
        self._jobs = jobs

    def nodes(self) -> Iterator[tuple[str, int, str]]:
        for one in self._jobs.control.instances(running=True):
            yield one.tags["cloudgpu-job"], int(one.tags["cloudgpu-attempt"]), one.tags["cloudgpu-node"]


class AwsLeaks(Leaks[AwsJobs]):
    def check_machines(self, job: Job) -> None:
        """Not two of a node, nor two of a rank at the same time."""
        ranks: dict[str, float] = {}
        for one in self.jobs.instances(job):
            assert one.launched >= ranks.get(one.tags["cloudgpu-rank"], 0.0), self.jobs.story(job)
            assert one.gone is not None
            ranks[one.tags["cloudgpu-rank"]] = one.gone
        nodes = [(one.tags["cloudgpu-attempt"], one.tags["cloudgpu-node"]) for one in self.jobs.instances(job)]
        assert len(nodes) == len(set(nodes)), self.jobs.story(job)


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsLeaks]:
    folder = tmp_path_factory.mktemp("leaks")
    (agents := folder / "agents").mkdir()
    zygote = Zygote(*IMPORTS)
    with aws_jobs(folder, agents, boot=False) as jobs, AwsAgents(jobs):
        yield AwsLeaks(jobs, jobs.control, SCENE, zygote)
    zygote.close()


def test_undisturbed(leaks: AwsLeaks) -> None:
    job = leaks.submit()
    assert leaks.run(job) == 0
    assert job.state == "succeeded"
    assert len(leaks.jobs.instances(job)) == NODES
    needed = {"CreateSecurityGroup", "CreateRole", "RunInstances", "TerminateInstances", "DeleteSecurityGroup"}
    assert needed <= {action for action, _ in leaks.calls}


@pytest.mark.parametrize("cancel", [False, True], ids=["goes on", "is cancelled"])
@pytest.mark.parametrize("fault", [KILL_BEFORE, KILL_AFTER] if LONG else [KILL_AFTER], ids=lambda fault: fault.kind)
def test_killed_at_every_call(leaks: AwsLeaks, fault: Fault, cancel: bool) -> None:
    for action, before in leaks.kills(cancel=cancel):
        job = leaks.submit()
        leaks.control.fail(action, fault, where=CALLS, skip=before)
        kills = leaks.run(job, cancel_when_killed=cancel)
        # How often it only looks depends on how long things take.
        assert kills == 1 or action.startswith("Describe"), (action, before, leaks.jobs.story(job))
        assert job.state == "succeeded" or (cancel and kills), leaks.jobs.story(job)
        assert len(job.attempts()) == 1, leaks.jobs.story(job)
        if cancel and action == "TerminateInstances" and not LONG:
            return  # from here on it ends the same


THROTTLED = {  # as each service says it
    "ec2": error("RequestLimitExceeded", 503, "Request limit exceeded."),
    "iam": error("Throttling", 400, "Rate exceeded"),
    "ssm": error("ThrottlingException", 400, "Rate exceeded"),
    "servicequotas": error("TooManyRequestsException", 400, "Rate exceeded"),
}
SWEEPS: dict[str, tuple[Mapping[str, Fault], int]] = {
    "answer lost": (dict.fromkeys(THROTTLED, LOSE), 1),
    "throttled twice": (THROTTLED, 2),
    "server error": (dict.fromkeys(THROTTLED, error("InternalError", 500)), 3 if LONG else 1),
    "error page": (dict.fromkeys(THROTTLED, HTML), 3 if LONG else 1),
    "connection reset": (dict.fromkeys(THROTTLED, RESET), 1),
}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_call_goes_wrong(leaks: AwsLeaks, sweep: str) -> None:
    """All that change something (all, in the long run) in one launch and teardown, each as often as the sweep says."""
    faults, times = SWEEPS[sweep]
    job = leaks.submit()
    for service, fault in faults.items():
        for action in sorted(leaks.actions[service]):
            leaks.control.fail(action, fault, where={**CALLS, "service": service}, times=times)
    leaks.run(job)
    assert job.state == "succeeded", leaks.jobs.story(job)
    assert len(leaks.jobs.instances(job)) == NODES, leaks.jobs.story(job)
    hit = {call.action for call in leaks.control.calls(**CALLS) if call.fault}
    assert hit == {action for service in leaks.actions for action in leaks.actions[service]}


@pytest.mark.skipif(not LONG, reason="CLOUDGPU_LONG")
@pytest.mark.parametrize("sweep", SWEEPS)
def test_one_call_goes_wrong(leaks: AwsLeaks, sweep: str) -> None:
    faults, times = SWEEPS[sweep]
    for action, before in leaks.calls:
        job = leaks.submit()
        for service, fault in faults.items():
            leaks.control.fail(action, fault, where={**CALLS, "service": service}, times=times, skip=before)
        leaks.run(job)
        assert job.state == "succeeded", leaks.jobs.story(job)
        assert len(leaks.jobs.instances(job)) == NODES, leaks.jobs.story(job)
