"""Consecutive jobs in one account of a stand-in, which must leave no resources when supervisors are killed or calls
fail.

Machines do not boot here: a thread writes the agents' records. With CLOUDGPU_LONG=1 supervisors are `cloudgpu
supervise` with pauses of full length; otherwise hasty.py, forked from a process with preloaded imports.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import pytest

from cloudgpu.control.jobs import Job, submit
from cloudgpu.control.store.store import Store
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.protocol.jobdir import JobDir, JobDirError, Result, node_key

from .cloud_jobs import CloudJobs
from .faults import HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Call, Control, Fault
from .long_mode import LONG, in_long_mode
from .zygote import Zygote

END_S = 600.0 if LONG else 300.0
SUPERVISOR = Path(__file__).parent / "hasty.py"
TODAY = datetime.date(2026, 11, 1)

KILLS = pytest.mark.parametrize(
    "fault", [KILL_BEFORE, KILL_AFTER] if LONG else [KILL_AFTER], ids=lambda fault: fault.kind
)
CANCELS = pytest.mark.parametrize("cancel", [False, True], ids=["goes on", "is cancelled"])
CANCELS_IN_THE_LONG_RUN = pytest.mark.parametrize(
    "cancel",
    [False, pytest.param(True, marks=in_long_mode)],
    ids=["goes on", "is cancelled"],
)
"""For all clouds but one, since a supervisor's reaction to a cancel at these moments does not depend on the cloud."""

Sweep = tuple[Fault | Mapping[str, Fault], int]
"""Fault of every call (by service where the services' faults differ), and how often it is injected."""


def sweeps(throttled: Fault | Mapping[str, Fault], broken: Fault) -> dict[str, Sweep]:
    """Return the sweeps for a cloud with these faults for throttling and for a server error."""
    times = 3 if LONG else 1
    return {
        "answer lost": (LOSE, 1),
        "throttled twice": (throttled, 2),
        "server error": (broken, times),
        "error page": (HTML, times),
        "connection reset": (RESET, 1),
    }


@dataclass(frozen=True)
class Scene:
    """The job to run, and rules that select the relevant calls."""

    target: str
    """Name of the target, passed to hasty.py."""
    job: str
    """Text of the job file, with the job dir."""
    calls: Mapping[str, str]
    """Rule fields that match the submitter's calls to services that create billed resources."""
    changes: str
    """Glob of mutating actions."""
    nodes: int = 2
    sometimes: frozenset[str] = frozenset()
    """Mutating actions that may or may not be called."""


_J = TypeVar("_J", bound=CloudJobs[Any, Any])


