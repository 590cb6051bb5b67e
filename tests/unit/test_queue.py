"""The queue for this machine's GPUs: order, exclusivity, and how soon the next job begins."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from cloudgpu.cli.status_view import job_text
from cloudgpu.control.jobs import Job
from cloudgpu.control.queue import Place, Waiting, places
from cloudgpu.jobspecs.plan import LocalGpu
from cloudgpu.provisioners.base import Allocation, Ended, LaunchRequest, NodeRequest
from cloudgpu.provisioners.local_gpus import hold, shortage
from cloudgpu.provisioners.local_locks import FOLDER_VARIABLE
from cloudgpu.tests.standins.cloud import Life
from cloudgpu.tests.standins.control import StoringCloud, World, make_offer, make_policy
from cloudgpu.tests.standins.nvidia import install_driver

GPUS = [LocalGpu(f"GPU-{number}", "NVIDIA L4", 24.0) for number in range(2)]
RUNS = 100 if os.environ.get("CLOUDGPU_LONG") else 3
RUN_S = 20.0


class OwnMachine(StoringCloud):
    """Machines of the stand-in that hold the locks of real GPUs, by the code of the target `local`."""

    folder: Path

    def shortage(self, nodes: Sequence[NodeRequest], ahead: Mapping[str, int]) -> str:
        return shortage(nodes, ahead)

    def launch(self, request: LaunchRequest) -> Allocation:
        started = {machine.node for machine in self.machines if machine.request.token == request.token}
        waiting = [node for node in request.nodes if node.node not in started]
        with hold(waiting, request.nodes, self.folder) as held:
            allocation = super().launch(request)
            for one in held.values():
                self.held.setdefault(request.token, []).extend(map(os.dup, one.descriptors))
        return allocation

    def terminate(self, allocation: Allocation) -> Ended:
        ended = super().terminate(allocation)
        for descriptor in self.held.pop(allocation.token, []):
            os.close(descriptor)
        return ended

    @property
    def held(self) -> dict[str, list[int]]:
        """Token -> locks."""
        return self.__dict__.setdefault("_held", {})


@pytest.fixture
def own(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A machine with two L4."""
    install_driver(GPUS, monkeypatch)
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    world = World(tmp_path / "own", template)
    world.cloud = machine = OwnMachine(world.clock)
    machine.folder = tmp_path / "taking"
    machine.script = lambda _attempt, _node: Life(run_s=RUN_S)
    yield world
    assert machine.held == {}


def begun(world: World) -> list[str]:
    """Jobs in the order in which their machines were launched."""
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
    idle = [after.launched - before.ended for before, after in itertools.pairwise(spans)]
    assert max(idle) < 1.0
    assert all(len(own.attempts(job)) == 1 for job in jobs)


def test_a_higher_priority_goes_first(own: World) -> None:
    first = own.submit(make_offer(gpus=2), policy=make_policy(priority=1))
    supervisor = own.supervisor()
    own.drive(supervisor, until=lambda: own.job(first).state == "running")
    asked = [0, 50, 0, 100, 50]
    jobs = []
    for priority in asked:
        own.clock.advance(1.0)
        jobs.append(own.submit(make_offer(gpus=2), policy=make_policy(priority=priority)))
    own.finish(first, *jobs)
    assert begun(own) == [first, jobs[3], jobs[1], jobs[4], jobs[0], jobs[2]]


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


@pytest.mark.parametrize("seed", range(RUNS))
def test_order_and_exclusivity_hold_when_supervisors_are_killed(own: World, seed: int) -> None:
    chance = random.Random(seed)
    jobs = [own.submit(make_offer(gpus=2)) for _ in range(5)]
    kills = iter(sorted(chance.uniform(0.0, 5 * RUN_S) for _ in range(8)))
    while any(own.job(job).ended is None for job in jobs):
        until = own.clock.monotonic() + next(kills, 3_600.0) / 4
        supervisor = own.supervisor()  # the one before is dead: all it remembered is gone
        own.drive(
            supervisor,
            until=lambda end=until: own.clock.monotonic() >= end or all(own.job(job).ended is not None for job in jobs),
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
