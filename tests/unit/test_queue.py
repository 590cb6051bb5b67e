"""Queue of this machine: order of jobs, exclusive GPUs, and the delay until the next job starts."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from cloudgpu.cli.status.view import job_text
from cloudgpu.control.jobs import Job
from cloudgpu.control.reconcile.queue import Place, places
from cloudgpu.control.store.model import Waiting
from cloudgpu.jobspecs.plan import CPU, LocalGpu
from cloudgpu.provisioners.base import Allocation, LaunchRequest, NodeRequest, TerminateResult
from cloudgpu.provisioners.local.gpus import hold, shortage
from cloudgpu.provisioners.local.locks import FOLDER_VARIABLE
from cloudgpu.provisioners.local.node_slots import SLOTS_VARIABLE, hold_slots, slot_shortage, slots_of
from cloudgpu.provisioners.shared.locks import try_lock
from cloudgpu.tests.standins.cloud import Life, StoringCloud
from cloudgpu.tests.standins.control import World, make_offer, make_policy
from cloudgpu.tests.standins.long_mode import LONG
from cloudgpu.tests.standins.nvidia import install_driver

GPUS = [LocalGpu(f"GPU-{number}", "NVIDIA L4", 24.0) for number in range(2)]
RUNS = 100 if LONG else 3
RUN_S = 20.0


class OwnMachine(StoringCloud):
    """Fake cloud whose machines hold the locks of real GPUs, with the code of the target `local`."""

    folder: Path
    most_slots = 0
    """Most slots taken at the same time."""

    def shortage(self, nodes: Sequence[NodeRequest], ahead: Mapping[str, int]) -> str:
        return shortage(nodes, ahead) or slot_shortage(nodes, ahead.get(CPU, 0), self.folder)

    def launch(self, request: LaunchRequest) -> Allocation:
        started = {machine.node for machine in self.machines if machine.request.token == request.token}
        waiting = [node for node in request.nodes if node.node not in started]
        with (
            hold(waiting, request.nodes, self.folder) as gpus,
            hold_slots(slots_of(request.nodes) if waiting else 0, self.folder) as slots,
        ):
            allocation = super().launch(request)
            descriptors = [number for one in gpus.values() for number in one.descriptors] + slots
            self.held.setdefault(request.token, []).extend(map(os.dup, descriptors))
            self.most_slots = max(self.most_slots, count_held(self.folder))
        return allocation

    def terminate(self, allocation: Allocation) -> TerminateResult:
        ended = super().terminate(allocation)
        for descriptor in self.held.pop(allocation.token, []):
            os.close(descriptor)
        return ended

    @property
    def held(self) -> dict[str, list[int]]:
        """Return launch token -> file descriptors of the locks that its machines hold."""
        held: dict[str, list[int]] = self.__dict__.setdefault("_held", {})
        return held


@pytest.fixture
def own(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return a world whose machine has two L4 GPUs."""
    install_driver(GPUS, monkeypatch)
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    world = World(tmp_path / "own", template)
    world.cloud = machine = OwnMachine(world.clock)
    machine.folder = tmp_path / "taking"
    machine.script = lambda _attempt, _node: Life(run_s=RUN_S)
    yield world
    assert machine.held == {}


def count_held(folder: Path) -> int:
    """Return the number of slots taken."""
    taken = 0
    for path in folder.glob("slot-*"):
        descriptor = try_lock(path)
        taken += descriptor is None
        if descriptor is not None:
            os.close(descriptor)
    return taken


def is_over(world: World, jobs: Sequence[str], until: float) -> bool:
    """Return whether the time `until` is reached or all jobs have ended."""
    return world.clock.monotonic() >= until or all(world.job(job).ended is not None for job in jobs)


def begun(world: World) -> list[str]:
    """Return the jobs in the order of their machines' launches."""
    return [request.job_id for request in world.cloud.launches]


