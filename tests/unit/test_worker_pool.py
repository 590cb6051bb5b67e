"""Many jobs under one supervisor, advanced by threads: a hanging call delays no other job, and calls are counted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.errors import StoreError
from cloudgpu.control.store.states import JOB_END
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.control.supervisor.worker_pool import WorkerPool
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.provisioners.shared.clock import SystemClock
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_offer

TIMEOUT_S = 180.0
"""Timeout in real seconds, for steps that take milliseconds."""
FOREVER = lives(Life(run_s=1e6))


class Watch:
    """Wrapper of the steps' dependencies: counts calls, blocks some of them, and detects two threads in one job."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.of_job: Counter[str] = Counter()
        self.held: dict[str, threading.Event] = {}
        """`<what>.<name>` or `<what>.<name> <prefix of a job's id>` -> event that such calls wait for."""
        self.entered = threading.Event()
        self.faults: dict[str, Exception] = {}
        self.together: list[str] = []
        self._lock = threading.Lock()
        self._inside: set[str] = set()

    def wrap(self, what: str, it: object) -> object:
        return _Wrapped(self, what, it)

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        job_id = getattr(args[0], "job_id", "") if args else ""
        with self._lock:
            self.calls[name] += 1
            self.of_job.update([job_id] if job_id else [])
            if job_id in self._inside:
                self.together.append(f"{name} {job_id}")
            self._inside |= {job_id} if job_id else set()
        try:
            for key, gate in list(self.held.items()):
                call, _, prefix = key.partition(" ")
                if name == call and job_id.startswith(prefix):
                    self.entered.set()
                    assert gate.wait(TIMEOUT_S)
            fault = self.faults.get(name)
            if fault is not None:
                raise fault
            return function(*args, **kwargs)
        finally:
            with self._lock:
                self._inside.discard(job_id)


class _Wrapped:
    def __init__(self, watch: Watch, what: str, it: object) -> None:
        self._watch, self._what, self._it = watch, what, it

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._it, name)
        return (lambda *a, **k: self._watch.call(f"{self._what}.{name}", found, *a, **k)) if callable(found) else found


