"""Where paid time went: the parts are right for known courses of events, and add up to the paid time for any."""

from __future__ import annotations

import dataclasses
import random
from decimal import Decimal
from typing import Any

import pytest

from cloudgpu.control.model import Attempt
from cloudgpu.control.report import Report, make_report
from cloudgpu.control.times import Times
from cloudgpu.runtime.jobdir import Progress, Span, Timeline
from cloudgpu.tests.standins.control import make_offer


def make_attempt(**changes: Any) -> Attempt:
    attempt = Attempt(
        job_id="job",
        number=1,
        state="ended",
        round=0,
        offer=make_offer(region="r").to_json(),
        price=Decimal("3.6"),
        token="t",
        allocation=None,
        cause="",
        scope="",
        deadline=None,
        outcome="succeeded",
        reason="",
        exit_code=0,
        progress=None,
        created=0.0,
        launched=1000.0,
        ended=1100.0,
        cost=None,
    )
    return dataclasses.replace(attempt, **changes)


def progress(**fields: Any) -> dict[str, Any]:
    return dataclasses.asdict(Progress(**fields))


def span(generation: int, started: float, first: float | None, ended: float | None, **told: Any) -> dict[str, Any]:
    return dataclasses.asdict(Span(generation, started, first, ended, "", progress(**told) if told else None))


def timeline(*spans: dict[str, Any], claimed: float, setup: float, ready: float | None) -> dict[str, Any]:
    return dataclasses.asdict(Timeline(claimed, setup, ready, list(spans)))


def two_attempts() -> Report:
    """The first is preempted at step 120, saved at 100; the second goes on from there and ends."""
    told = {"step": 120, "saved_step": 100, "step_seconds": 60.0, "saved_seconds": 49.0, "blocked_seconds": 2.0}
    first = make_attempt(
        number=1,
        outcome="preempted",
        launched=1000.0,
        ended=1120.0,
        progress=progress(**told),
        timeline=timeline(span(1, 1040.0, 1048.5, 1110.5, **told), claimed=1020.0, setup=1022.0, ready=1040.0),
    )
    told = {"restored_step": 100, "step": 200, "saved_step": 200, "step_seconds": 50.0, "blocked_seconds": 1.0}
    told |= {"restore_seconds": 1.5, "cost": 0.5, "lag": 2.0}
    second = make_attempt(
        number=2,
        outcome="succeeded",
        launched=1130.0,
        ended=1230.0,
        progress=progress(**told),
        timeline=timeline(span(1, 1160.0, 1170.0, 1225.0, **told), claimed=1150.0, setup=1151.0, ready=1160.0),
    )
    return make_report([first, second], now=9999.0)


def test_each_part_of_two_attempts() -> None:
    first, second = (line.times for line in two_attempts().attempts)
    # It started at 40 s and was seen to have done its first step of 0.5 s at 48.5 s: 8 s of imports.
    assert dataclasses.asdict(first) == pytest.approx(
        dataclasses.asdict(
            Times(productive=49, redone=11, blocked=2, boot=20, setup=20, start=8, ending=9.5, other=0.5)
        )
    )
    assert dataclasses.asdict(second) == pytest.approx(
        dataclasses.asdict(
            Times(productive=50, blocked=1, boot=20, setup=10, start=8, restore=1.5, ending=5, other=4.5)
        )
    )


def test_the_job_is_the_sum_of_its_attempts() -> None:
    report = two_attempts()
    assert report.times.total == pytest.approx(report.paid_seconds) == 220
    assert report.useful_seconds == report.times.productive == 99
    assert report.goodput == pytest.approx(99 / 220)
    assert (report.redone, report.starts) == (20, 2)
    assert sum(line.useful_seconds for line in report.attempts) == report.useful_seconds


def test_the_optimum_stands_beside_what_was_reached() -> None:
    report = two_attempts()
    optimum = report.optimum
    assert optimum is not None
    assert (optimum.cost, optimum.lag, optimum.mean) == (0.5, 2.0, 220.0)
    assert optimum.restart == pytest.approx((20 + 20 + 8 + 20 + 10 + 8 + 1.5 + 9.5 + 5) / 2)
    assert report.goodput is not None
    assert report.goodput < optimum.goodput < 99 / (99 + 2 * optimum.restart)
    assert optimum.interval == pytest.approx((2 * 0.5 * 220) ** 0.5, rel=0.05)


