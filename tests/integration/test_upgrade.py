"""An upgrade while a job runs: the previous version submits and trains, then this version takes over and continues.

The previous version is the last tag, or FIRST if there is none; it runs with the packages of this environment.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudgpu
from cloudgpu.control.jobs import get_job
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.tests.standins.cloud_jobs import counting, total
from cloudgpu.tests.standins.local_jobs import home

__all__ = ["home"]

ROOT = Path(__file__).parents[2]
FIRST = "cf2470ee00e910ae92b4ba4327e39c02388c8262"
"""Commit from before the first release: its stores, job dirs and checkpoints are the oldest that are supported."""
STEPS = 60
JOB = "name: counts\nresources: {accelerator: none, cloud: local}\nrun: python count.py\n"

pytestmark = pytest.mark.timeout(300)


def until(is_so: Callable[[], bool], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH that contains the previous version as the package `cloudgpu`."""
    described = git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
    revision = FIRST if described.returncode else described.stdout.decode().strip()
    archive = git("archive", revision)
    if archive.returncode:
        pytest.skip(f"NOT CHECKED: this clone has no history up to {revision}, which upgrades are tested from")
    package = tmp_path_factory.mktemp("before") / "cloudgpu"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(package, filter="data")
    root = package / "__init__.py"
    root.write_text(root.read_text().replace('__version__ = "0.1.0"', '__version__ = "0.0.9"'))
    return package.parent


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "count.py").write_text(counting(STEPS))
    yield folder


def run_before(before: Path, project: Path, *words: str) -> str:
    """Run a command of the previous version; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(before)}
    command = [sys.executable, "-m", "cloudgpu", *words]
    done = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_command(*words: str) -> str:
    """Run a command of this version; return what it prints."""
    command = [sys.executable, "-m", "cloudgpu", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_running_job_is_taken_over_and_loses_nothing(before: Path, project: Path, home: Path) -> None:
    assert "0.0.9" in run_before(before, project, "--version")
    run_before(before, project, "submit", "job.yaml", "--detach", "--yes", "--name", "counts")
    until(lambda: "begins at 0" in run_before(before, project, "logs", "counts"))
    old = supervisor_lock.running()
    assert old is not None and old.version == "0.0.9"
    job = get_job("counts")
    assert job.state == "running"
    run_command("status")
    until(lambda: (new := supervisor_lock.running()) is not None and new.version == cloudgpu.__version__)
    assert job.wait(timeout_s=120)
    assert job.refresh().state == "succeeded"
    assert len(job.attempts()) == 1
    assert total(STEPS) in run_command("logs", job.id)

    resumed = run_command("resume", job.id)  # what the previous version stored can go on
    assert f"begins at {STEPS} " in resumed and len(job.refresh().attempts()) == 2


def test_a_checkpoint_is_restored_by_this_version(before: Path, project: Path) -> None:
    command = [sys.executable, "count.py"]
    environment = {**os.environ, "CLOUDGPU_CHECKPOINTS": str(project / "checkpoints"), "CLOUDGPU_ATTEMPT": "1"}
    environment["CLOUDGPU_CHECKPOINT_EVERY"] = "1"
    old = subprocess.Popen(command, cwd=project, env={**environment, "PYTHONPATH": str(before)})
    until(lambda: any(project.glob("checkpoints/0000002*/COMMIT.json")))
    old.send_signal(signal.SIGKILL)
    old.wait()
    new = subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, text=True)
    begun = int(new.stdout.partition("begins at ")[2].split()[0])
    assert begun >= 20
    assert total(STEPS) in new.stdout