def test_places() -> None:
    waiting = [
        Waiting("a", {"L4": 2}),
        Waiting("b", {"T4": 1}),
        Waiting("c", {"L4": 1, "T4": 1}),
        Waiting("d", {"L4": 1}),
    ]
    assert places(waiting) == {
        "a": Place(1, {"L4": 0}),
        "b": Place(1, {"T4": 0}),
        "c": Place(2, {"L4": 2, "T4": 1}),
        "d": Place(3, {"L4": 3}),
    }


def test_places_by_priority() -> None:
    waiting = [Waiting("a", {"L4": 1}), Waiting("b", {"L4": 2}, 9), Waiting("c", {"L4": 1}, 9), Waiting("d", {"T4": 1})]
    assert places(waiting) == {
        "b": Place(1, {"L4": 0}),
        "c": Place(2, {"L4": 2}),
        "a": Place(3, {"L4": 3}),
        "d": Place(1, {"T4": 0}),
    }


def test_first_in_first_out_and_the_gpu_is_never_idle_for_a_second(own: World) -> None:
    jobs = []
    for _ in range(6):
        jobs.append(own.submit(make_offer(gpus=2)))
        own.clock.advance(7.0)
    own.finish(*jobs)
    assert begun(own) == jobs
    spans = [own.attempts(job)[0] for job in jobs]
    begins = [attempt.launched or 0.0 for attempt in spans]
    idle = [after - before - RUN_S for before, after in itertools.pairwise(begins)]
    assert max(idle) < 1.0, "from the end of a program, not from when it was seen"
    assert all(len(own.attempts(job)) == 1 for job in jobs)


def test_a_higher_priority_goes_first(own: World) -> None:
    first = own.submit(make_offer(gpus=2), policy=make_policy(priority=1))
    supervisor = own.supervisor()
    own.drive(supervisor, until=lambda: own.job(first).state == "running")
    asked = [0, 50, 0, 50]
    jobs = []
    for priority in asked:
        own.clock.advance(1.0)
        jobs.append(own.submit(make_offer(gpus=2), policy=make_policy(priority=priority)))
    own.finish(first, *jobs)
    assert begun(own) == [first, jobs[1], jobs[3], jobs[0], jobs[2]]


def test_small_jobs_do_not_overtake_a_large_one_for_ever(own: World) -> None:
    first = own.submit(make_offer(gpus=1))
    supervisor = own.supervisor()
    own.drive(supervisor, until=lambda: own.job(first).state == "running")
    large = own.submit(make_offer(gpus=2))
    small = [own.submit(make_offer(gpus=1)) for _ in range(3)]
    own.finish(first, large, *small)
    assert begun(own)[:2] == [first, large]
    assert set(begun(own)[2:]) == set(small)


def test_a_waiting_job_is_cancelled_at_once(own: World) -> None:
    jobs = [own.submit(make_offer(gpus=2)) for _ in range(30)]
    supervisor = own.supervisor()
    own.drive(supervisor, until=lambda: own.job(jobs[0]).state == "running")
    own.store.set_goal(jobs[-1], "cancel", "cancel", own.clock.now())
    asked = own.clock.monotonic()
    supervisor.tick(woken=[jobs[-1]])
    own.drive(supervisor, until=lambda: own.job(jobs[-1]).state == "cancelled")
    assert own.clock.monotonic() - asked <= 1.0
    for job in jobs:
        own.store.set_goal(job, "cancel", "cancel", own.clock.now())
    own.finish(*jobs)