class Many:
    """World whose jobs are advanced by a worker pool; its clock moves only when every thread is idle or hangs."""

    def __init__(self, folder: Path, template: Path, *, threads: int = 16, **options: Any) -> None:
        self.watch = Watch()
        self.world = World(folder, template, wrap=self.watch.wrap)
        self.done = threading.Event()
        self.supervisor = Supervisor(
            self.watch.wrap("store", self.world.store),  # type: ignore[arg-type]
            clock=options.pop("clock", self.world.clock),
            provisioner=lambda _target: self.watch.wrap("cloud", self.world.cloud),  # type: ignore[arg-type,return-value]
            open_dir=lambda url: self.watch.wrap("dir", JobDir(url)),  # type: ignore[arg-type,return-value]
            owner=options.pop("owner", "elsewhere/1/a"),
            **options,
        )
        self.crew = WorkerPool(self.supervisor, self.done.set, threads=threads)

    def turn(self, *, hanging: int = 0, woken: Collection[str] | None = None) -> float:
        """Tick until only `hanging` threads are busy and nothing is due; return the seconds until something is."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            self.done.clear()
            tick = self.crew.tick(woken=woken)
            woken = None
            if self.crew.busy <= hanging and tick.wait_s > 0:
                return tick.wait_s
            assert time.monotonic() < end, "the threads do not come to rest"
            self.done.wait(0.05)

    def drive(self, until: Callable[[], bool], *, hanging: int = 0, for_s: float = 3_600.0) -> None:
        end = self.world.clock.monotonic() + for_s
        while not until():
            assert self.world.clock.monotonic() < end, self.states()
            self.world.clock.advance(max(self.turn(hanging=hanging), 0.01))
            self.world.cloud.live()

    def until_held(self) -> None:
        """Tick until a call is blocked."""
        end = time.monotonic() + TIMEOUT_S
        while not self.watch.entered.is_set():
            assert time.monotonic() < end
            self.crew.tick()
            self.done.wait(0.05)
            self.done.clear()

    def states(self) -> Counter[str]:
        return Counter(job.state for job in self.world.store.list_jobs(active_only=False, limit=1_000))

    def all_ended(self) -> bool:
        return set(self.states()) <= JOB_END


@pytest.fixture
def many(tmp_path: Path, template: Path) -> Iterator[Many]:
    found = Many(tmp_path / "many", template)
    yield found
    for gate in found.watch.held.values():
        gate.set()
    assert found.crew.close(TIMEOUT_S)
    assert found.watch.together == []


def cloudy(zone: str = "az1", **more: Any) -> Offer:
    return make_offer(region="us-1", zone=zone, market="spot", **more)._replace(cloud="aws")


def test_a_hundred_jobs_end_well_and_cost_few_calls(many: Many) -> None:
    """Calls per change of a job are limited, and polls to one in 3 s while nothing changes."""
    many.world.cloud.script = FOREVER
    jobs = [many.world.submit(cloudy(), name=f"j{number}") for number in range(100)]
    many.drive(lambda: many.states()["running"] == 100)
    started = many.watch.calls.copy()
    assert started["cloud.launch"] == 100
    assert started["cloud.find"] == 0
    assert started["cloud.observe"] <= 100 * 8
    _let_pass(many, 60)
    quiet = many.watch.calls - started
    assert quiet["cloud.observe"] <= 100 * (60 / 3 + 5)
    assert quiet["dir.find"] <= 100 * (60 / 3 + 5) * 2
    assert quiet["store.apply"] == 0
    assert quiet["store.renew_leases"] <= 60 / 5 + 2  # one call for all leases
    for job_id in jobs:
        many.world.store.set_goal(job_id, "cancel", "cancel", many.world.clock.now())
    before = many.watch.calls.copy()
    many.drive(many.all_ended)
    ended = many.watch.calls - before
    assert many.states() == {"cancelled": 100}
    assert ended["cloud.terminate"] == 100
    many.world.check_clean()


def _let_pass(many: Many, seconds: float) -> None:
    end = many.world.clock.monotonic() + seconds
    many.drive(lambda: many.world.clock.monotonic() >= end, for_s=seconds + 10)


def test_ends_are_seen_within_three_seconds(many: Many) -> None:
    many.world.cloud.script = lives(Life(run_s=100.0))
    job_id = many.world.submit(cloudy())
    many.drive(many.all_ended)
    [machine] = many.world.cloud.machines
    assert many.world.job(job_id).state == "succeeded"
    assert (many.world.job(job_id).ended or 0) - (machine.launched + 100.0) < 3.5 + 3.0  # the fake runs on ticks


def test_a_call_that_hangs_keeps_no_other_job_waiting(many: Many) -> None:
    gate = many.watch.held["cloud.launch stuck"] = threading.Event()
    stuck = many.world.submit(cloudy(), name="stuck")
    others = [many.world.submit(cloudy(), name=f"other{number}") for number in range(20)]
    many.drive(lambda: all(many.world.job(one).state == "succeeded" for one in others), hanging=1, for_s=120)
    assert many.world.job(stuck).state == "queued"
    gate.set()
    many.drive(many.all_ended)
    assert many.world.job(stuck).state == "succeeded"


def test_a_cloud_that_hangs_keeps_no_other_target_waiting(tmp_path: Path, template: Path) -> None:
    many = Many(tmp_path / "many", template, threads=1)
    gate = many.watch.held["cloud.launch stuck"] = threading.Event()
    stuck = [many.world.submit(cloudy(), name=f"stuck{number}") for number in range(3)]
    here = many.world.submit(make_offer(), name="here")
    many.drive(lambda: many.world.job(here).state == "succeeded", hanging=3, for_s=120)
    gate.set()
    many.drive(many.all_ended)
    assert {many.world.job(one).state for one in stuck} == {"succeeded"}
    assert many.crew.close(TIMEOUT_S)


def test_jobs_take_turns(tmp_path: Path, template: Path) -> None:
    """With fewer threads than jobs, no job is advanced twice before all others were once."""
    many = Many(tmp_path / "many", template, threads=2)
    many.world.cloud.script = FOREVER
    for number in range(30):
        many.world.submit(cloudy(), name=f"j{number}")
    many.drive(lambda: many.states()["running"] == 30)
    many.watch.of_job.clear()
    _let_pass(many, 30)
    assert max(many.watch.of_job.values()) - min(many.watch.of_job.values()) <= 1
    assert many.crew.close(TIMEOUT_S)


def test_what_is_asked_for_during_a_step_is_done_right_after_it(many: Many) -> None:
    many.world.cloud.script = FOREVER
    job_id = many.world.submit(cloudy())
    many.drive(lambda: many.world.job(job_id).state == "running")
    gate = many.watch.held["cloud.observe"] = threading.Event()
    many.world.clock.advance(5)
    many.until_held()
    many.world.store.set_goal(job_id, "cancel", "cancel", many.world.clock.now())
    many.crew.tick(woken=[job_id])
    gate.set()
    many.turn()  # the clock stands still: the job was polled again without a delay
    assert many.world.job(job_id).state == "stopping"


# -- errors


def test_a_store_error_is_raised_and_the_store_is_used_again(many: Many) -> None:
    job_id = many.world.submit(cloudy())
    many.watch.faults["store.apply"] = StoreError("the disk is full")
    with pytest.raises(StoreError, match="disk is full"):
        many.turn()
    many.watch.faults.clear()
    many.world.clock.advance(2)
    many.drive(many.all_ended)
    assert many.world.job(job_id).state == "succeeded"


def test_a_bug_in_one_job_is_not_anothers_and_does_not_spin(many: Many, caplog: pytest.LogCaptureFixture) -> None:
    many.watch.faults["cloud.launch"] = TypeError("a bug")
    bad = many.world.submit(cloudy(), name="bad")
    _let_pass(many, 60)
    assert 2 <= many.watch.calls["cloud.launch"] < 12
    assert "a bug" in caplog.text
    many.watch.faults.clear()
    good = many.world.submit(cloudy(), name="good")
    many.drive(many.all_ended)
    assert {many.world.job(one).state for one in (bad, good)} == {"succeeded"}


def test_a_look_that_cannot_even_begin_does_not_spin(many: Many, caplog: pytest.LogCaptureFixture) -> None:
    many.world.submit(cloudy())
    many.watch.faults["store.job"] = ValueError("a row that nobody can read")
    _let_pass(many, 30)
    assert 1 <= many.watch.calls["store.job"] <= 31
    many.watch.faults.clear()
    many.drive(many.all_ended)


# -- shutting down


def test_steps_under_way_are_finished(many: Many) -> None:
    gate = many.watch.held["cloud.launch"] = threading.Event()
    job_id = many.world.submit(cloudy())
    many.until_held()
    threading.Timer(0.2, gate.set).start()
    assert many.crew.close(TIMEOUT_S)
    assert many.world.job(job_id).state == "starting"
    assert many.world.job(job_id).lease_owner is None


def test_a_step_that_does_not_end_is_abandoned_and_its_lease_stays(many: Many) -> None:
    gate = many.watch.held["cloud.launch stuck"] = threading.Event()
    stuck, other = many.world.submit(cloudy(), name="stuck"), many.world.submit(cloudy(), name="other")
    many.drive(lambda: many.world.job(other).state == "starting", hanging=1)
    many.until_held()
    many.turn(hanging=1)
    assert not many.crew.close(0.1)
    assert many.world.job(other).lease_owner is None
    assert many.world.job(stuck).lease_owner == "elsewhere/1/a"
    gate.set()
    assert many.crew.close(TIMEOUT_S)


def test_after_closing_nothing_is_begun(many: Many) -> None:
    many.world.submit(cloudy())
    assert many.crew.close(TIMEOUT_S)
    many.crew.tick()
    time.sleep(0.1)
    assert many.watch.calls["cloud.launch"] == 0


# -- leases, in real time: their duration is passed in

LEASE_S = 3.0
"""Seconds; far longer than a busy computer delays the thread that renews leases."""


def _second(many: Many) -> Supervisor:
    return Supervisor(
        many.world.store,
        clock=SystemClock(),
        provisioner=lambda _target: many.world.cloud,
        owner="elsewhere/2/b",
        lease_s=LEASE_S,
    )


def _watch_for(many: Many, job_id: str, supervisor: Supervisor, seconds: float) -> set[str | None]:
    """Return the owners of the job's lease while another supervisor ticked."""
    seen = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        supervisor.tick(woken=[job_id])
        seen.add(many.world.job(job_id).lease_owner)
        time.sleep(0.05)
    return seen


