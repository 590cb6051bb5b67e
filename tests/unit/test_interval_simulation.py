"""Weeks of training with interruptions, on a simulated clock: the real Schedule against the best that is possible.

A process trains, saves when its Schedule says so, and is interrupted at random moments, also while it saves or starts
again. A save blocks for `cost` seconds and is durable `writing` seconds later. What was not durable is done again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cloudgpu.runtime.checkpoint.interval import PRIORS
from cloudgpu.runtime.checkpoint.schedule import Schedule
from cloudgpu.runtime.goodput import daly_interval, goodput

HOUR, WEEK = 3600.0, 7 * 24 * 3600.0

Failures = Callable[[random.Random], float]
"""Draws the seconds until the next interruption."""


def poisson(mean: float) -> Failures:
    return lambda rng: rng.expovariate(1 / mean)


def weibull(mean: float, shape: float) -> Failures:
    """Below a shape of 1, interruptions come in bursts, as those of spot machines do."""
    return lambda rng: rng.weibullvariate(mean / math.gamma(1 + 1 / shape), shape)


@dataclass(frozen=True)
class World:
    """What a training meets; seconds."""

    cost: float
    restart: float
    mean: float
    writing: float = 0.0
    step: float = 1.0
    first_save: float = 1.0
    """A process's first save blocks for so many times the cost: its memory is new."""
    shape: float = 1.0

    @property
    def failures(self) -> Failures:
        return poisson(self.mean) if self.shape == 1 else weibull(self.mean, self.shape)


@dataclass
class Result:
    useful: float
    paid: float
    intervals: list[float]
    """At each interruption."""

    @property
    def goodput(self) -> float:
        return self.useful / self.paid


@dataclass(frozen=True)
class Checkpoint:
    """What is durable: the useful seconds and the history in it."""

    trained: float = 0.0
    history: Any = None


def simulate(world: World, make: Callable[[], Schedule], *, seconds: float, seed: int) -> Result:
    rng = random.Random(seed)
    result = Result(0.0, 0.0, [])
    checkpoint = Checkpoint()
    failure = world.failures(rng)
    while result.paid < seconds:
        schedule = make()
        if checkpoint.history is not None:
            schedule.resumed(checkpoint.history, interrupted=True)
        checkpoint = _one_process(world, schedule, checkpoint, result.paid, failure)
        result.paid = failure
        result.intervals.append(schedule.interval or 0.0)
        failure += world.failures(rng)
    result.useful = checkpoint.trained
    return result


def _one_process(world: World, schedule: Schedule, checkpoint: Checkpoint, now: float, failure: float) -> Checkpoint:
    """From the start until the interruption; the newest checkpoint that was durable by then."""
    now += world.restart
    trained, steps, saves = checkpoint.trained, 0, 0
    schedule.count_from(0, now)
    while True:
        count = _steps_until_due(schedule, steps, now, world.step)
        steps, trained, now = steps + count, trained + count * world.step, now + count * world.step
        blocked = world.cost * (world.first_save if saves == 0 else 1.0)
        history = schedule.history(now)
        now += blocked
        schedule.count_from(steps, now, blocked)
        if now + world.writing > failure:
            return checkpoint
        checkpoint, saves = Checkpoint(trained, history), saves + 1
        schedule.written(world.writing)


def _steps_until_due(schedule: Schedule, steps: int, now: float, step: float) -> int:
    """The boundaries well before the interval's end need not be asked: none of them is due."""
    count = max(1, int((schedule.interval or 0.0) / step) - 1)
    while not schedule.due(steps + count, now + count * step):
        count += 1
    return count


def automatic(market: str = "spot") -> Callable[[], Schedule]:
    return lambda: Schedule("auto", market=market, ceiling=math.inf)


WORLDS = [
    World(cost=0.05, restart=60, mean=0.5 * HOUR),
    World(cost=0.05, restart=60, mean=4 * HOUR),
    World(cost=1, restart=120, mean=0.5 * HOUR),
    World(cost=1, restart=120, mean=4 * HOUR),
    World(cost=1, restart=180, mean=24 * HOUR),
    World(cost=10, restart=300, mean=4 * HOUR),
    World(cost=60, restart=300, mean=0.5 * HOUR),
    World(cost=60, restart=300, mean=4 * HOUR),
    World(cost=0.05, restart=120, mean=HOUR, writing=10),
    World(cost=0.05, restart=120, mean=HOUR, writing=60),
    World(cost=1, restart=120, mean=4 * HOUR, writing=30),
    World(cost=0.05, restart=60, mean=HOUR, step=0.02),
    World(cost=1, restart=120, mean=2 * HOUR, step=20),
]


