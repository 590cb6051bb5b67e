"""Rows of the store that were changed by hand: a damaged row is reported and hides no other row."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest

from cloudgpu.cli.status import view as status_view
from cloudgpu.control.errors import DamagedRowError
from cloudgpu.control.jobs import Job
from cloudgpu.tests.standins.control import World

DAMAGE = ["x", "5", "[5]", "{}", "[" * 100_000, '[{"zone": []}]']
COLUMNS = [("jobs", name) for name in ("offers", "policy", "spent", "created", "spec")]
COLUMNS += [
    ("attempts", name)
    for name in (
        "offer",
        "allocation",
        "progress",
        "timeline",
        "price",
        "launched",
        "nodes",
        "generations",
        "hints",
        "seen",
    )
]


def damage(world: World, table: str, column: str, value: str, job_id: str) -> None:
    where = "id" if table == "jobs" else "job_id"
    with sqlite3.connect(world.folder / "store.db") as connection:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (value, job_id))


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_one_damaged_row_hides_no_other_job(
    world: World, table: str, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = world.submit(), world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: {world.job(job).state for job in (whole, damaged)} == {"running"})
    for value in DAMAGE:
        damage(world, table, column, value, damaged)
        listed = [Job(world.store, row) for row in world.store.list_jobs(active_only=False, limit=9)]
        assert whole in status_view.list_text(listed)
        assert whole in json.dumps(status_view.list_json(listed))
        supervisor.tick(woken=[whole, damaged])
    damage(world, table, column, "x", damaged)
    world.drive(supervisor, until=lambda: world.job(whole).ended is not None)
    assert world.job(whole).state == "succeeded"
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--json"], ["--active"]], ids=" ".join)
def test_status_lists_the_other_jobs(world: World, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, damaged = world.submit(), world.submit()
    world.drive(world.supervisor(), until=lambda: {world.job(job).state for job in (whole, damaged)} == {"running"})
    damage(world, "attempts", "offer", "x", damaged)
    monkeypatch.setenv("CLOUDGPU_DATABASE_URL", f"sqlite:///{world.folder / 'store.db'}")
    monkeypatch.setenv("CLOUDGPU_HOME", str(world.folder / "home"))
    done = subprocess.run(
        [sys.executable, "-m", "cloudgpu", "status", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert whole in done.stdout and damaged in done.stderr, "the damaged one is named beside the list"


def test_what_is_damaged_is_named(world: World) -> None:
    job_id = world.submit()
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")
    damage(world, "attempts", "offer", "{", job_id)
    with pytest.raises(DamagedRowError, match=f"attempt 1 of job {job_id} is damaged in the store: JSONDecodeError"):
        world.attempts(job_id)
    damage(world, "jobs", "offers", "[]", job_id)
    with pytest.raises(DamagedRowError, match=f"job {job_id} is damaged in the store: .*no offer"):
        world.job(job_id)
