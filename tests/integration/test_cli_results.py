"""Results and clean-up with real local jobs: outputs, logs as files, the end's text, labels, cancel, rm and prune."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cloudgpu.control.store.store import open_store

from .test_cli_job import Shell, cloudgpu

__all__ = ["cloudgpu"]

WRITE = "mkdir -p results; echo 0.5 > results/loss.txt; printf model > model.pt; seq 200"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "results").mkdir(parents=True)
    (folder / "results/old.txt").write_text("shipped")
    return folder


def job_file(folder: Path, run: str, *more: str, name: str = "digits") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text("\n".join([f"name: {name}", f"run: {json.dumps(run)}", *more]))
    return path


def test_from_the_end_of_a_job_to_its_removal(cloudgpu: Shell, project: Path, tmp_path: Path) -> None:
    file = job_file(project, WRITE, "outputs: [results, model.pt, nope]", "labels: {team: vision}")
    done = cloudgpu("submit", file)
    assert done.returncode == 0
    (job,) = (row.id for row in open_store().list_jobs(active_only=False))
    assert "outputs   2 files, 9 B, in file://" in done.stderr
    assert f"          get them: cloudgpu outputs {job} --to FOLDER" in done.stderr
    assert "outputs   warning: nope is missing" in done.stderr
    waited = cloudgpu("wait", "digits")
    assert waited.stdout == f"{job} succeeded: outputs are missing: nope\n"
    assert f"get them: cloudgpu outputs {job} --to FOLDER" in waited.stderr
    assert f"get them: cloudgpu outputs {job} --to FOLDER" in cloudgpu("status", "digits").stdout
    seen = cloudgpu.status("digits")
    assert (seen["missing_outputs"], seen["outputs_url"]) == (["nope"], f"{seen['job_dir']}/outputs")

    fetched = cloudgpu("outputs", "digits", "--to", tmp_path / "to")
    assert fetched.stdout.splitlines() == [f"2 files, 9 B, in {tmp_path / 'to'}", "verified: 2 files by SHA-256"]
    assert (tmp_path / "to/results/loss.txt").read_text() == "0.5\n"
    assert not (tmp_path / "to/results/old.txt").exists()
    assert cloudgpu("logs", "digits", "--tail", "4").stdout.splitlines()[0] == "199"
    assert cloudgpu("logs", "digits", "--tail", "3", "--follow").stdout.splitlines()[0] == "200"
    assert cloudgpu("logs", "digits", "--to", tmp_path / "logs").returncode == 0
    assert (tmp_path / "logs/attempt-1/worker-0.1.log").read_text().startswith("1\n2\n3\n")

    assert job in cloudgpu("status", "--label", "team=vision").stdout
    assert cloudgpu("status", "--label", "team=nlp").stdout == "no job has team=nlp\n"
    with open_store()._transaction() as connection:
        connection.execute("UPDATE jobs SET ended = ended - 86400", {})
    shown = json.loads(cloudgpu("prune", "--older", "1h", "--dry-run", "--json", "--label", "team=vision").stdout)
    assert [one["job"] for one in shown["jobs"]] == [job] and shown["size"] > 9
    assert cloudgpu("prune", "--older", "1h", "--label", "team=nlp", "--yes").stdout == ""
    asked = cloudgpu("prune", "--older", "1h")
    assert asked.returncode == 2 and "add --yes" in asked.stderr
    assert cloudgpu("rm", job).stdout == f"removed {job}\n"
    assert cloudgpu("status").stdout.startswith("no jobs")
    assert list((cloudgpu.home / "jobs").iterdir()) == []


def test_a_required_output_fails_the_job_without_a_retry(cloudgpu: Shell, project: Path) -> None:
    done = cloudgpu("submit", job_file(project, WRITE, "outputs: {path: nope, required: true}"))
    assert done.returncode == 1
    found = cloudgpu.status("digits")
    assert (found["state"], found["reason"]) == ("failed", "required outputs are missing: nope")
    assert len(found["attempts"]) == 1


def test_several_are_cancelled_by_label_and_running_ones_are_not_removed(cloudgpu: Shell, project: Path) -> None:
    for name, sweep in (("a", "7"), ("b", "7"), ("c", "8")):
        file = job_file(project, "sleep 600", f"labels: {{sweep: {sweep}}}", name=name)
        assert cloudgpu("submit", file, "--detach").returncode == 0
    refused = cloudgpu("rm", "a", "b", "--json", "--yes")
    assert refused.returncode == 2 and "cancel it first" in refused.stderr
    assert [one["removed"] for one in json.loads(refused.stdout)] == [False, False]
    assert cloudgpu("cancel", "--label", "sweep=7").returncode == 2  # without a terminal, and without --yes
    assert cloudgpu("cancel", "a", "--all").returncode == 2
    done = cloudgpu("cancel", "--label", "sweep=7", "--yes", "--wait", "--json")
    assert done.returncode == 0
    cancelled = {one["job"].partition("-")[0]: one for one in json.loads(done.stdout)}
    assert {name: (one["state"], one["cancelled"]) for name, one in cancelled.items()} == {
        "a": ("cancelled", True),
        "b": ("cancelled", True),
    }
    assert [job["name"] for job in json.loads(cloudgpu("status", "--active", "--json").stdout)] == ["c"]
    assert cloudgpu("rm", "--all", "--yes", "--keep-record").returncode == 0
    assert cloudgpu("rm", "--all", "--yes", "--keep-record").stdout == ""
    assert [path.name.partition("-")[0] for path in (cloudgpu.home / "jobs").iterdir()] == ["c"]
    assert {job["name"] for job in json.loads(cloudgpu("status", "--json").stdout)} == {"a", "b", "c"}
    assert "(its files are removed)" in cloudgpu("status", "a").stdout
    assert "were removed" in cloudgpu("outputs", "a").stderr
    assert cloudgpu("cancel", "--all", "--yes", "--wait").returncode == 0
    assert cloudgpu("rm", "--all", "--yes").returncode == 0
    assert json.loads(cloudgpu("status", "--json").stdout) == []


@pytest.mark.parametrize(
    "words",
    [
        ("rm",),
        ("rm", "x", "--label", "a=b"),
        ("rm", "--label", "ab"),
        ("prune",),
        ("prune", "--older", "-1d"),
        ("cancel",),
        ("status", "x", "--label", "a=b"),
        ("outputs", "nope"),
        ("logs", "nope", "--tail", "-1"),
        ("logs", "nope", "--tail", "1", "--to", "x"),
    ],
)
def test_wrong_command_lines_are_said(cloudgpu: Shell, words: tuple[str, ...]) -> None:
    done = cloudgpu(*words)
    assert done.returncode == 2 and "error: " in done.stderr


def test_all_active_jobs_are_listed(cloudgpu: Shell) -> None:
    from cloudgpu.tests.standins.control import make_job, make_offer

    store = open_store()
    for number in range(25):
        url = f"file://{cloudgpu.home}/jobs/run-{number}"
        store.insert_job(
            make_job(f"run-{number}", url, [make_offer()], now=float(number), not_before=sys.maxsize), "submitted"
        )
        store.set_goal(f"run-{number}", "hold", "not for a supervisor", 1.0)
    assert len(cloudgpu("status", "--active").stdout.splitlines()) == 26
    assert "the newest 20 of 25 jobs" in cloudgpu("status").stdout