def possible(world: World) -> float:
    """The best goodput there is for this cost and rate, by theory: nothing can be saved faster than it is written."""
    interval = max(daly_interval(world.cost, world.mean), world.writing)
    return goodput(interval, world.cost, world.restart, world.mean, lag=world.writing)


def against_one_that_knew(world: World, schedule: Callable[[], Schedule], seed: int = 2) -> tuple[Result, Result]:
    """The same weeks, with the same luck, by this schedule and by one that knew the best interval all along."""
    best = max(daly_interval(world.cost, world.mean), world.writing)
    seconds = max(60 * world.mean, min(1000 * world.mean, 6000 * (best + world.cost)))  # one to twenty weeks
    found = simulate(world, schedule, seconds=seconds, seed=seed)
    return found, simulate(world, lambda: Schedule(best), seconds=seconds, seed=seed)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_weeks_with_interruptions_come_within_one_percent_of_the_optimum(world: World) -> None:
    found, knowing = against_one_that_knew(world, automatic())
    assert found.goodput >= 0.99 * knowing.goodput
    assert knowing.goodput == pytest.approx(possible(world), rel=0.03), "theory and simulation mean the same"


@pytest.mark.parametrize("shape", [0.6, 0.8, 1.5])
@pytest.mark.parametrize(("cost", "restart", "mean"), [(1, 120, HOUR), (10, 300, 4 * HOUR)])
def test_interruptions_that_come_in_bursts(cost: float, restart: float, mean: float, shape: float) -> None:
    """Theory has no formula here: the best interval is looked for."""
    world = World(cost, restart, mean, shape=shape)
    seconds = 100 * mean
    best = max(
        simulate(world, lambda tau=tau: Schedule(float(tau)), seconds=seconds, seed=1).goodput  # type: ignore[misc]
        for tau in (daly_interval(cost, mean) * 1.3**power for power in range(-4, 5))
    )
    assert simulate(world, automatic(), seconds=seconds, seed=1).goodput >= 0.99 * best


@pytest.mark.parametrize("market", [*PRIORS, ""])
@pytest.mark.parametrize(("cost", "restart", "mean"), [(10, 300, HOUR / 2), (1, 120, 4 * HOUR), (60, 300, 24 * HOUR)])
def test_any_prior_is_overcome_within_ten_interruptions(cost: float, restart: float, mean: float, market: str) -> None:
    """What the interval of then would yield for ever after, on average over many lucks and nearly for each."""
    world = World(cost, restart, mean)
    reached = []
    for seed in range(10):
        found = simulate(world, automatic(market), seconds=25 * world.mean, seed=seed)
        tau = found.intervals[10]
        reached.append(goodput(tau, world.cost, world.restart, world.mean) / possible(world))
    assert sum(reached) / len(reached) >= 0.99
    assert min(reached) >= 0.97


def test_a_first_save_that_is_out_of_the_way_does_not_spoil_the_interval() -> None:
    world = World(cost=0.5, restart=120, mean=HOUR, first_save=20)
    found, knowing = against_one_that_knew(world, automatic())
    assert found.goodput >= 0.99 * knowing.goodput


def test_the_ceiling_bounds_what_is_lost_at_once() -> None:
    world = World(cost=10, restart=300, mean=24 * HOUR)
    result = simulate(world, lambda: Schedule("auto", market="on-demand"), seconds=50 * world.mean, seed=1)
    assert max(result.intervals) == 300
    best = goodput(300, world.cost, world.restart, world.mean)
    assert result.goodput == pytest.approx(best, rel=0.01)


def test_the_same_luck_gives_the_same_weeks() -> None:
    world = World(cost=1, restart=120, mean=HOUR)
    first, second = (simulate(world, automatic(), seconds=WEEK / 7, seed=3) for _ in range(2))
    assert first == second
