"""Jumps of the wall clock, backward or forward: limits, costs and deadlines must not change."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, Notice, Stop, attempt_key, local_url, node_key
from cloudgpu.runtime.notices import Order, Orders, Watcher
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_policy


def set_clock(world: World, seconds: float) -> None:
    world.clock.time += seconds
    for machine in world.cloud.machines:  # a jump of the clock does not affect running machines
        machine.launched += seconds


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0], ids=["back", "forward"])
def test_a_clock_that_is_set_changes_no_limit_and_no_cost(world: World, jump: float) -> None:
    job_id = world.submit(policy=make_policy(duration_s=3600, cost_usd=Decimal(1)))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    set_clock(world, jump)
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"
    [attempt] = world.attempts(job_id)
    assert attempt.cost is not None and Decimal("0.01") < attempt.cost < Decimal("0.05")  # 10 s at 3.6 $/h


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0], ids=["back", "forward"])
def test_a_clock_that_is_set_leaves_programs_their_time_to_stop(world: World, jump: float) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    set_clock(world, jump)
    assert world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
    world.drive(supervisor, until=lambda: world.job(job_id).state == "stopping")
    supervisor.tick()
    stop = Stop.from_bytes(JobDir(world.job(job_id).job_dir).get(attempt_key(1, "stop.json")))
    assert 29 < stop.deadline - world.clock.now() <= 30
    world.drive(supervisor)
    assert world.job(job_id).state == "cancelled"


def test_the_time_of_a_job_does_not_go_back_when_another_process_takes_over(world: World) -> None:
    job_id = world.submit(policy=make_policy(duration_s=3600))
    first = world.supervisor()
    world.drive(first, until=lambda: world.job(job_id).state == "running")
    first.release()
    set_clock(world, -86_400)
    world.drive(world.supervisor("elsewhere/2/b"))
    [attempt] = world.attempts(job_id)
    assert (world.job(job_id).state, attempt.outcome) == ("succeeded", "succeeded")
    assert attempt.launched is not None and 5 < (attempt.ended or 0) - attempt.launched < 20


# -- on the machine


def seen_order(folder: Path, key: str, data: bytes) -> Order:
    """Orders that the agent derives from a stop or a notice."""
    job_dir, orders = JobDir(local_url(folder)), Orders(lambda: None)
    job_dir.put(key, data)
    watcher = Watcher(job_dir, 1, "worker-0.1", orders, lambda _text: None)
    end = time.monotonic() + 180
    while (order := orders.next_to_expire) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    watcher.stop()
    return order


@pytest.mark.parametrize("off_by", [-7_200.0, 7_200.0], ids=["its clock is ahead", "its clock is behind"])
@pytest.mark.parametrize("key", [attempt_key(1, "stop.json"), node_key(1, "worker-0.1", "notice.json")])
def test_a_machine_whose_clock_is_another_gives_the_program_its_time(tmp_path: Path, key: str, off_by: float) -> None:
    deadline = time.time() + off_by + 30.0
    record = Stop("cancel", deadline, 30.0) if "stop" in key else Notice("preempt", deadline, "test", 30.0)
    left = seen_order(tmp_path, key, record.to_bytes()).deadline - time.monotonic()
    assert 15 < left <= 30


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_a_deadline_that_can_be_right_is_taken_as_it_is(tmp_path: Path, seconds: float | None) -> None:
    record = Stop("cancel", time.time() + 20.0, seconds)
    left = seen_order(tmp_path, attempt_key(1, "stop.json"), record.to_bytes()).deadline - time.monotonic()
    assert 10 < left <= 20
