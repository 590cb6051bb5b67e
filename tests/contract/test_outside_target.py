"""Tests of a target that another package adds by an entry point: it validates, plans and runs a job.

The package is tests/contract/outside/shed, the example of docs/guides/adding-a-target.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.tests.standins.local_jobs import state_directory

OUTSIDE = Path(__file__).parent / "outside"
JOB = "name: potting\nresources: {cloud: shed, nodes: 2}\nrun: echo hello from $CLOUDGPU_NODE\ncode: null\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory with a job file, in an environment in which the package is installed and set up."""
    with state_directory(tmp_path / "home", monkeypatch) as folder:
        monkeypatch.setenv("PYTHONPATH", str(OUTSIDE))
        monkeypatch.setenv("SHED_KEY", "under the mat")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "job.yaml").write_text(JOB)
        yield folder


def cloudgpu(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "cloudgpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if "--json" in arguments else done.stdout + done.stderr


def test_a_job_runs_on_it(home: Path) -> None:
    assert "job.yaml: valid" in cloudgpu("validate", "job.yaml")
    (offer,) = json.loads(cloudgpu("plan", "job.yaml", "--json"))["offers"]
    assert (offer["cloud"], offer["region"], offer["roles"][0]["nodes"]) == ("shed", "garden", 2)
    said = cloudgpu("submit", "job.yaml")
    assert "hello from worker-0.1" in said and "hello from worker-1.1" in said
    (job,) = json.loads(cloudgpu("status", "--all", "--json"))
    assert (job["state"], job["offer"]["cloud"]) == ("succeeded", "shed")
    assert "nothing to do" in cloudgpu("gc", "--cloud", "shed")


def test_what_it_cannot_honour_is_refused_by_the_rules_and_by_its_planner(home: Path) -> None:
    for field, words in (
        ("priority: 50", "shed has no queue that honours priority"),
        ("resources: {cloud: shed, nodes: 5}", "it has 4 benches, the job wants 5"),
        ("resources: {cloud: shed, market: spot}", "spot"),
        ("resources: {cloud: shed, zone: a}", "shed does not let a job choose its zone"),
        ("job_dir: s3://bucket/jobs", "machines of shed cannot reach it"),
    ):
        lines = [line for line in JOB.splitlines() if line.partition(":")[0] != field.partition(":")[0]]
        Path("job.yaml").write_text("\n".join([*lines, field, ""]))
        assert words in cloudgpu("validate", "job.yaml", code=4), field


def test_it_is_named_where_all_targets_are(home: Path) -> None:
    Path("job.yaml").write_text(JOB.replace("shed", "shedd"))
    assert "expected local, aws, gcp, vertex, azure or shed" in cloudgpu("validate", "job.yaml", code=3)
    assert '"shed"' in cloudgpu("schema")
    Path("job.yaml").write_text("name: anywhere\nresources: {accelerator: L4}\nrun: 'true'\ncode: null\n")
    offers = json.loads(cloudgpu("plan", "job.yaml", "--json"))["offers"]
    assert "shed" not in {offer["cloud"] for offer in offers}, "a job that does not name it is not planned on it"


def test_it_says_so_if_it_is_not_set_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHED_KEY")
    assert "shed is not set up here: write the key's name into SHED_KEY" in cloudgpu("submit", "job.yaml", code=4)


def test_a_job_of_a_package_that_is_gone_is_still_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloudgpu("submit", "job.yaml")
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    assert "potting" in cloudgpu("status", "--all")
    assert "expected local, aws, gcp, vertex or azure" in cloudgpu("validate", "job.yaml", code=3)
