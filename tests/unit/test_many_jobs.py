"""A thousand jobs under one supervisor on a fake clock: queries and polls are counted, and must not grow quadratically
with the number of jobs."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor.due_times import DueTimes
from cloudgpu.control.supervisor.lanes import Lane
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.control.supervisor.supervisor_lock import woken_jobs
from cloudgpu.protocol.jobdir import Heartbeat
from cloudgpu.provisioners.base import Allocation, NodeState
from cloudgpu.tests.standins.cloud import FakeClock
from cloudgpu.tests.standins.control import make_job, make_offer
from cloudgpu.tests.unit.test_worker_pool import FOREVER, TIMEOUT_S, Many, cloudy

JOBS = 1_000
OWNER = "elsewhere/1/a"


class Counted:
    """Proxy that counts the calls of an object's methods."""

    def __init__(self, it: object, calls: Counter[str]) -> None:
        self._it, self._calls = it, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._it, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls[name] += 1
            return found(*args, **kwargs)

        return call if callable(found) else found


class Running:
    """Target whose machines all run, and object store with a heartbeat of each once a minute."""

    folder = None

    def __init__(self, clock: FakeClock, calls: Counter[str]) -> None:
        self._clock, self._calls = clock, calls

    def observe(self, allocation: Allocation) -> list[NodeState]:
        self._calls["observe"] += 1
        return [NodeState(node, "running") for node in allocation.machines]

    def account(self) -> str:
        return ""

    def check_account(self, _account: str | None) -> None:
        """Accept any account: there is only one."""

    def find(self, key: str, _most: int | None = None) -> bytes | None:
        self._calls["find"] += 1
        if not key.endswith("heartbeat.json"):
            return None
        minute = int(self._clock.monotonic() // 60)
        return Heartbeat(minute, 60.0 * minute, "running", {"step": 7}).to_bytes()


class Thousand:
    """Store of running jobs with one machine each, and a supervisor that advances them."""

    def __init__(self, folder: Path, template: Path, jobs: int = 50) -> None:
        (folder / "store.db").write_bytes(template.read_bytes())
        self.store, self.clock, self.calls = Store.open(f"sqlite:///{folder / 'store.db'}"), FakeClock(), Counter[str]()
        self.ids = [f"many-{number:04d}" for number in range(jobs)]
        self._insert()
        target = Running(self.clock, self.calls)
        self.supervisor = Supervisor(
            Counted(self.store, self.calls),  # type: ignore[arg-type]
            clock=self.clock,
            provisioner=lambda _target: target,  # type: ignore[arg-type,return-value]
            open_dir=lambda _url: target,  # type: ignore[arg-type,return-value]
            owner=OWNER,
        )
        self.supervisor.renew()  # takes all leases at once

    def _insert(self) -> None:
        """Insert all rows in one transaction: a thousand transactions take longer than the whole test."""
        from cloudgpu.control.store import serialization
        from cloudgpu.control.store.model import Attempt
        from cloudgpu.control.store.store import insert

        offer, now = make_offer()._replace(cloud="aws"), self.clock.now()
        jobs_rows, attempt_rows, event_rows = [], [], []
        for job_id in self.ids:
            job = make_job(
                job_id, f"s3://bucket/{job_id}", [offer], now=now, state="running", attempt=1, lease_owner=OWNER
            )
            held = Allocation("aws", job_id, 1, job_id, {"worker-0.1": f"i-{job_id}"})
            attempt = Attempt(
                job_id=job_id, number=1, state="running", round=0, offer=offer, price=offer.price,
                token=job_id, allocation=held, cause="", scope="", deadline=None, outcome="", reason="",
                exit_code=None, progress=None, created=now, launched=now, ended=None, cost=None,
            )  # fmt: skip
            jobs_rows.append(serialization.encode_row(job))
            attempt_rows.append(serialization.encode_row(attempt))
            event_rows.append({"job_id": job_id, "attempt": 1, "time": now, "kind": "launched", "message": "launched"})
        with self.store._transaction() as connection:
            for table, inserted in (("jobs", jobs_rows), ("attempts", attempt_rows), ("events", event_rows)):
                for values in inserted:
                    insert(connection, table, values)

    def pass_time(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(max(self.supervisor.tick().wait_s, 0.01))


def test_a_quiet_while_of_a_thousand_jobs(tmp_path: Path, template: Path) -> None:
    many = Thousand(tmp_path, template, JOBS)
    many.pass_time(1)
    assert many.calls["job"] == many.calls["current_attempts"] == JOBS, "each row is read once"
    many.calls.clear()
    many.pass_time(12)
    assert many.calls["observe"] <= JOBS * (12 / 3 + 5)
    assert many.calls["find"] <= JOBS * 2, "heartbeat and result once a minute"
    assert many.calls["changes"] <= 13
    assert many.calls["active_jobs"] <= 2
    assert many.calls["job"] + many.calls["apply"] + many.calls["take_lease"] == 0
    assert many.calls["write_seen"] <= 12 / 5 + 2, "of all jobs at once"


def test_what_was_read_is_in_the_store(tmp_path: Path, template: Path) -> None:
    """`cloudgpu status` reads no job dir for its list: one query returns all attempts."""
    many = Thousand(tmp_path, template)
    many.pass_time(7)
    from cloudgpu.control.store.model import Observation

    [job_id, *_] = many.ids
    attempts = many.store.attempts_of(many.ids)
    assert len(attempts) == len(many.ids)
    assert attempts[job_id][0].seen == Observation(time=0.0, step=7)


def test_a_wake_looks_at_its_job_only(tmp_path: Path, template: Path) -> None:
    many = Thousand(tmp_path, template)
    many.pass_time(4)
    many.supervisor.tick()
    many.calls.clear()
    many.supervisor.tick(woken=[])
    assert many.calls["observe"] == 0
    many.store.set_goal(many.ids[7], "cancel", "cancel", many.clock.now())
    many.calls.clear()
    many.supervisor.tick(woken=[many.ids[7]])
    assert many.calls["apply"] == 1, "its machines learn of it before anything is looked at"
    assert many.calls["observe"] == 0
    job = many.store.job(many.ids[7])
    assert job is not None and job.state == "stopping"


def test_what_another_computer_asks_for_is_found_within_a_second(tmp_path: Path, template: Path) -> None:
    many = Thousand(tmp_path, template)
    many.pass_time(4)
    many.store.set_goal(many.ids[7], "cancel", "cancel", many.clock.now())
    many.pass_time(1.1)
    job = many.store.job(many.ids[7])
    assert job is not None and job.state == "stopping"


def test_a_full_launch_lane_delays_no_cancel_and_no_look(tmp_path: Path, template: Path) -> None:
    many = Many(tmp_path / "many", template, threads=2)
    many.world.cloud.script = FOREVER
    running = many.world.submit(cloudy(), name="running")
    many.drive(lambda: many.world.job(running).state == "running")
    gate = many.watch.held["cloud.launch stuck"] = threading.Event()
    stuck = [many.world.submit(cloudy(), name=f"stuck{number}") for number in range(20)]
    many.drive(lambda: all(many.world.job(one).attempt for one in stuck), hanging=2)
    begun = many.world.clock.monotonic()
    for job_id in (running, stuck[-1]):
        many.world.store.set_goal(job_id, "cancel", "cancel", many.world.clock.now())
    many.drive(lambda: many.world.job(running).state == "stopping", hanging=2)
    many.drive(lambda: many.world.job(stuck[-1]).state in {"stopping", "cancelled"}, hanging=2)
    assert many.world.clock.monotonic() - begun <= 5
    gate.set()
    for job_id in stuck[:-1]:
        many.world.store.set_goal(job_id, "cancel", "cancel", many.world.clock.now())
    many.drive(many.all_ended)
    assert many.crew.close(TIMEOUT_S)
    many.world.check_clean()


_HEAPS = """
import ctypes, sys, threading
from cloudgpu.control.supervisor.daemon import _share_heaps
if sys.argv[1] == "share":
    _share_heaps()
enough = threading.Barrier(9)
def work():
    held = [str(number) * 50 for number in range(1_000)]
    enough.wait()
for _ in range(8):
    threading.Thread(target=work).start()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
enough.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's")
@pytest.mark.parametrize("share", ["share", ""])
def test_the_threads_of_a_supervisor_share_one_heap(tmp_path: Path, share: str) -> None:
    """With a heap per thread, a hundred threads keep tens of megabytes more."""
    subprocess.run([sys.executable, "-c", _HEAPS, share, str(tmp_path / "heaps")], check=True, timeout=180)
    heaps = (tmp_path / "heaps").read_text().count("<heap nr=")
    assert heaps == 1 if share else heaps > 1


def test_lanes_are_named_for_people() -> None:
    assert [lane.value for lane in Lane] == ["looks", "launches", "ends"]


def test_a_wake_names_jobs_and_an_older_one_names_none() -> None:
    assert woken_jobs(b"digits-abc\n..digits-def\n.\n") == {"digits-abc", "digits-def"}
    assert woken_jobs(b"..") == set()


def test_due_times_forget_what_was_set_before() -> None:
    times = DueTimes()
    for due in range(1_000):
        times.put("a", 1_000.0 - due)
    times.put("b", 5.0)
    times.put("gone", 0.0)
    times.remove("gone")
    assert times.next() == 1.0
    assert times.take(4.0) == ["a"]
    assert times.take(4.0) == []
    assert (times.take(10.0), times.next()) == (["b"], float("inf"))