def test_a_job_is_not_taken_over_during_a_long_step(tmp_path: Path, template: Path) -> None:
    many = Many(tmp_path / "many", template, clock=SystemClock(), lease_s=LEASE_S)
    gate = many.watch.held["cloud.launch"] = threading.Event()
    job_id = many.world.submit(cloudy())
    many.until_held()
    assert _watch_for(many, job_id, _second(many), 2 * LEASE_S) == {"elsewhere/1/a"}
    gate.set()
    assert many.crew.close(TIMEOUT_S)
    assert many.world.job(job_id).state == "starting"
    assert many.world.cloud.violations == []


def test_without_its_keeper_the_lease_is_lost_and_the_step_changes_nothing(tmp_path: Path, template: Path) -> None:
    """Counterpart of the test above: without the thread that renews leases, the lease is lost."""
    many = Many(tmp_path / "many", template, clock=SystemClock(), lease_s=LEASE_S)
    assert many.crew.close(TIMEOUT_S)  # ends the renewing thread; the supervisor below is ticked by hand
    gate = many.watch.held["cloud.launch"] = threading.Event()
    job_id = many.world.submit(cloudy())

    def tick() -> None:
        while not gate.is_set():
            many.supervisor.tick()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    assert many.watch.entered.wait(TIMEOUT_S)
    second = _second(many)
    end = time.monotonic() + TIMEOUT_S
    while _watch_for(many, job_id, second, 0.1) != {"elsewhere/2/b"}:
        assert time.monotonic() < end, "it is not taken over"
    gate.set()
    thread.join(TIMEOUT_S)
    assert many.world.job(job_id).lease_owner == "elsewhere/2/b"
    assert len(many.world.attempts(job_id)) == 1
    assert many.world.cloud.violations == []


def test_a_throttled_hundred_backs_off_and_comes_through(many: Many) -> None:
    throttled = [ProvisionError("throttled", "Rate exceeded", scope="region", retry_after=7.0) for _ in range(200)]
    many.world.cloud.faults["launch"] = throttled
    for number in range(100):
        many.world.submit(cloudy(), name=f"j{number}")
    begin = many.world.clock.monotonic()
    many.drive(lambda: many.states()["succeeded"] == 100)
    assert many.watch.calls["cloud.launch"] <= 300
    assert many.world.clock.monotonic() - begin > 14  # twice the retry delay that the provider asked for
    assert len(many.world.cloud.machines) == 100
