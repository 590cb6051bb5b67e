"""Jobs on a cloud's stand-in as a user has them: the command line, a supervisor in the background, a bucket.

Of no cloud: each cloud's stand-in has a class of its own, which knows its machines.
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
    """What the supervisor would tell of the first machine of a job's newest attempt, were it silent."""
    allocation = job.attempts()[-1].allocation
    assert allocation is not None
    provisioner = get_provisioner(allocation.target)
    assert isinstance(provisioner, Explainer)
    return provisioner.explain(allocation, min(allocation.machines))


class Machine(Protocol):
    """What every cloud's control tells of a machine."""

    @property
    def console(self) -> str: ...

    @property
    def trouble(self) -> list[str]: ...

    @property
    def root(self) -> str: ...


class Remains(Protocol):
    """Who looks for what is left."""

    def find(self) -> Mapping[str, Sequence[str]]: ...


_M = TypeVar("_M", bound=Machine)
_R = TypeVar("_R", bound=Remains)
_T = TypeVar("_T")


class CloudJobs(ABC, Generic[_M, _R]):
    """A state directory, a bucket, and an account in which nothing is of ours yet."""

    cloud: str
    """The target's name."""

    def __init__(self, folder: Path, remains: _R, parent: str) -> None:
        """`parent`: URL under which jobs have their folders."""
        self.folder, self.home = folder, folder / "home"
        self.remains, self.parent = remains, parent

    @abstractmethod
    def instances(self, job: Job, **where: Any) -> list[_M]:
        """Machines of a job, in the order in which they were launched; `where` as in the control's instances()."""

    @abstractmethod
    def headline(self, machine: _M) -> str:
        """One line on a machine."""

    def submit(self, program: str, *, python: str = "python3", text: str = "") -> Job:
        """`cloudgpu submit --detach` of a job that runs this program; `text` adds to the job file.

        In this process, which has imported the cloud's SDK: a new one takes two seconds of the processor's time.
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
        """Where it runs, or ran last."""
        return job.open_dir()

    def is_saved(self, job: Job) -> bool:
        """Whether a whole checkpoint is in the bucket."""
        return any(key.endswith("/COMMIT.json") for key in self.job_dir(job).list("checkpoints"))

    def log(self, job: Job) -> list[str]:
        return [line.text for line in job.logs().read()[0]]

    def wait_for(self, what: Callable[[], _T], job: Job, limit_s: float = PATIENT_S) -> _T:
        """Until it is something; fails with all that is known about the job."""
        end = time.monotonic() + limit_s
        done = job.refresh().done
        while not (found := what()):  # looked at after the job: what its end brings about is there then
            assert time.monotonic() < end, self.story(job)
            assert not done, self.story(job)
            time.sleep(0.05)
            done = job.refresh().done
        return found

    def finish(self, job: Job, state: str = "succeeded", limit_s: float = PATIENT_S) -> None:
        """It ends so, and leaves nothing; nothing went wrong on its machines."""
        assert job.wait(timeout_s=limit_s), self.story(job)
        assert job.state == state, self.story(job)
        assert self.remains.find() == {}
        assert [one.trouble for one in self.instances(job) if one.trouble] == []

    def story(self, job: Job) -> str:
        """For whoever must find out what went wrong."""
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
def settled(jobs: _J, agents: Path, environ: Mapping[str, str]) -> Iterator[_J]:
    """The state directory in use, with these variables. `agents`: where agent files are kept from test to test.

    Nothing is left running afterwards.
    """
    with pytest.MonkeyPatch.context() as patch:
        jobs.home.mkdir()
        (jobs.home / "agents").symlink_to(agents)
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setenv("CLOUDGPU_AGENT_PYTHONS", OWN_PYTHON)  # nothing is fetched for the machines' Python then
        with state_directory(jobs.home, patch):
            yield jobs


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


# -- programs

# Counts up, as long as it takes; nothing but the standard library and what the agent file brings.
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
    """A program of so many steps of 0.1 s each, that resumes. `lingers`: it is to be interrupted, so in its second half
    it takes its time until it was, however busy the computer is that interrupts it."""
    return _paced(_COUNTING, steps, lingers)


def after(path: Path, program: str) -> str:
    """The program, which begins once this file is there: until then it runs, and has not ended."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}):\n    time.sleep(0.1)\n{program}"


def total(steps: int) -> str:
    """What the program prints if no step was left out or done twice."""
    return f"sum {sum(range(steps))}"


# On several machines: every rank counts what all of them have. Its Python is the tests' own, which has torch.
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
    """The same on several machines; to be run by the tests' own Python, with the launcher torchrun."""
    return _paced(_TOGETHER, steps, lingers)


def _paced(program: str, steps: int, lingers: bool) -> str:
    return program.replace("STEPS", str(steps)).replace("LINGERS", str(steps // 2 if lingers else steps))
