"""Real jobs on the target `local`, in a separate state directory; no process may be left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudgpu.control.jobs import Job, list_jobs, submit
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import Offer, Plan, RoleOffer
from cloudgpu.tests.standins.control import make_offer

END_S = 120.0
"""Seconds within which a cancelled job ends."""

__all__ = [
    "Offer",
    "RoleOffer",
    "home",
    "home_processes",
    "start_supervisor",
    "state_directory",
    "stop_supervisor",
    "submit_text",
]


def submit_text(
    text: str,
    folder: Path,
    *,
    nodes: int = 1,
    price: str = "0",
    supervise: bool = True,
    start_from: str | None = None,
) -> Job:
    """Submit a job file with a hand-made plan, since the planner is not under test."""
    head = "resources: {accelerator: none, cloud: local}\n"
    loaded = load_text(head + text, base=folder)
    plan = Plan((make_offer(nodes=nodes, price=price),))
    return submit(loaded, plan, supervise=supervise, start_from=start_from)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with state_directory(tmp_path / "home", monkeypatch) as folder:
        yield folder


@contextlib.contextmanager
def state_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set CLOUDGPU_HOME to this folder; on exit cancel its jobs and assert that no process is left."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(folder))
    try:
        yield folder
    finally:
        for job in list_jobs(active_only=True):
            job.cancel()
            job.wait(timeout_s=END_S)
        end = time.monotonic() + 180
        while (left := list(home_processes(folder))) and time.monotonic() < end:
            stop_supervisor()  # one may have been starting when another was ended
            psutil.wait_procs(left, timeout=1)
    assert left == []


def start_supervisor(*more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "cloudgpu", "supervise", *more], stderr=subprocess.DEVNULL)


def stop_supervisor(number: signal.Signals = signal.SIGTERM) -> None:
    """End the background supervisor of this state directory and wait until it is gone."""
    while (there := supervisor_lock.running()) is not None:
        supervisor_lock.send_signal(there, number)
        time.sleep(0.05)


def home_processes(home: Path) -> Iterator[psutil.Process]:
    """Yield the processes whose environment names this state directory, except this process."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("CLOUDGPU_HOME") == str(home):
                yield process
