"""`cloudgpu gc` with copies of a store: a node with a live heartbeat is not removed without confirmation."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudgpu.cli import gc
from cloudgpu.control import gc_policy, paths
from cloudgpu.control.heartbeats import is_alive
from cloudgpu.control.store.store import Store, open_store
from cloudgpu.control.submit.submission import owner_name
from cloudgpu.protocol.jobdir import Heartbeat, JobDir, Result, local_url, node_key
from cloudgpu.provisioners import get_provisioner
from cloudgpu.provisioners.base import Owner
from cloudgpu.provisioners.tagged_resources import Leftover
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.control import make_job, make_offer

NOW = 1_700_000_000.0
JOB = "digits-abcdefgh"
BEAT, RESULT = node_key(1, "worker-0.1", "heartbeat.json"), node_key(1, "worker-0.1", "result.json")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def leftover(job_id: str = JOB) -> Leftover:
    return Leftover("local", owner_name(), job_id, 1, "0" * 32, None, ())


@pytest.mark.parametrize("knows", ["the job", "another job beside it", "nothing"])
def test_a_fresh_heartbeat_without_a_result_is_life(home: Path, tmp_path: Path, knows: str) -> None:
    parent = paths.default_job_dir() if knows == "nothing" else tmp_path / "jobs"
    known = {"the job": JOB, "another job beside it": "other-abcdefgh"}.get(knows)
    if known:
        url = local_url(parent / known)
        open_store().insert_job(make_job(known, url, [make_offer()], now=NOW), "submitted")
    job_dir, store = JobDir(local_url(parent / JOB)), open_store()
    assert not is_alive(store, leftover(), NOW)
    job_dir.put(BEAT, Heartbeat(7, NOW - 60.0, "running").to_bytes())
    assert is_alive(store, leftover(), NOW)
    assert not is_alive(store, leftover(), NOW + 700.0)
    assert not is_alive(store, dataclasses.replace(leftover(), attempt=2), NOW)
    job_dir.put(RESULT, Result("succeeded", 0, "", 0.0, 1.0).to_bytes())
    assert not is_alive(store, leftover(), NOW)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"sequence": 1, "time": "x", "phase": 5}', b"[" * 100_000])
def test_an_invalid_heartbeat_does_not_count_as_alive(home: Path, content: bytes) -> None:
    job_dir = JobDir(local_url(paths.default_job_dir() / JOB))
    job_dir.put(BEAT, content)
    assert not is_alive(open_store(), leftover(), NOW)


@pytest.mark.parametrize(
    ("fault", "alive"),
    [
        (("list", 403, "AccessDenied"), True),
        (("GET", 403, "AccessDenied"), True),
        (("list", 404, "NoSuchBucket"), False),
    ],
)
def test_a_bucket_that_does_not_answer_may_hide_a_heartbeat(
    home: Path, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, int, str], alive: bool
) -> None:
    kind, status, code = fault
    with s3.running() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://bucket/jobs/{JOB}"
        open_store().insert_job(make_job(JOB, url, [make_offer()], now=NOW), "submitted")
        JobDir(url).put(BEAT, Heartbeat(7, NOW - 3_600.0, "running").to_bytes())
        assert not is_alive(open_store(), leftover(), NOW)
        bucket.fail(kind, status=status, code=code)
        assert is_alive(open_store(), leftover(), NOW) is alive


def test_a_store_has_a_name_of_its_own_and_keeps_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner_name()
    assert first == owner_name() and first.startswith("cloudgpu-")
    monkeypatch.setattr("platform.node", lambda: "renamed")
    assert owner_name() == first
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "second"))
    assert owner_name() != first


def test_gc_asks_once_more_before_it_ends_what_is_alive(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the local target plays the machines that a copy of this store launched."""
    folder = home / "local" / ("0" * 32)
    folder.mkdir(parents=True)
    machines = '{"worker-0.1": "x"}'
    allocation = (
        f'{{"target": "local", "job_id": "{JOB}", "attempt": 1, "token": "{"0" * 32}", "machines": {machines}}}'
    )
    (folder / "allocation.json").write_text(f'{{"owner": "{owner_name()}", "allocation": {allocation}}}')
    job_dir = JobDir(local_url(paths.default_job_dir() / JOB))
    job_dir.put(BEAT, Heartbeat(7, time.time(), "running").to_bytes())
    found = gc_policy.find(["local"], (), time.time()).found
    assert [one.verdict for one in found] == ["alive"]

    run = CliRunner().invoke
    done = run(gc.command, ["--cloud", "local", "--yes"], standalone_mode=False)
    assert "still alive: digits-abcdefgh, attempt 1" in done.output and "add --alive" in done.output, done.output
    assert get_provisioner("local").find(Owner(owner_name())) != []
    monkeypatch.setattr("cloudgpu.cli.gc.can_ask", lambda: True)
    for answer, left in (("n\n", 1), ("y\n", 0)):
        done = run(gc.command, ["--cloud", "local"], input=answer, standalone_mode=False)
        assert "remove it all the same?" in done.output
        assert len(get_provisioner("local").find(Owner(owner_name()))) == left, done.output


@pytest.mark.parametrize("owners", [[], ["cloudgpu-old"], ["cloudgpu-older", "cloudgpu-old"]])
def test_a_store_of_an_older_version_keeps_the_name_its_newest_job_is_tagged_with(
    home: Path, tmp_path: Path, owners: list[str]
) -> None:
    path = tmp_path / "store.db"
    store = Store.open(f"sqlite:///{path}")
    for number, owner in enumerate(owners):
        row = make_job(f"digits-{number}", "file:///x", [make_offer()], now=NOW + number, owner=owner)
        store.insert_job(row, "submitted")
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE stores; ALTER TABLE attempts DROP COLUMN account; "
            "ALTER TABLE attempts DROP COLUMN seen; ALTER TABLE jobs DROP COLUMN waiting_since; "
            "ALTER TABLE jobs DROP COLUMN run; ALTER TABLE jobs DROP COLUMN source; "
            "UPDATE alembic_version SET version_num='0003'"
        )
    found = Store.open(f"sqlite:///{path}").owner()
    assert found == (owners[-1] if owners else found) and found.startswith("cloudgpu-")
