"""examples/slurm/train.sbatch, unchanged, on a real Slurm: which ends are requeued, and what the training then
delivers.

All jobs are submitted first and run side by side, because they mostly wait: Slurm checks time limits every 30 s, and
starts a requeued job after 5 s.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from cloudgpu.tests.engines.slurm.cluster import Cluster, Job, missing, running_slurm
from cloudgpu.tests.standins.agents import until

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(missing() is not None, reason=f"NOT CHECKED on a real Slurm: {missing()}")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"

DDP = """
import hashlib, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cloudgpu.runtime import Checkpointer

torch.manual_seed(7)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
ckpt = Checkpointer(model=model, optimizer=optimizer, every=5)
print("rank", rank, "from step", ckpt.step, flush=True)
for step in ckpt.steps(300):
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    if step == 12:
        Path(f"pid-{rank}").write_text(str(os.getpid()))
    if step > 12 and sys.argv[1:] == ["linger"] and "SLURM_RESTART_COUNT" not in os.environ:
        time.sleep(0.5)  # is interrupted meanwhile
if rank == 0:
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
"""
PLAIN = """
import os, sys, time
from pathlib import Path
from cloudgpu.runtime import Checkpointer

ckpt = Checkpointer(every=5)
print("from step", ckpt.step, flush=True)
for step in ckpt.steps(300):
    if step == 12:
        Path("pid-0").write_text(str(os.getpid()))
    if step > 12 and "SLURM_RESTART_COUNT" not in os.environ:
        time.sleep(0.5)
"""
FINAL = "import sys; sys.exit(70)"
CRASHING = "import os; os.kill(os.getpid(), 9)"


TWO_NODES = "--nodes=2", "--nodelist=127.0.0.[1-2]"


class Jobs:
    """The submitted jobs, by the name of their case."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.ids = {name: self._submit(name, case) for name, case in CASES.items()}

    def _submit(self, name: str, case: Case) -> str:
        place = self.folder / name
        place.mkdir()
        (place / "train.py").write_text(case.program)
        options = ["--ntasks-per-node=1", f"--job-name={name}", *case.options]
        return self.cluster.submit(SCRIPT, *options, cwd=place, arguments=case.arguments)

    def output(self, name: str) -> str:
        return (self.folder / name / f"slurm-{self.ids[name]}.out").read_text()

    def ended(self, name: str) -> Job:
        return self.cluster.wait(self.ids[name])

    def pid(self, name: str, rank: int = 0) -> int:
        """Return the process id of a rank once it has done 13 steps, and so has staged a checkpoint."""
        path = self.folder / name / f"pid-{rank}"
        until(lambda: path.exists() and path.read_text())
        return int(path.read_text())

    def weights(self, name: str) -> list[str]:
        """Return the weights that a job has printed at its end, one for each time it got there."""
        return [line for line in self.output(name).splitlines() if line.startswith("weights ")]


def reach_time_limit(jobs: Jobs, name: str) -> None:
    """Lower the time limit so that Slurm sends the signal at its next check of time limits, within 30 s."""
    jobs.pid(name, rank=1)
    jobs.cluster.call("scontrol", "update", f"JobId={jobs.ids[name]}", "EndTime=now+110")


def kill_rank(jobs: Jobs, name: str) -> None:
    os.kill(jobs.pid(name, rank=1), signal.SIGKILL)


def requeue(jobs: Jobs, name: str) -> None:
    jobs.pid(name)
    jobs.cluster.call("scontrol", "requeue", jobs.ids[name])


def preempt(jobs: Jobs, name: str) -> None:
    """Submit a job to the partition with the higher priority, for the whole node that the job uses."""
    jobs.pid(name)
    options = ["--partition=high", "--nodelist=127.0.0.3", "--exclusive", "--wrap=sleep 1"]
    jobs.cluster.call("sbatch", *options, cwd=jobs.folder)


def cancel(jobs: Jobs, name: str) -> None:
    jobs.pid(name)
    jobs.cluster.call("scancel", jobs.ids[name])


class Case(NamedTuple):
    """A job, and what interrupts it."""

    program: str
    deed: Callable[[Jobs, str], None] | None = None
    options: tuple[str, ...] = TWO_NODES
    arguments: tuple[str, ...] = ()


CASES: Mapping[str, Case] = {
    "limit": Case(DDP, reach_time_limit, (*TWO_NODES, "--time=60", "--signal=USR1@100"), ("linger",)),
    "killed": Case(DDP, kill_rank, arguments=("linger",)),
    "requeued": Case(PLAIN, requeue, ("--nodes=1", "--nodelist=127.0.0.1")),
    "cancelled": Case(PLAIN, cancel, ("--nodes=1", "--nodelist=127.0.0.2")),
    "preempted": Case(PLAIN, preempt, ("--nodes=1", "--nodelist=127.0.0.3", "--exclusive")),
    "undisturbed": Case(DDP),
    "final": Case(FINAL),
    "crashing": Case(CRASHING),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CLOUDGPU_")]:
            patch.delenv(name)
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        with running_slurm(nodes=3) as cluster:
            jobs = Jobs(cluster, tmp_path_factory.mktemp("slurm"))
            for name, case in CASES.items():
                if case.deed is not None:
                    case.deed(jobs, name)
            yield jobs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("undisturbed", Job("COMPLETED", "0:0", restarts=0)),
        ("limit", Job("COMPLETED", "0:0", restarts=1)),
        ("killed", Job("COMPLETED", "0:0", restarts=1)),
        ("requeued", Job("COMPLETED", "0:0", restarts=1)),
        ("preempted", Job("COMPLETED", "0:0", restarts=1)),
        ("final", Job("FAILED", "70:0", restarts=0)),
        ("crashing", Job("FAILED", "137:0", restarts=3)),
        ("cancelled", Job("CANCELLED", "0:15", restarts=0)),
    ],
)
def test_how_a_job_ends(name: str, expected: Job, jobs: Jobs) -> None:
    assert jobs.ended(name) == expected, jobs.output(name)


@pytest.mark.parametrize("name", ["limit", "killed"])
def test_the_weights_are_those_of_an_undisturbed_training(name: str, jobs: Jobs) -> None:
    jobs.ended(name), jobs.ended("undisturbed")
    assert jobs.weights(name) == jobs.weights("undisturbed") != []


@pytest.mark.parametrize("name", ["limit", "requeued", "preempted"])
def test_the_step_before_the_end_is_saved(name: str, jobs: Jobs) -> None:
    jobs.ended(name)
    assert ": stopped at step" in jobs.output(name)


def test_no_interrupted_rank_is_ended_because_another_one_has_ended_first(jobs: Jobs) -> None:
    jobs.ended("limit")
    assert "srun: error" not in jobs.output("limit")


def test_the_limit_of_crashes_is_said(jobs: Jobs) -> None:
    jobs.ended("crashing")
    assert "has crashed more than 3 times, the job is not requeued" in jobs.output("crashing")
