"""Costs: exact, never negative, unknown rather than guessed; and the cost report."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from cloudgpu.control.accounting import cost
from cloudgpu.control.accounting.report import make_report
from cloudgpu.control.store.model import Attempt
from cloudgpu.protocol.jobdir import Progress
from cloudgpu.provisioners.base import Allocation
from cloudgpu.tests.standins.control import make_offer

BASE = Attempt(
    job_id="job",
    number=1,
    state="ended",
    round=0,
    offer=make_offer(region="r"),
    price=Decimal("3.6"),
    token="t",
    allocation=Allocation("local", "j", 1, "t", {}),
    cause="",
    scope="",
    deadline=None,
    outcome="succeeded",
    reason="",
    exit_code=0,
    progress=None,
    created=0.0,
    launched=100.0,
    ended=200.0,
    cost=None,
)


def attempt(**changes: Any) -> Attempt:
    return dataclasses.replace(BASE, **changes)


@pytest.mark.parametrize(
    ("changes", "now", "expected"),
    [
        ({}, 999.0, Decimal("0.1")),
        ({"ended": None}, 150.0, Decimal("0.05")),
        ({"ended": None}, 50.0, Decimal(0)),  # the clock was set back
        ({"launched": None, "ended": None}, 999.0, Decimal(0)),
        ({"price": None}, 999.0, None),
        ({"price": None, "launched": None}, 999.0, Decimal(0)),
        ({"price": Decimal(0)}, 999.0, Decimal(0)),
        ({"cost": Decimal("0.07")}, 999.0, Decimal("0.07")),
    ],
)
def test_attempt_cost(changes: dict[str, Any], now: float, expected: Decimal | None) -> None:
    assert cost.attempt_cost(attempt(**changes), now) == expected


def test_paid_time_is_that_which_was_paid_for() -> None:
    """The paid time is correct although the end was observed much later."""
    assert make_report([attempt(cost=Decimal("0.05"))], now=0).paid_seconds == 50


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    assert cost.total([attempt(), attempt(price=None)], 0) is None
    assert cost.total([attempt(), attempt()], 0) == Decimal("0.2")
    assert cost.total([], 0) == 0


def test_the_reserve_is_the_grace_but_no_more_than_a_fifth() -> None:
    assert cost.reserve(Decimal(100), Decimal("3.6"), 100) == Decimal("0.1")
    assert cost.reserve(Decimal("0.1"), Decimal("3.6"), 100) == Decimal("0.02")


def test_seconds_left() -> None:
    assert cost.seconds_left(Decimal(1), Decimal("0.5"), Decimal("1.8")) == 1000
    assert cost.seconds_left(Decimal(1), Decimal(2), Decimal(1)) == 0
    assert cost.seconds_left(Decimal(1), Decimal(0), Decimal(0)) is None


def progress(restored: int | None, step: int, saved: int | None, seconds: float) -> Progress:
    return Progress(restored, step, saved, seconds)


def test_report_of_an_interrupted_job() -> None:
    first = attempt(outcome="preempted", progress=progress(None, 120, 100, 60.0))
    second = attempt(number=2, launched=200.0, ended=260.0, progress=progress(100, 200, 200, 50.0))
    report = make_report([first, second], now=999.0)
    assert [line.redone for line in report.attempts] == [20, 0]
    assert (report.steps, report.redone, report.interruptions) == (200, 20, 1)
    assert report.paid_seconds == 160
    assert report.useful_seconds == pytest.approx(60 * 100 / 120 + 50)
    assert report.goodput == pytest.approx(100 / 160)
    assert report.cost == Decimal("0.16")
    assert report.wasted_cost == pytest.approx(Decimal("0.06"))


def test_report_of_a_start_from_nothing_redoes_all() -> None:
    first = attempt(outcome="lost", progress=progress(None, 120, None, 60.0))
    second = attempt(number=2, progress=progress(None, 200, None, 50.0))
    assert make_report([first, second], now=0).redone == 120


def test_report_skips_attempts_that_never_trained() -> None:
    first = attempt(outcome="preempted", progress=progress(None, 120, 100, 60.0))
    second = attempt(number=2, outcome="lost", progress=None)
    third = attempt(number=3, progress=progress(100, 200, 200, 50.0))
    assert make_report([first, second, third], now=0).redone == 20


def test_report_of_a_running_job_uses_its_heartbeat() -> None:
    report = make_report([attempt(ended=None, outcome="")], now=150.0, live=progress(None, 10, None, 25.0))
    assert (report.steps, report.goodput) == (10, 0.5)


def test_report_of_a_program_that_says_nothing() -> None:
    report = make_report([attempt()], now=0)
    assert (report.steps, report.goodput, report.redone) == (None, None, 0)


def test_report_before_anything_was_launched() -> None:
    report = make_report([attempt(launched=None, ended=None, outcome="")], now=0)
    assert (report.attempts, report.cost, report.goodput) == ((), Decimal(0), None)
    assert report.to_json()["cost"] == "0"
