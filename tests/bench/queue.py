"""Idle time of a local GPU between two jobs, with real supervisor and agents and a stand-in of the driver."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import cloudgpu
from cloudgpu.control.supervisor import daemon
from cloudgpu.control.supervisor.supervisor_lock import running
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import LocalGpu
from cloudgpu.provisioners.local.provisioner import inspect_machine
from cloudgpu.tests.standins.nvidia import install_driver

from .measure import Row

JOBS = 5
_GPU = LocalGpu("GPU-bench", "NVIDIA L4", 24.0)
_PROGRAM = """
import sys, time
begun = time.time()
time.sleep(14.0)
with open(sys.argv[1], "a") as file:
    print(begun, time.time(), file=file)
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setenv("CLOUDGPU_HOME", str(folder / "home"))
        patch.setenv("CLOUDGPU_LOCK_DIR", name)
        install_driver([_GPU], patch)
        (folder / "main.py").write_text(_PROGRAM)
        with _supervisor():
            loaded = load_text(
                "name: queue\nresources: {cloud: local, accelerator: L4}\ncode: null\n"
                f"run: [{sys.executable}, {folder}/main.py, {folder}/spans]\n"
            )
            plan = cloudgpu.plan(loaded.spec, machine=inspect_machine(), today=datetime.now(UTC).date())
            jobs = [cloudgpu.submit(loaded, plan) for _ in range(JOBS)]
            for job in jobs:
                job.wait()
        spans = [tuple(map(float, line.split())) for line in (folder / "spans").read_text().splitlines()]
    if len(spans) != JOBS:
        raise RuntimeError(f"{len(spans)} of {JOBS} programs have run")
    idle = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    how = f"longest of {len(idle)}, median {statistics.median(idle):.2f}; from a program's end to the next one's begin"
    return [Row("a GPU is idle between two jobs", max(idle), 1.0, "s", how)]


@contextmanager
def _supervisor() -> Iterator[None]:
    """Run a supervisor in a process that has the driver's stand-in too."""
    process = subprocess.Popen([sys.executable, "-m", __name__])
    try:
        while running() is None:
            if process.poll() is not None:
                raise RuntimeError("the supervisor has ended")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as only_here:
        install_driver([_GPU], only_here)
        daemon.run()
