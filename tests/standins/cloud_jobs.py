"""Jobs on a stand-in cloud, run as by a user: command line, background supervisor and bucket.

This module is independent of the cloud: each cloud's tests subclass CloudJobs for their machines.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest

from cloudgpu.cli import main
from cloudgpu.control.jobs import Job, get_job
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import get_provisioner
from cloudgpu.provisioners.base import Explainer

from .local_jobs import state_directory

PATIENT_S = 300.0
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
AGENT_LOG = "var/lib/cloudgpu/agent.log"


def console_of(job: Job) -> str:
    """Return what the supervisor would report about the first machine of a job's newest attempt if its heartbeats
    stopped."""
    allocation = job.attempts()[-1].allocation
    assert allocation is not None
    provisioner = get_provisioner(allocation.target)
    assert isinstance(provisioner, Explainer)
    return provisioner.explain(allocation, min(allocation.machines))


class Machine(Protocol):
    """Machine as reported by any cloud's control interface."""

    @property
    def console(self) -> str: ...

    @property
    def trouble(self) -> list[str]: ...

    @property
    def root(self) -> str: ...


class Remains(Protocol):
    """Finder of resources that are left over."""

    def find(self) -> Mapping[str, Sequence[str]]: ...


_M = TypeVar("_M", bound=Machine)
_R = TypeVar("_R", bound=Remains)
_T = TypeVar("_T")


class CloudJobs(ABC, Generic[_M, _R]):
    """Jobs on one stand-in cloud, with a state directory, a bucket and an account that has no other resources."""

    cloud: str
    """Name of the target."""

    def __init__(self, folder: Path, remains: _R, parent: str) -> None:
        """`parent`: URL under which jobs have their folders."""
        self.folder, self.home = folder, folder / "home"
        self.remains, self.parent = remains, parent

    @abstractmethod
    def instances(self, job: Job, **where: Any) -> list[_M]:
        """Return a job's machines in launch order; `where` filters as in the control's instances()."""

    @abstractmethod
    def headline(self, machine: _M) -> str:
        """Return one line that describes a machine."""

    def submit(self, program: str, *, python: str = "python3", text: str = "") -> Job:
        """Submit a job that runs this program with `cloudgpu submit --detach`; `text` is appended to the job file.

        The command runs in this process, which has imported the cloud's SDK: the import takes two seconds of CPU time.
        """
        code = self.folder / f"code-{time.monotonic_ns()}"
        code.mkdir()
        (code / "main.py").write_text(program)
        head = f"name: on-{self.cloud}\njob_dir: {self.parent}\ncode: .\nrun: {python} main.py\n"
        (code / "job.yaml").write_text(head + text)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(code), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["submit", "--detach", "--yes", "job.yaml"])
        assert status == 0, err.getvalue()
        return get_job(out.getvalue().split()[-1])

    def job_dir(self, job: Job) -> JobDir:
        """Return the job dir that the job uses now, or used last."""
        return job.open_dir()

    def is_saved(self, job: Job) -> bool:
        """Return whether the bucket holds a complete checkpoint."""
        return any(key.endswith("/COMMIT.json") for key in self.job_dir(job).list("checkpoints"))

    def log(self, job: Job) -> list[str]:
        return [line.text for line in job.logs().read()[0]]

    def wait_for(self, what: Callable[[], _T], job: Job, limit_s: float = PATIENT_S) -> _T:
        """Poll until `what` returns a true value, and return it. Fails with everything known about the job."""
        end = time.monotonic() + limit_s
        done = job.refresh().done
        while not (found := what()):  # checked after the state was read, so that effects of the job's end are visible
            assert time.monotonic() < end, self.diagnostics(job)
            assert not done, self.diagnostics(job)
            time.sleep(0.05)
            done = job.refresh().done
        return found

    def finish(self, job: Job, state: str = "succeeded", limit_s: float = PATIENT_S) -> None:
        """Wait for the job to end in this state; assert that no resources are left and that its machines report no
        trouble."""
        assert job.wait(timeout_s=limit_s), self.diagnostics(job)
        assert job.state == state, self.diagnostics(job)
        assert self.remains.find() == {}
        assert [one.trouble for one in self.instances(job) if one.trouble] == []

    def diagnostics(self, job: Job) -> str:
        """Return everything known about the job, for a failed test's message."""
        lines = [f"{job.id} {job.refresh().state}: {job.reason}"]
        lines += [f"  {event.kind}: {event.message}" for event in job.events()]
        for one in self.instances(job):
            lines.append(f"  {self.headline(one)}")
            lines += [f"    console: {line}" for line in one.console.splitlines()[-20:]]
            agent = Path(one.root, AGENT_LOG)
            lines += [f"    agent: {line}" for line in (agent.read_text() if agent.exists() else "").splitlines()[-20:]]
        with contextlib.suppress(Exception):
            lines += [f"  log: {line}" for line in self.log(job)[-20:]]
        log = self.home / "supervisor.log"
        lines += [f"  supervisor: {line}" for line in (log.read_text() if log.exists() else "").splitlines()[-30:]]
        return "\n".join(lines)