def test_starts_on_the_same_machines_are_counted_one_by_one() -> None:
    spans = [
        span(1, 1020.0, 1025.0, 1060.0, step=30, saved_step=20, step_seconds=30.0, saved_seconds=20.0),
        span(2, 1063.0, 1066.0, 1100.0, restored_step=20, step=50, saved_step=50, step_seconds=30.0),
    ]
    attempt = make_attempt(
        outcome="succeeded",
        launched=1000.0,
        ended=1105.0,
        progress=spans[1]["progress"],
        timeline=timeline(*spans, claimed=1010.0, setup=1010.0, ready=1020.0),
    )
    report = make_report([attempt], now=0.0)
    line = report.attempts[0]
    assert (line.redone, line.starts, line.step, line.restored_step) == (10, 2, 50, None)
    assert (line.times.redone, line.times.pause, line.times.productive) == (10, 3, 50)
    assert (line.times.boot, line.times.setup, line.times.ending) == (10, 10, 5)
    assert report.optimum is not None
    assert report.optimum.mean == 105


@pytest.mark.parametrize(
    ("live", "told", "part"),
    [
        (None, None, "boot"),
        (None, {"claimed": 1010.0, "setup": 1010.0}, "setup"),
        (
            {"restore_seconds": 1.0},
            {"claimed": 1000.0, "ready": 1000.0, "spans": [{"generation": 1, "started": 1000.0}]},
            "start",
        ),
        (
            {"step": 90, "step_seconds": 90.0},
            {"claimed": 1000.0, "ready": 1000.0, "spans": [{"generation": 1, "started": 1000.0, "first_step": 1001.0}]},
            "productive",
        ),
        (None, {"claimed": 1000.0, "ready": 1000.0, "spans": [{"generation": 1, "started": 1000.0}]}, "other"),
    ],
)
def test_a_job_that_runs(live: dict[str, Any] | None, told: dict[str, Any] | None, part: str) -> None:
    attempt = make_attempt(launched=1000.0, ended=None, outcome="", progress=None)
    times = make_report([attempt], now=1100.0, live=live, timeline=told).times
    assert times.total == pytest.approx(100)
    assert getattr(times, part) >= 85


def test_a_machine_that_vanished_was_paid_until_that_was_seen() -> None:
    told = {"step": 30, "step_seconds": 30.0}
    attempt = make_attempt(
        outcome="lost",
        launched=1000.0,
        ended=1300.0,
        progress=progress(**told),
        timeline=timeline(span(1, 1020.0, 1025.0, None, **told), claimed=1010.0, setup=1010.0, ready=1020.0),
    )
    times = make_report([attempt], now=0.0).times
    assert times.productive == 30
    assert times.ending == pytest.approx(300 - 30 - 10 - 10 - 4)


def test_any_course_of_events_adds_up_whatever_the_clocks_say() -> None:
    rng = random.Random(5)
    for _ in range(500):
        attempts = [_random_attempt(rng, number) for number in range(1, rng.randrange(2, 6))]
        report = make_report(attempts, now=rng.uniform(0, 3000))
        for line in report.attempts:
            assert line.times.total == pytest.approx(line.seconds, abs=1e-6)
            assert all(part >= 0 for part in dataclasses.asdict(line.times).values())
        assert report.times.total == pytest.approx(report.paid_seconds, abs=1e-6)
        assert report.goodput is None or 0 <= report.goodput <= 1
        assert report.optimum is None or 0 <= report.optimum.goodput <= 1


def _random_attempt(rng: random.Random, number: int) -> Attempt:
    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.7 else None

    def moment() -> float:
        return rng.uniform(0, 2000)

    def some() -> dict[str, Any]:
        return progress(
            restored_step=maybe(rng.randrange(50)),
            step=rng.randrange(200),
            saved_step=maybe(rng.randrange(150)),
            step_seconds=rng.uniform(0, 900),
            blocked_seconds=rng.uniform(0, 90),
            restore_seconds=rng.uniform(0, 90),
            saved_seconds=maybe(rng.uniform(0, 900)),
            cost=maybe(rng.uniform(0, 9)),
        )

    spans = [
        span(number, moment(), maybe(moment()), maybe(moment())) | {"progress": maybe(some())}
        for number in range(rng.randrange(4))
    ]
    return make_attempt(
        number=number,
        outcome=rng.choice(["", "lost", "preempted", "failed"]),
        launched=maybe(moment()),
        ended=maybe(moment()),
        progress=maybe(some()),
        timeline=maybe(timeline(*spans, claimed=moment(), setup=moment(), ready=maybe(moment()))),
    )
