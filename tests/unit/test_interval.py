"""The arithmetic of when to save: against published formulas, computed values and bounds."""

from __future__ import annotations

import math

import pytest

from cloudgpu.runtime.checkpoint.schedule.interval import (
    FIRST_MEAN,
    PRIORS,
    UNKNOWN_PRIOR,
    History,
    Observation,
    Prior,
    RecentMedian,
    best_interval,
    mean_between,
    prior_of,
)
from cloudgpu.runtime.goodput import best_goodput, daly_interval, goodput, young_interval

HOUR = 3600.0

# mean, cost, restart -> Young's and Daly's interval, exact goodput (each confirmed by a Monte-Carlo simulation)
TABLE = [
    (24 * HOUR, 1.0, 180.0, 415.7, 415.0, 0.9931),
    (4 * HOUR, 60.0, 300.0, 1314.5, 1274.8, 0.8927),
    (4 * HOUR, 10.0, 300.0, 536.7, 530.0, 0.9433),
    (4 * HOUR, 1.0, 120.0, 169.7, 169.0, 0.9801),
    (4 * HOUR, 0.05, 60.0, 37.9, 37.9, 0.9932),
    (0.5 * HOUR, 60.0, 300.0, 464.8, 425.6, 0.6463),
    (0.5 * HOUR, 1.0, 120.0, 60.0, 59.3, 0.9047),
    (0.5 * HOUR, 0.05, 60.0, 13.4, 13.4, 0.9600),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_known_values(row: tuple[float, ...]) -> None:
    mean, cost, restart, young, daly, exact = row
    assert young_interval(cost, mean) == pytest.approx(young, abs=0.06)
    assert daly_interval(cost, mean) == pytest.approx(daly, abs=0.06)
    assert goodput(daly_interval(cost, mean), cost, restart, mean) == pytest.approx(exact, abs=0.00006)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_no_interval_is_better_than_dalys(row: tuple[float, ...]) -> None:
    mean, cost, restart, _, daly, _ = row
    best = max(goodput(daly * 1.01**power, cost, restart, mean) for power in range(-300, 300))
    assert goodput(daly_interval(cost, mean), cost, restart, mean) > best - 1e-4


def test_the_optimum_is_flat() -> None:
    tau = daly_interval(2.0, HOUR)
    found = [goodput(tau * wrong, 2.0, 120.0, HOUR) for wrong in (0.25, 0.5, 1, 2, 4, 10)]
    assert found == pytest.approx([0.902, 0.928, 0.935, 0.928, 0.901, 0.815], abs=0.001)


def test_what_is_not_durable_yet_is_lost_too() -> None:
    tau = daly_interval(0.05, HOUR)
    found = [goodput(max(tau, lag), 0.05, 120.0, HOUR, lag) for lag in (0.0, 10.0, 30.0, 60.0, 120.0)]
    assert found == pytest.approx([0.962, 0.959, 0.953, 0.942, 0.919], abs=0.0011)


def test_extremes_are_numbers() -> None:
    assert goodput(10.0, 1.0, 1e9, 1.0) == 0
    assert goodput(0.0, 1.0, 1.0, 1.0) == 0
    assert goodput(9.0, 1.0, 5.0, math.inf) == 0.9
    assert daly_interval(5.0, 2.0) == 2.0, "no save is worth its cost: once per interruption"
    assert daly_interval(1.0, math.inf) == math.inf
    assert daly_interval(0.0, HOUR) == 0


def test_what_a_job_that_ends_could_have_come_to() -> None:
    assert best_goodput(0.0, 1, cost=1.0, restart=9.0, mean=None) == (0.0, None)
    assert best_goodput(90.0, 1, cost=1.0, restart=10.0, mean=None) == (0.9, None), "nothing was interrupted: one start"
    assert best_goodput(90.0, 2, cost=0.0, restart=5.0, mean=50.0) == (0.9, None), (
        "saving costs nothing: nothing need be lost"
    )
    mean, cost, restart = 24 * HOUR, 1.0, 180.0
    useful = 0.9931 * 1000 * mean
    found, interval = best_goodput(useful, 1001, cost=cost, restart=restart, mean=mean)
    assert found == pytest.approx(0.9931, abs=1e-4)
    assert interval == daly_interval(cost, mean)
    assert best_goodput(useful, 1001, cost=cost, restart=restart, mean=mean, lag=600.0)[1] == 600


def test_the_posterior_goes_from_the_prior_to_what_was_seen() -> None:
    prior = Prior("x", 1.0)
    assert mean_between(prior, Observation(), 1) == mean_between(prior, Observation(), 100) == FIRST_MEAN
    assert mean_between(prior, Observation(HOUR - FIRST_MEAN, 2), 1) == HOUR / 3
    assert mean_between(prior, Observation(1000 * HOUR, 100), 1) == pytest.approx(10 * HOUR, rel=0.01)
    assert mean_between(prior, Observation(80 * HOUR, 0), 8) == 10 * HOUR + FIRST_MEAN, (
        "any of eight interrupts the job"
    )


@pytest.mark.parametrize("prior", [*PRIORS.values(), UNKNOWN_PRIOR], ids=lambda prior: str(prior.name))
def test_the_prior_bounds_the_interval_while_nothing_is_interrupted(prior: Prior) -> None:
    """Compared with the best interval for the lower 95 % confidence limit of M, about a third of the time so far."""
    for hours in (1, 24, 24 * 365):
        interval = best_interval(0.1, mean_between(prior, Observation(hours * HOUR, 0), 1), 0.0)
        assert interval <= 4.1 * daly_interval(0.1, hours * HOUR / 3)


@pytest.mark.parametrize("prior", [*PRIORS.values(), UNKNOWN_PRIOR], ids=lambda prior: str(prior.name))
def test_priors_say_little(prior: Prior) -> None:
    assert prior.interruptions <= 1
    assert prior_of(prior.name) is prior or prior is UNKNOWN_PRIOR


def test_an_unknown_market_has_the_unknown_prior() -> None:
    assert prior_of("") is prior_of("barter") is UNKNOWN_PRIOR


def test_the_typical_value_ignores_one_outlier_wherever_it_comes() -> None:
    for place in range(5):
        typical = RecentMedian()
        for index in range(5):
            typical.add(10.0 if index == place else 0.1)
            assert typical.value == 0.1 or index == place == 0
    assert RecentMedian().value is None


def test_the_typical_value_follows_a_change() -> None:
    typical = RecentMedian()
    for value in [0.1] * 100 + [0.5] * 4:
        typical.add(value)
    assert typical.value == 0.5


def test_measurements_that_are_none_are_not_counted() -> None:
    typical = RecentMedian()
    for value in (math.nan, math.inf, -1.0, 0.2):
        typical.add(value)
    assert typical.value == 0.2


def test_nothing_is_saved_faster_than_it_is_written() -> None:
    best = daly_interval(0.05, 4 * HOUR)
    assert best_interval(0.05, 4 * HOUR, 0.0) == best_interval(0.05, 4 * HOUR, best / 2) == best
    assert best_interval(0.05, 4 * HOUR, 60.0) == 60


def test_histories_survive_json() -> None:
    history = History().plus("spot", 12.5, 1).plus("on-demand", 3.0).plus("spot", 1.5, 2)
    assert history.markets == {"spot": Observation(14.0, 3), "on-demand": Observation(3.0, 0)}
    assert History.from_json(history.to_json()) == history


def test_of_two_histories_the_larger_counts_are_taken() -> None:
    saved = History({"spot": Observation(100.0, 1), "on-demand": Observation(50.0, 0)}, cost=2.0)
    known = History({"spot": Observation(80.0, 4), "on-demand": Observation(70.0, 0)}, cost=9.0)
    assert saved.joined(known) == History({"spot": Observation(100.0, 4), "on-demand": Observation(70.0, 0)}, cost=2.0)
    assert History().joined(known) == known


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"markets": {"spot": [NaN, 1]}}', '{"markets": {"spot": [-1, 1]}}', '{"markets": 3}']
)
def test_a_text_that_is_no_history_is_an_empty_one(text: str) -> None:
    assert History.from_text(text) == History()
    assert History.from_text('{"markets": {"spot": [60, 2]}}') == History({"spot": Observation(60.0, 2)})
