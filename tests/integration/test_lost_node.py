"""Loss of one of several nodes: only that node is replaced; with `nodes: 1..2` the others continue without it
meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job, submit
from cloudgpu.control.reconcile.node_observation import read_furthest
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import Plan
from cloudgpu.provisioners.local.machine import marked
from cloudgpu.tests.standins.control import make_offer
from cloudgpu.tests.standins.ddp import TRAIN, beginnings
from cloudgpu.tests.standins.local_jobs import home, state_directory
from cloudgpu.tests.standins.long_mode import in_long_mode

pytest.importorskip("torch")

__all__ = ["home"]

WAIT_S = 300.0
STEPS = 100
UNDISTURBED = "undisturbed"
"""File name: once the file exists, nothing interrupts the training any more; see ddp.py."""


def start(folder: Path, nodes: str, step_s: float, more: str = "") -> Job:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", str(STEPS), str(step_s), str(folder / UNDISTURBED)]
    text = (
        f"name: pair\nresources: {{accelerator: none, cloud: local, nodes: {nodes}}}\nlauncher: torchrun\n"
        f"retry: {{failure: 0}}\nrun: {command}\n{more}"
    )
    loaded = load_text(text.replace("'", '"'), base=code)
    return submit(loaded, Plan((make_offer(nodes=loaded.spec.resources.nodes.most),)))


def messages(job: Job) -> list[str]:
    return [event.message for event in job.events()]


def until(job: Job, met: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < end and not job.refresh().done, f"{what}: {messages(job)}"
        time.sleep(0.1)


def saved(job: Job) -> int:
    attempt = job.attempts()[-1:]
    beat = read_furthest(job.open_dir(), attempt[0]) if attempt else None
    return 0 if beat is None or beat.progress is None else beat.progress.saved_step or 0


def lose(job: Job, node: str) -> None:
    """Kill the node's processes, as a power failure would."""
    (attempt,) = job.attempts()
    processes = marked(f"{attempt.token}/{node}")
    assert len(processes) > 1
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # it ended with its parent
            os.kill(process, signal.SIGKILL)


def finish(job: Job) -> str:
    assert job.wait(timeout_s=WAIT_S), messages(job)
    assert job.refresh().state == "succeeded", messages(job)
    assert len(job.attempts()) == 1, messages(job)
    return job.open_dir().get("outputs/weights.sha256").decode()


def worlds(job: Job) -> list[tuple[int, int]]:
    """Return (number of ranks, first step) of every process that began to train, in order of time."""
    found, _ = job.logs().read()
    return beginnings([line.text for line in found])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the checksum of the weights of a training that lost no node."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / UNDISTURBED).touch()
    with pytest.MonkeyPatch.context() as patch, state_directory(folder / "home", patch):
        return finish(start(folder, "2", 0.0))


@pytest.mark.parametrize("how", ["lost", pytest.param("preempted", marks=in_long_mode)])
def test_only_the_lost_node_is_replaced(tmp_path: Path, undisturbed: str, home: Path, how: str) -> None:
    job = start(tmp_path, "2", 0.06)
    until(job, lambda: saved(job) >= 16, "never saved")
    if how == "lost":
        lose(job, "worker-1.1")
    else:
        job.preempt(10, "worker-1")
    until(job, lambda: len(worlds(job)) == 4, "they do not go on together")
    (tmp_path / UNDISTURBED).touch()
    assert finish(job) == undisturbed
    (attempt,) = job.attempts()
    assert attempt.allocation is not None
    assert list(attempt.allocation.machines) == ["worker-0.1", "worker-1.1", "worker-1.2"]
    members = [record for record in attempt.generations if record.kind == "members"]
    assert [[node["node"] for node in record.nodes or []] for record in members] == [["worker-0.1", "worker-1.2"]]
    last = attempt.generations[-1]
    assert (last.failures, last.interruptions) == (0, 1), "the survivor's own end is not the program's failure"


@pytest.mark.parametrize("victim", ["worker-0.1", pytest.param("worker-1.1", marks=in_long_mode)])
def test_with_a_range_of_nodes_those_that_are_left_go_on(tmp_path: Path, home: Path, victim: str) -> None:
    """The new machine's setup lasts until the others have trained without it."""
    ready = tmp_path / "ready"
    slow = f"case $CLOUDGPU_NODE in *.2) until [ -e {ready} ]; do sleep 0.1; done;; esac"
    job = start(tmp_path, "1..2", 0.1, f"setup: {slow}\n")
    until(job, lambda: saved(job) >= 16, "never saved")
    lose(job, victim)
    until(job, lambda: len(worlds(job)) == 3, "nobody went on alone")
    before = saved(job)
    until(job, lambda: saved(job) > before, "nothing was saved alone")
    ready.touch()
    until(job, lambda: len(worlds(job)) == 5, "the new one does not join")
    (tmp_path / UNDISTURBED).touch()
    finish(job)
    assert [ranks for ranks, _ in worlds(job)] == [2, 2, 1, 2, 2], messages(job)
    steps = [step for _, step in worlds(job)]
    assert steps == sorted(steps), "nobody began before a step that had been saved"
    (attempt,) = job.attempts()
    members = [record for record in attempt.generations if record.kind == "members"]
    replaced = f"{victim[:-1]}2"
    left = ({"worker-0.1", "worker-1.1"} - {victim}).pop()
    named = [[node["node"] for node in record.nodes or []] for record in members]
    assert named == [[left], sorted([left, replaced])]
    assert (members[-1].failures, members[-1].interruptions) == (0, 1), "growing again costs nothing"
    assert steps[-1] > before, "what was trained alone was saved before the new one joined"
