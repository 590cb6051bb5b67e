"""Training with interruptions on a simulated clock: the real Schedule compared with fixed intervals.

A process trains, saves when its Schedule says so, and is interrupted at random moments, including during saves and
restarts. A save blocks for `cost` seconds and is durable `writing` seconds later. Work that was not durable is lost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloudgpu.runtime.checkpoint.schedule.interval import History
from cloudgpu.runtime.checkpoint.schedule.schedule import Schedule
from cloudgpu.runtime.goodput import daly_interval

MINUTE, HOUR = 60.0, 3600.0
LIVES = 60
COLD, LEARNT = slice(0, 10), slice(30, 60)
"""Slices of a training run's lives (the times between two interruptions): the first ones, and later ones."""
COLD_GOAL, LEARNT_GOAL = 0.97, 0.99
"""Lower bounds of useful time, as fractions of the best fixed interval's."""


@dataclass(frozen=True)
class World:
    """Conditions of a training run; times in seconds."""

    mean: float
    cost: float
    restart: float
    writing: float = 0.0
    step: float = 0.25
    first_save: float = 1.0
    """Factor by which a process's first save blocks longer, since its memory is newly allocated."""
    shape: float = 1.0
    """Shape of the Weibull distribution; below 1 interruptions come in bursts, as those of spot machines do."""

    def lives(self, seed: int, count: int = LIVES) -> list[float]:
        """Return the seconds from each start to the next interruption."""
        rng, scale = random.Random(seed), self.mean / math.gamma(1 + 1 / self.shape)
        return [rng.weibullvariate(scale, self.shape) for _ in range(count)]

    @property
    def daly(self) -> float:
        """Return the theoretically best interval for known cost and mean; a save is written before the next one
        begins."""
        return max(daly_interval(self.cost, self.mean), self.writing)


GRID = [
    World(mean, cost, restart)
    for mean in (5 * MINUTE, HOUR, 12 * HOUR)
    for cost in (0.1, 10.0, 60.0)
    for restart in (20.0, 300.0)
]


@dataclass(frozen=True)
class Run:
    """One life of a training run that saves automatically: the time from a start to the next interruption."""

    useful: float
    """Seconds of training that were durable at the interruption."""
    interval: float
    """Save interval in seconds at the interruption."""


@dataclass(frozen=True)
class Checkpoint:
    attempt: int
    history: Any


def useful_at(world: World, interval: float, lives: Iterable[float]) -> list[float]:
    """Return the durable seconds of each life with a fixed interval."""
    interval = max(interval, world.writing)
    ready = world.restart + world.writing
    return [max(0, (life - ready) // (interval + world.cost)) * interval for life in lives]


def automatic(world: World, lives: Iterable[float], market: str, *, in_job: bool = True) -> Iterator[Run]:
    """Simulate the Schedule of every="auto" through all lives.

    in_job: the job knows the duration of its earlier starts and the cost of their saves. Otherwise a process knows only
    its checkpoint's contents and the number of processes that have begun to train since.
    """
    checkpoint: Checkpoint | None = None
    known = History()
    attempt = 0
    for life in lives:
        schedule = Schedule("auto", market=market, known=known if in_job else None)
        attempt += life > world.restart
        if checkpoint is not None:
            schedule.resumed(checkpoint.history, starts=1 if in_job else attempt - checkpoint.attempt)
        useful, checkpoint = _train(world, schedule, life, attempt, checkpoint)
        known = replace(known.plus(market, life, 1), cost=schedule.measured()["cost"])
        yield Run(useful, schedule.interval or 0.0)


def _train(
    world: World, schedule: Schedule, life: float, attempt: int, checkpoint: Checkpoint | None
) -> tuple[float, Checkpoint | None]:
    """Train until the interruption; return the durable seconds of training and the newest checkpoint."""
    now, trained, useful, steps, blocked = world.restart, 0.0, 0.0, 0, world.cost * world.first_save
    saved: float | None = None
    schedule.count_from(0, now)
    while now + world.cost + world.writing < life:
        count = _steps_until_due(schedule, steps, now, world.step)
        steps, trained, now = steps + count, trained + count * world.step, now + count * world.step
        begun, now = now, now + blocked
        if now > life:
            break
        schedule.count_from(steps, now, blocked)
        if now + world.writing > life:
            break
        schedule.written(world.writing)
        useful, saved, blocked = trained, begun, world.cost
    return useful, checkpoint if saved is None else Checkpoint(attempt, schedule.history(saved))


def _steps_until_due(schedule: Schedule, steps: int, now: float, step: float) -> int:
    """Return the number of steps until a save is due. It starts shortly before the interval's end, since no earlier
    step is due."""
    count = max(1, int((schedule.interval or 0.0) / step) - 1)
    while not schedule.due(steps + count, now + count * step):
        count += 1
    return count


@dataclass(frozen=True)
class Comparison:
    """Useful time with every="auto", as a fraction of the best fixed interval's for the same interruptions."""

    learnt: float
    cold: float


def compare(world: World, market: str, trainings: int, *, in_job: bool = True) -> Comparison:
    """Compare with the best of 16 fixed intervals, chosen with hindsight for each phase."""
    lives = [world.lives(seed) for seed in range(trainings)]
    found = [[run.useful for run in automatic(world, each, market, in_job=in_job)] for each in lives]
    intervals = [world.daly * 1.2**power for power in range(-8, 8)]
    fixed = [[useful_at(world, interval, each) for each in lives] for interval in intervals]
    learnt, cold = (_total(found, phase) / max(_total(each, phase) for each in fixed) for phase in (LEARNT, COLD))
    return Comparison(learnt, cold)


def enough_trainings(world: World, factor: int, *, least: int) -> int:
    """Return the number of simulated runs for a stable ratio: few saves between interruptions make it noisy."""
    saves = world.mean / (world.daly + world.cost)
    return max(least, int(factor / saves**1.5))


def _total(trainings: Sequence[Sequence[float]], phase: slice) -> float:
    return sum(sum(each[phase]) for each in trainings)


def with_lag(world: World) -> World:
    """Return the same conditions with a write that takes three times the cost of a save."""
    return replace(world, writing=3 * world.cost)
