"""The store: schema, migrations, transactions that compare, permissions; on PostgreSQL too, where there is one."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.errors import StoreError
from cloudgpu.control.store import schema, tables
from cloudgpu.control.store.model import Observation
from cloudgpu.control.store.states import IllegalTransitionError
from cloudgpu.control.store.store import Change, LostRaceError, Store
from cloudgpu.control.supervisor.leases import Leases, is_dead, new_owner
from cloudgpu.tests.standins.cloud import FakeClock
from cloudgpu.tests.standins.control import World, make_offer, make_policy

# -- schema


def test_migrations_make_exactly_the_tables(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    path = tmp_path / "store.db"
    Store.open(f"sqlite:///{path}").close()
    with create_engine(f"sqlite:///{path}").connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_revision() == schema.HEAD


def test_revisions_are_those_of_the_migrations() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(tables.__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)
    assert tuple(revision.revision for revision in reversed(list(script.walk_revisions()))) == schema.REVISIONS


def test_an_up_to_date_store_opens_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    Store.open(url).close()
    opens = f"from cloudgpu.control.store.store import Store; Store.open({url!r})"
    code = f"import sys; {opens}; print('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    Store.open(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="newer cloudgpu"):
        Store.open(f"sqlite:///{path}")


def test_processes_that_open_an_empty_store_at_once_agree(tmp_path: Path) -> None:
    code = (
        f"from cloudgpu.control.store.store import Store; Store.open('sqlite:///{tmp_path / 'store.db'}').active_jobs()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(180) for process in processes] == [0, 0, 0, 0]


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_store_is_said_to_be_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.db"):
        Store.open(f"sqlite:///{tmp_path / 'store.db'}")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "no database URL"),
        ("sqlite:///relative.db", "absolute path"),
        ("sqlite:////proc/nowhere/store.db", "cannot be used"),
        ("postgresql+nosuchdriver://localhost/x", "database URL"),
        ("postgresql://localhost:abc/x", "its port is no number"),
    ],
)
def test_a_bad_url_is_said_to_be_one(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store.open(url)


@pytest.mark.parametrize(
    "url", ["postgresql+nosuchdriver://me:secret@localhost/x", "postgresql://me:one@half:secret@localhost/x"]
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


def test_only_its_owner_can_look_into_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store.open(f"sqlite:///{tmp_path / 'home' / 'store.db'}").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "home" / "store.db").stat().st_mode) == 0o600


def test_a_file_with_settings_of_its_own_is_the_same_store(tmp_path: Path) -> None:
    """SQLAlchemy knows what they mean."""
    path = tmp_path / "home" / "store.db"
    with_settings = Store.open(f"sqlite:///{path}?timeout=5")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert with_settings.owner() == Store.open(f"sqlite:///{path}").owner()
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


# -- rows and changes


def test_a_job_comes_back_as_it_was_stored(world: World) -> None:
    policy = make_policy(preemptions=3, duration_s=60, cost_usd=Decimal("12.50"))
    row = world.job(world.submit(policy=policy))
    assert row.policy == policy
    assert (row.spent, row.offers[0].price, row.spec) == (Decimal(0), Decimal("3.6"), {"name": "job", "run": "true"})


def change(world: World, job_id: str, **changes: Any) -> Change:
    job = world.job(job_id)
    return Change(job, "state", "event", world.clock.now(), to_job=dataclasses.replace(job, **changes))


def test_jobs_with_the_same_offers_share_them_in_memory(world: World) -> None:
    """A job may have hundreds of offers, and a sweep a thousand jobs."""
    offers = [make_offer(region="us-east-1", zone=f"use1-az{number}", gpus=1) for number in range(1, 7)]
    first, second = (world.store.job(world.submit(*offers)) for _ in range(2))
    assert first is not None and second is not None
    assert first.offers is second.offers and first.offers == tuple(offers)


def test_a_change_and_its_event_are_one(world: World) -> None:
    job_id = world.submit()
    world.store.take_lease(world.job(job_id), "me")
    world.store.apply(change(world, job_id, state="failed", ended=1.0), "me")
    assert world.job(job_id).state == "failed"
    assert [event.message for event in world.store.events(job_id)] == ["submitted", "event"]


def test_text_that_no_database_takes_is_spelled_out(world: World) -> None:
    job_id, odd, spelled = world.submit(), "half \udcff, none \0, whole 数", r"half \udcff, none \0, whole 数"
    world.store.take_lease(world.job(job_id), "me")
    step = dataclasses.replace(change(world, job_id, state="failed", reason=odd), message=odd)
    world.store.apply(step, "me")
    world.store.add_event(world.job(job_id), "test", odd, 1.0)
    assert world.job(job_id).reason == spelled
    assert [event.message for event in world.store.events(job_id)][1:] == [spelled, spelled]
    assert world.store.find_jobs(odd) == []


def test_a_change_of_what_was_changed_is_a_lost_race(world: World) -> None:
    job_id = world.submit()
    world.store.take_lease(world.job(job_id), "me")
    mine = change(world, job_id, state="cancelled")
    world.store.apply(change(world, job_id, state="failed"), "me")
    with pytest.raises(LostRaceError):
        world.store.apply(mine, "me")
    assert world.job(job_id).state == "failed"
    assert len(world.store.events(job_id)) == 2


def test_a_change_without_the_lease_is_a_lost_race(world: World) -> None:
    job_id = world.submit()
    world.store.take_lease(world.job(job_id), "me")
    with pytest.raises(LostRaceError):
        world.store.apply(change(world, job_id, state="failed"), "another")


def test_an_illegal_change_is_refused(world: World) -> None:
    job_id = world.submit()
    world.store.take_lease(world.job(job_id), "me")
    with pytest.raises(IllegalTransitionError):
        world.store.apply(change(world, job_id, state="succeeded"), "me")


def test_of_two_that_take_a_lease_one_gets_it(world: World) -> None:
    row = world.job(world.submit())
    assert [world.store.take_lease(row, owner) for owner in ("a", "b")] == [True, False]


def test_a_goal_is_set_once_and_not_after_the_end(world: World) -> None:
    job_id = world.submit()
    assert [world.store.set_goal(job_id, "cancel", "cancel", 1.0) for _ in range(2)] == [True, False]
    world.finish(job_id)
    assert not world.store.set_goal(job_id, "run", "no", 1.0)


def test_jobs_are_found_by_beginning_and_name(world: World) -> None:
    first, second = world.submit(name="a-b"), world.submit(name="a_b")
    assert [row.id for row in world.store.find_jobs("a_b")] == [second]  # no wildcard
    assert [row.id for row in world.store.find_jobs("a-b")] == [first]
    assert world.store.find_jobs("%") == []
    assert len(world.store.find_jobs("a")) == 2


def test_writers_wait_for_each_other(world: World) -> None:
    job_id = world.submit()
    row = world.job(job_id)

    def write() -> None:
        store = Store.open(world.url)
        for _ in range(20):
            store.add_event(row, "test", "x", time.time())
        store.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.store.events(job_id)) == 81


# -- leases


def test_a_lease_owner_is_dead_when_its_process_is(world: World) -> None:
    mine = new_owner()
    assert not is_dead(mine)
    code = "from cloudgpu.control.supervisor.leases import new_owner; print(new_owner())"
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert is_dead(theirs)
    assert not is_dead("elsewhere/1/abcd")
    job_id = world.submit()
    assert Leases(world.store, FakeClock(), theirs).acquire(world.job(job_id))
    assert Leases(world.store, FakeClock(), mine).acquire(world.job(job_id))


# -- PostgreSQL


@pytest.fixture
def postgres() -> Iterator[str]:
    initdb = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if initdb is None:
        pytest.skip("NOT TESTED ON POSTGRESQL: initdb is not installed")
    with tempfile.TemporaryDirectory(prefix="cloudgpu-pg-") as folder:
        user = None
        if os.geteuid() == 0:  # it refuses to run as root
            user = "nobody"
            shutil.chown(folder, user)

        def run(command: str, *words: str) -> None:
            done = subprocess.run(
                [Path(initdb).resolve().with_name(command), "-D", f"{folder}/data", *words],
                user=user,
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=120,
            )
            assert done.returncode == 0, command

        run("initdb", "-A", "trust", "-U", "tester", "-N")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-w", "-o", options, "-l", f"{folder}/log", "start")
        try:
            yield f"postgresql+psycopg://tester@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


def test_a_job_on_postgresql(tmp_path: Path, template: Path, postgres: str) -> None:
    world = World(tmp_path / "world", template)
    world.store = Store.open(postgres)
    Store.open(postgres).close()
    job_id = world.submit()
    world.finish(job_id)
    assert dataclasses.replace(world.job(job_id)).state == "succeeded"
    world.store.close()


def use(world: World) -> list[object]:
    """Use every method of the store; return what it answers."""
    store, first, second = world.store, world.submit(name="one"), world.submit(name="two")
    world.finish(first)
    found: list[object] = [len(store.owner()), store.last_event(), store.has_active(), store.job("none")]
    found += [[row.id for row in store.find_jobs(ref)] for ref in (first[:3], "two", "%", "")]
    found += [[row.id for row in store.list_jobs(active_only=only, limit=1)] for only in (True, False)]
    found += [store.count_jobs(active_only=only) for only in (True, False)]
    found += [store.active_jobs(), store.changes(0), store.changes(store.last_event())]
    found += [[one.state for one in store.attempts(first)], {k: len(v) for k, v in store.attempts_of([first]).items()}]
    found += [list(store.current_attempts([world.job(first), world.job(second)])), store.current_attempts([])]
    found += [
        store.capacity_refusals(world.job(first), 0.0),
        store.waiting(world.clock.now()),
        len(store.events(second)),
    ]
    store.write_seen({(first, 1): Observation(1.0, 2), (first, 9): Observation(3.0, 4)})
    found.append(store.attempts(first)[0].seen)
    row = world.job(second)
    found += [store.take_lease(row, "me"), store.take_lease(row, "another"), store.renew_leases("me")]
    store.set_reason(row, "because", "another")
    found.append(world.job(second).reason)
    store.set_reason(row, "because", "me")
    found.append(world.job(second).reason)
    for release in (
        lambda: store.release_lease(row, "another"),
        lambda: store.release_leases("me", [second]),
        lambda: store.release_leases("me"),
        lambda: store.take_lease(world.job(second), "me"),
        lambda: store.release_lease(row, "me"),
    ):
        release()
        found.append(world.job(second).lease_owner)
    store.close()
    return found


def test_every_statement_answers_the_same_on_postgresql(tmp_path: Path, template: Path, postgres: str) -> None:
    here, there = World(tmp_path / "here", template), World(tmp_path / "there", template)
    there.store = Store.open(postgres)
    assert use(there) == use(here)