_J = TypeVar("_J", bound=CloudJobs[Any, Any])


@contextlib.contextmanager
def use_state_directory(jobs: _J, agents: Path, environ: Mapping[str, str]) -> Iterator[_J]:
    """Use the state directory of these jobs, with these environment variables.

    `agents`: folder where agent files are kept from test to test. All processes are ended on exit.
    """
    with pytest.MonkeyPatch.context() as patch:
        jobs.home.mkdir()
        (jobs.home / "agents").symlink_to(agents)
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setenv("CLOUDGPU_AGENT_PYTHONS", OWN_PYTHON)  # avoids downloading a Python for the machines
        with state_directory(jobs.home, patch):
            yield jobs


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


# -- programs

# Sums up the step numbers; needs only the standard library and the contents of the agent file.
_COUNTING = """
import os, pathlib, time
from cloudgpu.runtime import Checkpointer

class Total:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

total = Total()
ckpt = Checkpointer(total=total)
begun = ckpt.step
print(f"attempt {os.environ['CLOUDGPU_ATTEMPT']} begins at {begun} with {total.value}", flush=True)
for step in ckpt.steps(STEPS):
    total.value += step
    time.sleep(2.0 if begun == 0 and step >= LINGERS else 0.1)
print(f"sum {total.value}", flush=True)
"""


def counting(steps: int, *, lingers: bool = False) -> str:
    """Return a resumable program of this number of steps of 0.1 s each.

    `lingers`: the program will be interrupted. It is slow in its second half until then, so that the interruption comes
    in time even on a busy computer.
    """
    return _paced(_COUNTING, steps, lingers)


def after(path: Path, program: str) -> str:
    """Return a program that waits until this file exists and then runs `program`."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}):\n    time.sleep(0.1)\n{program}"


def total(steps: int) -> str:
    """Return the line that the program prints if no step was skipped or repeated."""
    return f"sum {sum(range(steps))}"


# For several machines: every rank sums up the step numbers of all ranks. It runs with the tests' Python, which has
# torch.
_TOGETHER = """
import os, time
import torch
import torch.distributed as dist
from cloudgpu.runtime import Checkpointer

class Total:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

torch.set_num_threads(1)
dist.init_process_group("gloo")
total = Total()
ckpt = Checkpointer(total=total)
begun = ckpt.step
print(f"{os.environ['CLOUDGPU_NODE']} begins at {begun}", flush=True)
for step in ckpt.steps(STEPS):
    both = torch.tensor([float(step)])
    dist.all_reduce(both)
    total.value += int(both.item())
    time.sleep(2.0 if begun == 0 and step >= LINGERS else 0.1)
print(f"{os.environ['CLOUDGPU_NODE']} has {total.value}", flush=True)
dist.destroy_process_group()
"""


def counting_together(steps: int, *, lingers: bool = False) -> str:
    """Return a program like that of counting() for several machines. It needs the tests' Python and the launcher
    torchrun."""
    return _paced(_TOGETHER, steps, lingers)


def _paced(program: str, steps: int, lingers: bool) -> str:
    return program.replace("STEPS", str(steps)).replace("LINGERS", str(steps // 2 if lingers else steps))