@pytest.mark.parametrize("seed", range(max(1, RUNS // 3)))
def test_cpu_jobs_are_bounded_by_cores_when_supervisors_are_killed(
    own: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "2")
    chance = random.Random(seed)
    jobs = [own.submit(make_offer()) for _ in range(6)]
    on_gpus = own.submit(make_offer(gpus=2))
    while any(own.job(job).ended is None for job in jobs):
        until = own.clock.monotonic() + chance.uniform(0.0, 30.0)
        own.drive(
            own.supervisor(),  # the previous supervisor's memory is lost
            until=functools.partial(is_over, own, jobs, until),
        )
    order = [jobs.index(job) for job in begun(own) if job != on_gpus]
    assert sorted(order) == list(range(6))
    assert all(abs(place - number) <= 1 for place, number in enumerate(order)), "two that are next may start at once"
    assert begun(own).index(on_gpus) <= 2, "it waits for no cores"
    assert isinstance(own.cloud, OwnMachine) and own.cloud.most_slots == 2
    own.finish(on_gpus)
    own.check_clean()


def test_thirty_cpu_jobs_are_not_started_at_once(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "2")
    jobs = [own.submit(make_offer()) for _ in range(30)]
    supervisor = own.supervisor()
    asked = own.clock.monotonic()
    own.drive(supervisor, until=lambda: own.clock.monotonic() >= asked + RUN_S / 2)
    assert sorted(begun(own)) == jobs[:2]
    assert [Job(own.store, own.job(job)).queue_place for job in jobs[2:]] == list(range(1, 29))
    short = "needs 1 of this machine's 2 slots for jobs without GPUs"
    assert own.job(jobs[2]).reason == f"{short}, 0 are free"
    assert own.job(jobs[3]).reason == f"{short}; jobs ahead of it in the queue wait for slots as well"
    for job in jobs:
        own.store.set_goal(job, "cancel", "cancel", own.clock.now())
    own.finish(*jobs)


def test_a_job_with_more_nodes_than_cores_runs_alone(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "2")
    jobs = [own.submit(make_offer(nodes=nodes)) for nodes in (1, 5, 1, 1)]
    own.finish(*jobs)
    assert begun(own)[:2] == jobs[:2]
    first, large, *small = (own.attempts(job)[0] for job in jobs)
    assert first.ended is not None and large.launched is not None and large.ended is not None
    assert first.ended <= large.launched
    assert all(one.launched is not None and one.launched >= large.ended for one in small)


def test_a_job_without_gpus_waits_for_cores_instead_of_other_machines(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "1")
    first = own.submit(make_offer())
    own.drive(own.supervisor(), until=lambda: own.job(first).state == "running")
    other = own.submit(make_offer(), make_offer(region="elsewhere"))
    own.finish(first, other)
    assert [attempt.offer.region for attempt in own.attempts(other)] == ["here"]


@pytest.mark.parametrize("seed", range(RUNS))
def test_order_and_exclusivity_hold_when_supervisors_are_killed(own: World, seed: int) -> None:
    chance = random.Random(seed)
    jobs = [own.submit(make_offer(gpus=2)) for _ in range(5)]
    kills = iter(sorted(chance.uniform(0.0, 5 * RUN_S) for _ in range(8)))
    while any(own.job(job).ended is None for job in jobs):
        until = own.clock.monotonic() + next(kills, 3_600.0) / 4
        supervisor = own.supervisor()  # the previous supervisor's memory is lost
        own.drive(
            supervisor,
            until=functools.partial(is_over, own, jobs, until),
        )
    assert begun(own) == jobs
    own.check_clean()


def test_the_place_that_is_shown(own: World) -> None:
    jobs = [own.submit(make_offer(gpus=2), policy=make_policy(priority=3)) for _ in range(3)]
    supervisor = own.supervisor()
    own.drive(supervisor, until=lambda: own.job(jobs[0]).state == "running")
    own.clock.advance(1.0)
    own.drive(supervisor, until=lambda: own.job(jobs[2]).reason != "")
    assert [Job(own.store, own.job(job)).queue_place for job in jobs] == [None, 1, 2]
    assert "  queue      place 2, priority 3\n" in job_text(Job(own.store, own.job(jobs[2])))
    assert own.job(jobs[1]).reason == "needs L4:2 of this machine, 0 of 2 are free"
    assert own.job(jobs[2]).reason == "needs L4:2 of this machine; jobs ahead of it in the queue wait for L4 as well"
    own.finish(*jobs)