class Leaks(ABC, Generic[_J]):
    """Fault tests for one cloud. The first job runs undisturbed; its calls are the ones that fail in later jobs."""

    def __init__(self, jobs: _J, control: Control, scene: Scene, zygote: Zygote) -> None:
        self.jobs, self.control, self.scene, self._zygote = jobs, control, scene, zygote
        job = self.submit()
        self.run(job)
        self.changes = {call.action for call in self.called(scene.changes)} - scene.sometimes
        """Mutating actions of an undisturbed launch and teardown."""
        self.actions: dict[str, set[str]] = defaultdict(set)
        """Actions in which faults are injected, by service."""
        self.calls: list[tuple[str, int]] = []
        """Calls at which faults are injected, in order: (action, number of earlier calls of this action)."""
        for call in self.called("*" if LONG else scene.changes):
            if call.action not in scene.sometimes:
                self.actions[call.service].add(call.action)
            self.calls.append((call.action, sum(action == call.action for action, _ in self.calls)))

    @abstractmethod
    def check_machines(self, job: Job) -> None:
        """Assert that all machines are gone and that no rank ever had two."""

    def check_whole(self, job: Job) -> None:
        """Assert that the job succeeded with all its machines in one attempt."""
        assert job.state == "succeeded", self.jobs.diagnostics(job)
        assert len(self.jobs.instances(job)) == self.scene.nodes, self.jobs.diagnostics(job)
        assert len(job.attempts()) == 1, self.jobs.diagnostics(job)

    def undisturbed(self) -> None:
        job = self.submit()
        assert self.run(job) == 0
        self.check_whole(job)

    def kill_at_every_call(self, fault: Fault, *, cancel: bool) -> None:
        """Kill the supervisor at each recorded call. In the ordinary run the jobs of every second call are cancelled
        then and the others resumed; in the long run both are tried for each call."""
        for action, before in self.calls if LONG else self.calls[cancel::2]:
            job = self.submit()
            self.control.fail(action, fault, where=self.scene.calls, skip=before)
            kills = self.run(job, cancel_when_killed=cancel)
            story = f"{action} after {before}: {self.jobs.diagnostics(job)}"
            # The number of polls and of retries depends on timing, so a later call may never come.
            never = before > 0 and len(self.called(action)) <= before
            assert kills == 1 or never or action not in self.changes, story
            assert job.state == "succeeded" or (cancel and kills), story
            assert len(job.attempts()) == 1, story

    def fail_every_call(self, sweep: Sweep) -> None:
        """Inject faults in all mutating calls (in the long run: all calls) of one launch and teardown."""
        faults, times = sweep
        job = self.submit()
        for service, actions in self.actions.items():
            fault = faults[service] if isinstance(faults, Mapping) else faults
            for action in sorted(actions):
                self.control.fail(action, fault, where={**self.scene.calls, "service": service}, times=times)
        self.run(job)
        self.check_whole(job)
        assert {call.action for call in self.called() if call.fault} >= self.changes

    def fail_one_call(self, sweep: Sweep) -> None:
        """Inject faults in one call after another, each in a separate launch and teardown."""
        faults, times = sweep
        for action, before in self.calls:
            job = self.submit()
            for service in self.actions:
                fault = faults[service] if isinstance(faults, Mapping) else faults
                where = {**self.scene.calls, "service": service}
                self.control.fail(action, fault, where=where, times=times, skip=before)
            self.run(job)
            self.check_whole(job)

    def called(self, action: str = "*") -> list[Call]:
        """Return the submitter's calls since submit()."""
        return self.control.calls(action, **self.scene.calls)

    def submit(self) -> Job:
        self.control.heal()
        self.control.forget()
        (code := self.jobs.folder / "code").mkdir(exist_ok=True)
        loaded = load_text(self.scene.job, base=code)
        return submit(loaded, plan(loaded.spec, machine=None, today=TODAY), supervise=False)

    def supervise(self) -> int:
        """Run a supervisor until all jobs have ended or it is killed; return its exit code."""
        environ = dict(os.environ)
        if LONG:
            command = [sys.executable, "-m", "cloudgpu", "supervise", "--idle-exit", "1s"]
            done = subprocess.run(command, env=environ, stderr=subprocess.DEVNULL, timeout=END_S, check=False)
            return done.returncode
        return self._zygote.start([str(SUPERVISOR), self.scene.target], environ).wait(END_S)

    def _supervised(self, job: Job) -> int:
        try:
            return self.supervise()
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}\n{self.jobs.diagnostics(job)}") from late

    def run(self, job: Job, *, cancel_when_killed: bool = False) -> int:
        """Run supervisors until the job has ended, restarting after each kill; return the number of kills."""
        kills = 0
        while self._supervised(job) == -9:
            kills += 1
            assert kills < 3, "one rule kills once"
            if cancel_when_killed:
                Store.open().set_goal(job.id, "cancel", "cancel", time.time())
        self.check(job)
        return kills

    def check(self, job: Job) -> None:
        """Assert that the job has ended and that no resources are left."""
        assert job.refresh().state in ("succeeded", "cancelled"), self.jobs.diagnostics(job)
        assert self.jobs.remains.find() == {}, self.jobs.diagnostics(job)
        self.check_machines(job)


@contextlib.contextmanager
def stage(folder: Path, target: str, imports: tuple[str, ...]) -> Iterator[tuple[Path, Path, Zygote]]:
    """Provide a folder, a subfolder for agent files, and the zygote from which this target's supervisors are forked."""
    (agents := folder / "agents").mkdir()
    provisioner = f"cloudgpu.provisioners.{target}.provisioner"
    zygote = Zygote(*imports, provisioner, "cloudgpu.tests.standins.hasty")
    yield folder, agents, zygote
    zygote.close()


class Agents(ABC):
    """Context manager whose thread writes the result of every running node, as if its program had ended at once."""

    def __init__(self, parent: str) -> None:
        """`parent`: URL under which jobs have their folders."""
        self._parent, self._over = parent, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._done: set[tuple[str, int, str]] = set()
        self._broken: list[Exception] = []

    @abstractmethod
    def nodes(self) -> Iterator[tuple[str, int, str]]:
        """Yield (job id, attempt, node) of each running node."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        assert self._broken == []

    def _work(self) -> None:
        while not self._over.wait(0.1):
            try:
                for one in self.nodes():
                    if one not in self._done:
                        self._write(one)
            except Exception as error:  # noqa: BLE001 - raised on exit; until then jobs must go on
                self._broken.append(error)

    def _write(self, one: tuple[str, int, str]) -> None:
        job_id, attempt, node = one
        now = time.time()
        result = Result("succeeded", 0, "", now, now).to_bytes()
        with contextlib.suppress(JobDirError):
            JobDir(f"{self._parent}/{job_id}").create(node_key(attempt, node, "result.json"), result)
            self._done.add(one)
