"""Tests of trainings below a shell or a custom launcher: the job succeeds only if the training itself does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.tests.standins.agents import World, until, world
from cloudgpu.tests.standins.local_jobs import state_directory, submit_text

__all__ = ["world"]

# A training without torch that can be stopped at each step. `how` selects its variant.
TRAIN = """
import os, sys, time
from cloudgpu.runtime import Checkpointer

how, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
ckpt = Checkpointer(folder=folder, every=1000)
if how == "evaluates":
    print("evaluated at", ckpt.step, flush=True)
    sys.exit()

def train():
    for step in ckpt.steps(steps):
        if step == 2:
            # One write: unbuffered, print() writes the end of the line apart, and another training may come between.
            sys.stdout.write(f"trains in {os.path.basename(folder)} as {os.getpid()}\\n")
            sys.stdout.flush()
        if step > 2 and os.environ["CLOUDGPU_ATTEMPT"] == "1":
            time.sleep(0.02)
        if how == "breaks" and step == 4:
            break
        if how == "exits" and step == 4:
            sys.exit(0)
        if how == "raises" and step == 4:
            raise OSError("no such data")

if how == "swallows":
    try:
        train()
    except BaseException:
        pass
elif how == "finally":
    try:
        train()
    finally:
        sys.exit(0)
else:
    train()
"""

# A custom launcher of two ranks that exits with 1 if any of them fails, like torchrun.
LAUNCH = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "train.py", "plain", f"{sys.argv[1]}-{rank}", "600"]) for rank in range(2)]
sys.exit(1 if any([rank.wait() for rank in ranks]) else 0)
"""
LONG = 100_000


def job(world: World, run: str) -> None:
    """Write a job whose `python` is the one of the tests; $C is the folder of its checkpoints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = {"train.py": TRAIN, "launch.py": LAUNCH}
    world.job(run, code=code, env={"C": str(world.folder / "c"), "PATH": path})


def begin(world: World, run: str, trainings: int = 1) -> subprocess.Popen[bytes]:
    """Start an agent with this `run`, and wait until its program trains."""
    job(world, run)
    agent = world.start()
    until(lambda: world.has_result() or len(pids(world)) == trainings)
    assert not world.has_result(), world.texts("stderr")
    return agent


def pids(world: World) -> list[int]:
    return [int(text.rpartition(" ")[2]) for text in world.texts() if text.startswith("trains in")]


PROGRAMS = {
    "pipe": f'python train.py plain "$C" {LONG} | tee out.txt',
    "next command": f'python train.py plain "$C" {LONG}; echo evaluating; echo "$?" > evaluated',
    "next program": f'python train.py plain "$C" {LONG}\nbash -c \'true; python train.py evaluates "$C" 1; true\'',
    "background": f'python train.py plain "$C" {LONG} & wait',
    "ignored": f'python train.py plain "$C" {LONG} || true',
    "inner shell": f"bash -c 'python train.py plain \"$C\" {LONG} || true; echo evaluating'; echo evaluating",
    "swallows": f'python train.py swallows "$C" {LONG}',
    "finally": f'python train.py finally "$C" {LONG}',
    "launcher": 'python launch.py "$C"; echo evaluating',
    "second training": f'python train.py plain "$C" 3; python train.py plain "$C-2" {LONG}; echo evaluating',
    "two trainings": f'python train.py plain "$C" 600 & python train.py plain "$C-2" {LONG} & wait; echo evaluating',
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_notice_interrupts_whatever_the_shell_ends_with(world: World, name: str) -> None:
    agent = begin(world, PROGRAMS[name], 2 if name in ("launcher", "second training", "two trainings") else 1)
    world.notice(120)
    assert agent.wait(180) == 0
    result = world.result()
    assert (result.outcome, result.reason) == ("preempted", "notice from test: preempt")
    assert not [text for text in world.texts() if text.startswith("evaluat")], world.texts()
    assert not [text for text in world.texts("stderr") if "outcome file" in text]


@pytest.mark.parametrize("name", ["pipe", "next command", "background"])
def test_a_cancelled_job_is_cancelled(world: World, name: str) -> None:
    agent = begin(world, PROGRAMS[name])
    world.stop(120)
    assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().reason) == ("stopped", "cancelled")


@pytest.mark.parametrize("name", ["pipe", "next command", "background", "ignored"])
def test_a_killed_training_has_failed(world: World, name: str) -> None:
    agent = begin(world, PROGRAMS[name])
    os.kill(pids(world)[0], signal.SIGKILL)
    assert agent.wait(180) == 0
    assert world.result().outcome == "failed"


def test_a_killed_training_has_failed_where_an_earlier_one_is_done(world: World) -> None:
    agent = begin(world, PROGRAMS["second training"], 2)
    os.kill(pids(world)[1], signal.SIGKILL)
    assert agent.wait(180) == 0
    result = world.result()
    assert (result.outcome, result.exit_code) == ("failed", 0)
    assert "its training ended before it was done" in result.reason


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        ('python train.py plain "$C" 3 | tee out.txt', "succeeded"),
        ('python train.py plain "$C" 3; python train.py evaluates "$C" 1', "succeeded"),
        ('python train.py breaks "$C" 9; python train.py evaluates "$C" 1', "succeeded"),
        ('python train.py exits "$C" 9', "succeeded"),
        ('python train.py evaluates "$C" 1', "succeeded"),
        ('python train.py raises "$C" 9 || python train.py plain "$C" 5', "succeeded"),
        ('python train.py raises "$C" 9; true', "failed"),
        ('python train.py raises "$C" 9 | tee out.txt', "failed"),
        ('python train.py raises "$C" 9; python train.py evaluates "$C" 1', "failed"),
        ("false | true", "failed"),
        ("true | true; false; true", "succeeded"),
    ],
)
def test_what_ends_by_itself(world: World, run: str, outcome: str) -> None:
    job(world, run)
    assert world.run().outcome == outcome, world.texts("stderr")


def test_a_submitted_job_below_a_pipe_trains_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a preemption, a second attempt resumes from the checkpoint."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    run = f"{sys.executable} train.py plain {tmp_path}/c 3000 2>&1 | tee out.txt"
    with state_directory(tmp_path / "home", monkeypatch):
        job = submit_text(f"name: piped\nretry: {{failure: 0}}\nrun: {run}\n", code)
        until(lambda: any("trains in c" in line.text for line in job.logs().read()[0]))
        job.preempt(120, "worker-0")
        assert job.wait(timeout_s=180)
        assert job.state == "succeeded"
        assert [attempt.outcome for attempt in job.attempts()] == ["preempted", "succeeded"]
        assert len([line for line in job.logs().read()[0] if "restored from" in line.text]) == 1
