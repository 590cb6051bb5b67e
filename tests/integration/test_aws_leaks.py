"""Whatever happens to a supervisor and to its calls, a job on AWS ends, once, and nothing of it is left.

kill -9 at every call of a launch and of a teardown that changes something, as an undisturbed run shows them: the
stand-in kills whoever makes the call when it has done it. Then every answer is lost once, each call throttled twice,
and answered with errors of the server. Machines do not boot here: a thread writes what agents would.

With CLOUDGPU_LONG=1 supervisors are `cloudgpu supervise`, with pauses of full length, kills fall before and after every
call, also those that only look, and each fault hits one call at a time as well.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job, submit
from cloudgpu.control.store import Store
from cloudgpu.jobspecs.loader import load_text
from cloudgpu.jobspecs.planner import plan
from cloudgpu.runtime.jobdir import JobDir, JobDirError, Result, node_key
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.aws.jobs import BUCKET, TYPE, AwsJobs, aws_jobs
from cloudgpu.tests.standins.faults import HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Fault, error
from cloudgpu.tests.standins.zygote import Zygote

pytestmark = pytest.mark.timeout(3_600)

LONG = bool(os.environ.get("CLOUDGPU_LONG"))
NODES = 2
END_S = 120.0
CALLS = {"caller": KEY, "service": "!s3"}
"""Of the submitter to everything but the bucket, where nothing bills, and nothing is left that is not wanted."""
CHANGES = "!Describe*|Get*|List*"
"""Actions that do not only look: all but Describe*, Get*, List*."""
JOB = f"""
name: leaks
resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot, nodes: {NODES}}}
job_dir: s3://{BUCKET}/jobs
run: sleep 0.2
launcher: none
"""
SUPERVISOR = Path(__file__).parents[1] / "standins/hasty.py"
IMPORTS = ("boto3", "cloudgpu.tests.standins.hasty")
"""Taken over by each supervisor from the process it is a fork of."""


class Agents:
    """Write the result of every machine that runs, as if its program had ended at once."""

    def __init__(self, jobs: AwsJobs) -> None:
        self._jobs, self._over = jobs, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._done: set[str] = set()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.1):
            for one in self._jobs.control.instances(running=True):
                if one.instance_id not in self._done:
                    now = time.time()
                    key = node_key(int(one.tags["cloudgpu-attempt"]), one.tags["cloudgpu-node"], "result.json")
                    with contextlib.suppress(JobDirError):
                        JobDir(f"s3://{BUCKET}/jobs/{one.tags['cloudgpu-job']}").create(
                            key, Result("succeeded", 0, "", now, now).to_bytes()
                        )
                        self._done.add(one.instance_id)


class Leaks:
    """Jobs, one after the other, in one account, of which nothing may be left each time."""

    def __init__(self, jobs: AwsJobs, zygote: Zygote) -> None:
        self.jobs, self.control, self._zygote = jobs, jobs.control, zygote
        job = self.submit()
        self.run(job)
        self.actions: dict[str, set[str]] = defaultdict(set)
        """Of a launch and a teardown in which nothing goes wrong, by service."""
        self.calls: list[tuple[str, int]] = []
        """The same as they came: the action, and how often it had been called before."""
        for call in self.control.calls("*" if LONG else CHANGES, **CALLS):
            self.actions[call.service].add(call.action)
            self.calls.append((call.action, sum(action == call.action for action, _ in self.calls)))

    def submit(self) -> Job:
        self.control.heal()
        self.control.forget()
        (code := self.jobs.folder / "code").mkdir(exist_ok=True)
        loaded = load_text(JOB, base=code)
        return submit(loaded, plan(loaded.spec, machine=None, today=datetime.date(2026, 11, 1)), supervise=False)

    def supervise(self) -> int:
        """Until all jobs have ended or it is killed; the exit code."""
        environ = dict(os.environ)
        if LONG:
            command = [sys.executable, "-m", "cloudgpu", "supervise", "--idle-exit", "1s"]
            return subprocess.run(
                command, env=environ, stderr=subprocess.DEVNULL, timeout=END_S, check=False
            ).returncode
        return self._zygote.start([str(SUPERVISOR), "aws"], environ).wait(END_S)

    def run(self, job: Job, *, cancel_when_killed: bool = False) -> int:
        """Supervise it, one killed supervisor after the other, to its end; how often one was killed."""
        kills = 0
        while self.supervise() == -9:
            kills += 1
            assert kills < 3, "one rule kills once"
            if cancel_when_killed:
                Store.open().set_goal(job.id, "cancel", "cancel", time.time())
        self.check(job)
        return kills

    def check(self, job: Job) -> None:
        """It has ended, nothing is left, and no rank of it ever had two machines."""
        assert job.refresh().state in ("succeeded", "cancelled"), self.jobs.story(job)
        assert self.jobs.remains.find() == {}, self.jobs.story(job)
        ranks: dict[str, float] = {}
        for one in self.jobs.instances(job):
            assert one.launched >= ranks.get(one.tags["cloudgpu-rank"], 0.0), self.jobs.story(job)
            assert one.gone is not None
            ranks[one.tags["cloudgpu-rank"]] = one.gone
        nodes = [(one.tags["cloudgpu-attempt"], one.tags["cloudgpu-node"]) for one in self.jobs.instances(job)]
        assert len(nodes) == len(set(nodes)), self.jobs.story(job)


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaks]:
    folder = tmp_path_factory.mktemp("leaks")
    (agents := folder / "agents").mkdir()
    zygote = Zygote(*IMPORTS)
    with aws_jobs(folder, agents, boot=False) as jobs, Agents(jobs):
        yield Leaks(jobs, zygote)
    zygote.close()


def test_undisturbed(leaks: Leaks) -> None:
    job = leaks.submit()
    assert leaks.run(job) == 0
    assert job.state == "succeeded"
    assert len(leaks.jobs.instances(job)) == NODES
    needed = {"CreateSecurityGroup", "CreateRole", "RunInstances", "TerminateInstances", "DeleteSecurityGroup"}
    assert needed <= {action for action, _ in leaks.calls}


@pytest.mark.parametrize("cancel", [False, True], ids=["goes on", "is cancelled"])
@pytest.mark.parametrize("fault", [KILL_BEFORE, KILL_AFTER] if LONG else [KILL_AFTER], ids=lambda fault: fault.kind)
def test_killed_at_every_call(leaks: Leaks, fault: Fault, cancel: bool) -> None:
    for action, before in leaks.calls:
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
def test_every_call_goes_wrong(leaks: Leaks, sweep: str) -> None:
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
def test_one_call_goes_wrong(leaks: Leaks, sweep: str) -> None:
    faults, times = SWEEPS[sweep]
    for action, before in leaks.calls:
        job = leaks.submit()
        for service, fault in faults.items():
            leaks.control.fail(action, fault, where={**CALLS, "service": service}, times=times, skip=before)
        leaks.run(job)
        assert job.state == "succeeded", leaks.jobs.story(job)
        assert len(leaks.jobs.instances(job)) == NODES, leaks.jobs.story(job)
