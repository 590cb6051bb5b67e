"""Real jobs on the target `local`, in a state directory of their own; nothing may be left of them."""

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

from cloudgpu.control import paths, presence
from cloudgpu.control.jobs import Job, submit
from cloudgpu.jobspecs.loader import load_text
from cloudgpu.jobspecs.plan import Offer, Plan, RoleOffer
from cloudgpu.tests.standins.control import make_offer

__all__ = ["Offer", "RoleOffer", "home_processes", "start_supervisor", "stop_supervisor", "submit_text"]


def submit_text(text: str, folder: Path, *, nodes: int = 1, price: str = "0", supervise: bool = True) -> Job:
    """Submit a job file; the plan is made by hand, for the planner is not what is tested here."""
    head = "resources: {accelerator: none, cloud: local}\n"
    loaded = load_text(head + text, base=folder)
    return submit(loaded, Plan((make_offer(nodes=nodes, price=price),)), supervise=supervise)


def start_supervisor(*more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "cloudgpu", "supervise", *more], stderr=subprocess.DEVNULL)


def stop_supervisor() -> None:
    """End the background supervisor of this state directory, and wait until it is gone."""
    while presence.is_running():
        with contextlib.suppress(ValueError, ProcessLookupError, FileNotFoundError):
            os.kill(int(paths.supervisor_lock().read_text()), signal.SIGTERM)
        time.sleep(0.05)


def home_processes(home: Path) -> Iterator[psutil.Process]:
    """Processes whose environment names this state directory, this one excepted."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("CLOUDGPU_HOME") == str(home):
                yield process
