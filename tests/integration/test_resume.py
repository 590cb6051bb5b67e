"""Real jobs on this machine that end and are resumed: the same bits as undisturbed, and once, whatever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job, get_job
from cloudgpu.control.store.store import open_store
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.jobspecs.plan import Plan
from cloudgpu.provisioners.shared.clock import SystemClock
from cloudgpu.tests.integration.test_supervisor_kill import some_chance
from cloudgpu.tests.standins.control import make_offer
from cloudgpu.tests.standins.local_jobs import home, submit_text
from cloudgpu.tests.standins.long_mode import LONG

pytestmark = pytest.mark.timeout(900)

__all__ = ["home"]

END_S = 300.0
KILLS = 40 if LONG else 6
STEPS = 20

# Slow from step 8 on in its first run, so that it is stopped before its end; FAILS makes it fail there.
TRAIN = """
import hashlib, os, time
import torch
from cloudgpu.runtime import Checkpointer

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
ckpt = Checkpointer(model=model, optimizer=optimizer, every=1)
begun = ckpt.step
print(f"begins at {begun}", flush=True)
for step in ckpt.steps(STEPS):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if FAILS and step == 8:
        ckpt.wait()
        raise RuntimeError("a bug")
    time.sleep(2.0 if begun == 0 and step >= 8 and "CLOUDGPU_JOB_ID" in os.environ else 0.0)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(f"digest {digest}", flush=True)
""".replace("STEPS", str(STEPS))


class Ahead(SystemClock):
    """Clock that the test sets ahead: limits count by it, and nothing sleeps for them."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Supervised:
    """A supervisor of this process, whose clock can be set ahead."""

    def __init__(self) -> None:
        self.clock = Ahead()
        self._supervisor = Supervisor(open_store(), clock=self.clock)

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + END_S
        while not is_so():
            assert time.monotonic() < end
            time.sleep(min(self._supervisor.tick().wait_s, 0.1))

    def finish(self, job: Job) -> str:
        self.until(lambda: job.refresh().done)
        return job.state


def folder(path: Path, *, fails: bool = False) -> Path:
    path.mkdir()
    (path / "train.py").write_text(TRAIN.replace("FAILS", str(fails)))
    return path


def digest(lines: list[str]) -> str:
    (found,) = [line for line in lines if line.startswith("digest ")]
    return found


def output(job: Job) -> list[str]:
    lines, _ = job.logs().read(None)
    return [line.text for line in lines if line.stream != "agent"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of a training that was never stopped."""
    path = folder(tmp_path_factory.mktemp("undisturbed") / "code")
    environment = {**os.environ, "CLOUDGPU_CHECKPOINTS": str(path / "checkpoints")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=path, env=environment, capture_output=True, text=True, check=True
    )
    return digest(done.stdout.splitlines())


def begins(job: Job) -> list[int]:
    return [int(line.split()[-1]) for line in output(job) if line.startswith("begins at ")]


def test_stopped_by_its_cost_it_ends_in_the_same_bits(home: Path, tmp_path: Path, undisturbed: str) -> None:
    text = "name: costly\nrun: python train.py\nlimits: {cost: 1000 USD}\n"
    job = submit_text(text, folder(tmp_path / "code"), price="3600", supervise=False)
    supervised = Supervised()
    supervised.until(lambda: any((Path(job.job_dir.removeprefix("file://"))).glob("checkpoints/*/COMMIT.json")))
    supervised.clock.ahead = 1_000.0
    assert supervised.finish(job) == "stopped" and job.cause == "cost", job.reason
    spent, command = job.cost, job.resume_command
    assert command == f"cloudgpu resume {job.id} --set limits.cost='1000 USD'" and spent is not None

    draft = job.draft_resumption(["limits.cost=1000 USD"])
    assert draft.step == job.saved_step
    job.begin_run(draft, Plan((make_offer(price="3600"),)), supervise=False)
    assert supervised.finish(job) == "succeeded", job.reason
    assert begins(job)[0] == 0 and begins(job)[1] > 0
    assert digest(output(job)) == undisturbed
    assert job.cost is not None and job.cost > spent


def test_failed_and_mended_it_ends_in_the_same_bits(home: Path, tmp_path: Path, undisturbed: str) -> None:
    text = "name: buggy\nrun: python train.py\nretry: {failure: 0}\n"
    job = submit_text(text, folder(tmp_path / "code", fails=True), supervise=False)
    supervised = Supervised()
    assert supervised.finish(job) == "failed"
    draft = job.draft_resumption(code=folder(tmp_path / "mended"))
    job.begin_run(draft, Plan((make_offer(price="0"),)), supervise=False)
    assert supervised.finish(job) == "succeeded", job.reason
    assert begins(job)[0] == 0 and 0 < begins(job)[1] <= 8
    assert digest(output(job)) == undisturbed


def test_a_new_job_starts_from_anothers_checkpoint(home: Path, tmp_path: Path) -> None:
    text = "name: first\nrun: python train.py\nretry: {failure: 0}\n"
    first = submit_text(text, folder(tmp_path / "code", fails=True), supervise=False)
    supervised = Supervised()
    assert supervised.finish(first) == "failed"
    step = first.look_for_checkpoint().saved_step
    second = submit_text(text, folder(tmp_path / "mended"), supervise=False, start_from=f"{first.id}@{step}")
    assert second.row.source is not None and (second.row.source.job, second.row.source.step) == (first.id, step)
    assert supervised.finish(second) == "succeeded", second.reason
    assert begins(second) == [step]
    assert len(first.refresh().attempts()) == 1


# -- kill -9


def resume_command(job: Job, number: int) -> list[str]:
    return [sys.executable, "-m", "cloudgpu", "resume", job.id, "--detach", "--env", f"N={number}"]


def test_killed_at_any_moment_a_run_begins_once_or_not_at_all(home: Path, tmp_path: Path) -> None:
    journal, code = tmp_path / "journal", tmp_path / "code"
    code.mkdir()
    job = submit_text(f"name: killed\nrun: echo $CLOUDGPU_ATTEMPT >> {journal}\n", code)
    assert job.wait(timeout_s=END_S)
    chance, begun = some_chance(), 0
    began = time.monotonic()
    subprocess.run(resume_command(job, 0), check=True, capture_output=True)
    whole_s = time.monotonic() - began
    for number in range(KILLS):
        if number:
            with subprocess.Popen(resume_command(job, number), stdout=subprocess.DEVNULL) as command:
                time.sleep(whole_s * chance.uniform(0.5, 1.0))
                command.kill()
        begun += get_job(job.id).row.run.number - 1 > begun
        assert job.wait(timeout_s=END_S) and job.state == "succeeded", job.reason
        assert job.row.run.number - 1 == begun
    assert job.row.attempt == len(job.attempts()) == begun + 1
    assert journal.read_text().split() == [str(number) for number in range(1, begun + 2)]
    assert [event.kind for event in job.events()].count("resumed") == begun
