"""Data saved beside the training state: metrics and the history of interruptions, in real checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, Progress, local_url
from cloudgpu.protocol.metrics import read_metrics

Run = Callable[[int], subprocess.CompletedProcess[str]]

PROGRAM = """
import os, sys
from cloudgpu.runtime import Checkpointer

ckpt = Checkpointer(folder=sys.argv[1], every=5)
for step in ckpt.steps(40):
    ckpt.log(loss=step * 0.5, process=os.getpid())
    if step == int(sys.argv[2]):
        ckpt._saver.settle(float("inf"))  # the saves that are due are committed
        os._exit(9)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(die_at: int) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "CLOUDGPU_PROGRESS": str(tmp_path / "progress.json")}
        words = [sys.executable, "-c", PROGRAM, str(tmp_path / "checkpoints"), str(die_at)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return start


AUTOMATIC = """
import os, sys
from cloudgpu.runtime import Checkpointer

ckpt = Checkpointer(folder=sys.argv[1], every="auto")
for step in ckpt.steps(40):
    print(ckpt._schedule.history(0.0)["markets"]["unknown"][1], flush=True)
    if step == 0 and sys.argv[2] == "save":
        ckpt.save()
    if step == 3:
        ckpt._saver.settle(float("inf"))
        os._exit(9)
"""


def test_starts_that_ended_before_their_first_save_are_counted(tmp_path: Path) -> None:
    """Four processes are interrupted; only the first one saves."""
    seen = []
    for what in ("save", "-", "-", "-"):
        words = [sys.executable, "-c", AUTOMATIC, str(tmp_path / "checkpoints"), what]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 9, done.stderr
        seen.append(int(done.stdout.split()[0]))
    assert seen == [0, 1, 2, 3]


def test_metrics_and_history_survive_processes_that_die(tmp_path: Path, run: Run) -> None:
    for die_at, expected in ((12, 9), (23, 9), (-1, 0)):
        done = run(die_at)
        assert done.returncode == expected, done.stderr
    rows = read_metrics(JobDir(local_url(tmp_path / "checkpoints")), "")
    assert [row.step for row in rows] == list(range(40))
    assert [row.values["loss"] for row in rows] == [step * 0.5 for step in range(40)]
    processes = [row.values["process"] for row in rows]
    changes = [step for step in range(1, 40) if processes[step] != processes[step - 1]]
    assert changes == [10, 20], "each step as the history that counts did it: saves were at 10 and 20"
    record = Progress.from_bytes((tmp_path / "progress.json").read_bytes())
    assert (record.step, record.saved_step, record.restored_step) == (40, 40, 20)
    assert record.cost is not None
    assert record.mean is not None
    assert record.saved_seconds == pytest.approx(record.step_seconds)
