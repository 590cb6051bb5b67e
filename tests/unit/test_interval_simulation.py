"""The automatic interval in simulated training with interruptions, against the best fixed interval in hindsight.

`python -m tests.bench interval` prints the whole grid; CLOUDGPU_LONG=1 tests it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cloudgpu.runtime.checkpoint.schedule.interval import PRIORS
from cloudgpu.runtime.goodput import daly_interval, goodput
from cloudgpu.tests.standins.interruptions import (
    COLD_GOAL,
    GRID,
    HOUR,
    LEARNT_GOAL,
    MINUTE,
    World,
    automatic,
    compare,
    enough_trainings,
    useful_at,
    with_lag,
)
from cloudgpu.tests.standins.long_mode import LONG

NOISY = World(5 * MINUTE, 60.0, 300.0)
"""Hardest world of the grid: one start in three reaches its first step, and a save takes a fifth of the mean time
between interruptions."""
SOME = [
    *(world for world in GRID if world.mean == 5 * MINUTE),
    *(world for world in GRID if world.mean == HOUR and world.cost >= 10),
    World(12 * HOUR, 60.0, 20.0),
    with_lag(World(5 * MINUTE, 60.0, 20.0)),
    with_lag(World(5 * MINUTE, 10.0, 300.0)),
    with_lag(World(HOUR, 10.0, 20.0)),
]


def trainings(world: World) -> int:
    return enough_trainings(world, 4000, least=10) if LONG else enough_trainings(world, 800, least=3)


@pytest.mark.parametrize("world", [*GRID, *map(with_lag, GRID)] if LONG else SOME, ids=str)
def test_it_comes_near_the_best_fixed_interval_at_first_and_later(world: World) -> None:
    found = compare(world, "spot", trainings(world))
    assert found.learnt >= LEARNT_GOAL
    assert found.cold >= COLD_GOAL


@pytest.mark.parametrize("market", ["on-demand", ""])
@pytest.mark.parametrize("world", [World(5 * MINUTE, 10.0, 300.0), World(HOUR, 60.0, 300.0)], ids=str)
def test_another_prior_is_overcome(world: World, market: str) -> None:
    assert compare(world, market, trainings(world)).learnt >= LEARNT_GOAL


@pytest.mark.parametrize("world", [World(5 * MINUTE, 10.0, 20.0), World(5 * MINUTE, 10.0, 300.0)], ids=str)
def test_without_a_job_it_learns_from_its_checkpoints(world: World) -> None:
    assert compare(world, "", trainings(world), in_job=False).learnt >= LEARNT_GOAL


@pytest.mark.parametrize("shape", [0.6, 0.8, 1.5])
@pytest.mark.parametrize("world", [World(HOUR, 1.0, 120.0), World(4 * HOUR, 10.0, 300.0)], ids=str)
def test_interruptions_that_come_in_bursts(world: World, shape: float) -> None:
    found = compare(replace(world, shape=shape), "spot", 8)
    assert found.learnt >= LEARNT_GOAL
    assert found.cold >= COLD_GOAL


@pytest.mark.parametrize("world", [World(HOUR, 0.05, 60.0, step=0.02), World(2 * HOUR, 1.0, 120.0, step=20.0)], ids=str)
def test_short_and_long_steps(world: World) -> None:
    assert compare(world, "spot", 2).learnt >= LEARNT_GOAL


def test_a_first_save_that_takes_long_does_not_spoil_the_interval() -> None:
    assert compare(World(HOUR, 0.5, 120.0, first_save=20.0), "spot", 3).learnt >= LEARNT_GOAL


@pytest.mark.parametrize("market", [*PRIORS, ""])
def test_without_interruptions_saving_costs_little(market: str) -> None:
    (run,) = automatic(World(math.inf, 10.0, 60.0), [24 * HOUR], market)
    assert run.useful + run.interval >= 0.98 * 24 * HOUR, "what came after the last save was not lost"


def test_theory_and_simulation_mean_the_same() -> None:
    for world in (World(HOUR, 10.0, 300.0), World(5 * MINUTE, 10.0, 20.0), with_lag(World(4 * HOUR, 60.0, 300.0))):
        lives = world.lives(seed=1, count=20_000)
        expected = goodput(world.daly, world.cost, world.restart, world.mean, world.writing)
        assert sum(useful_at(world, world.daly, lives)) / sum(lives) == pytest.approx(expected, rel=0.02)
        assert daly_interval(world.cost, world.mean) <= world.daly


def test_the_same_interruptions_give_the_same_result() -> None:
    lives = NOISY.lives(seed=3)
    assert list(automatic(NOISY, lives, "spot")) == list(automatic(NOISY, lives, "spot"))
