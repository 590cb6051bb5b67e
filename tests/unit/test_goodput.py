"""Goodput: the parts of the paid time are right for known sequences of events, and always add up to the paid time."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree

import pytest

from cloudgpu.cli.goodput import plot as goodput_plot
from cloudgpu.cli.goodput import view as goodput_view
from cloudgpu.cli.shared.job.report_view import report_json
from cloudgpu.control.accounting.paid_time import Times
from cloudgpu.control.accounting.report import Report, make_report
from cloudgpu.control.reconcile.earlier_attempts import earlier_history
from cloudgpu.control.store.model import Attempt
from cloudgpu.protocol.jobdir import Progress, Span, Timeline
from cloudgpu.provisioners.base import Allocation
from cloudgpu.tests.standins.control import make_generation, make_offer

if TYPE_CHECKING:
    from cloudgpu.control.jobs import Job


def make_attempt(**changes: Any) -> Attempt:
    attempt = Attempt(
        job_id="job",
        number=1,
        state="ended",
        round=0,
        offer=make_offer(region="r"),
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


def span(generation: int, started: float, first: float | None, ended: float | None, **told: Any) -> dict[str, Any]:
    return dataclasses.asdict(
        Span(generation, started, first, ended, "", dataclasses.asdict(Progress(**told)) if told else None)
    )


def timeline(*spans: dict[str, Any], claimed: float, setup: float, ready: float | None) -> Timeline:
    return Timeline(claimed, setup, ready, list(spans))


def two_attempts() -> Report:
    """Return the report of two attempts: the first is preempted at step 120, saved at 100; the second resumes and
    finishes."""
    result: dict[str, Any] = {
        "step": 120,
        "saved_step": 100,
        "step_seconds": 60.0,
        "saved_seconds": 49.0,
        "blocked_seconds": 2.0,
    }
    first = make_attempt(
        number=1,
        outcome="preempted",
        launched=1000.0,
        ended=1120.0,
        progress=Progress(**result),
        timeline=timeline(span(1, 1040.0, 1048.5, 1110.5, **result), claimed=1020.0, setup=1022.0, ready=1040.0),
    )
    result = {"restored_step": 100, "step": 200, "saved_step": 200, "step_seconds": 50.0, "blocked_seconds": 1.0}
    result |= {"restore_seconds": 1.5, "cost": 0.5, "lag": 2.0}
    second = make_attempt(
        number=2,
        outcome="succeeded",
        launched=1130.0,
        ended=1230.0,
        progress=Progress(**result),
        timeline=timeline(span(1, 1160.0, 1170.0, 1225.0, **result), claimed=1150.0, setup=1151.0, ready=1160.0),
    )
    return make_report([first, second], now=9999.0)


def test_each_part_of_two_attempts() -> None:
    first, second = (line.times for line in two_attempts().attempts)
    # The first step, of 0.5 s, was reported at 48.5 s after a start at 40 s: 8 s of imports.
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


def test_what_the_earlier_attempts_met() -> None:
    spot = make_offer(nodes=2, market="spot")
    queued = timeline(span(1, 1040.0, None, None), claimed=1030.0, setup=1031.0, ready=None)
    attempts = [
        make_attempt(offer=spot, outcome="refused"),
        make_attempt(offer=spot, outcome="lost", launched=None),
        make_attempt(offer=spot, outcome="preempted", timeline=queued, progress=Progress(step=3, cost=0.5)),
        make_attempt(
            offer=spot, outcome="lost", generations=(make_generation(2, "failure"), make_generation(3, "members"))
        ),
        make_attempt(offer=spot, outcome="preempted", timeline=dataclasses.replace(queued, claimed=9e9)),
        make_attempt(offer=spot._replace(market="on-demand"), outcome="failed", progress=Progress(step=1)),
        make_attempt(offer=spot, outcome="", ended=None),
    ]
    assert earlier_history(attempts) == {
        "markets": {"spot": [2 * (70.0 + 100.0 + 100.0), 5], "on-demand": [200.0, 1]},
        "cost": 0.5,
    }
    assert earlier_history([]) == {"markets": {}, "cost": None}


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
        progress=Progress(**spans[1]["progress"]),
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
        (None, Timeline(1010.0, 1010.0), "setup"),
        (
            Progress(restore_seconds=1.0),
            Timeline(1000.0, None, 1000.0, [{"generation": 1, "started": 1000.0}]),
            "start",
        ),
        (
            Progress(step=90, step_seconds=90.0),
            Timeline(1000.0, None, 1000.0, [{"generation": 1, "started": 1000.0, "first_step": 1001.0}]),
            "productive",
        ),
        (None, Timeline(1000.0, None, 1000.0, [{"generation": 1, "started": 1000.0}]), "other"),
    ],
)
def test_a_job_that_runs(live: Progress | None, told: Timeline | None, part: str) -> None:
    attempt = make_attempt(
        launched=1000.0, ended=None, outcome="", progress=None, allocation=Allocation("local", "job", 1, "t", {})
    )
    times = make_report([attempt], now=1100.0, live=live, timeline=told).times
    assert times.total == pytest.approx(100)
    assert getattr(times, part) >= 85


def test_a_machine_that_vanished_was_paid_until_that_was_seen() -> None:
    result: dict[str, Any] = {"step": 30, "step_seconds": 30.0}
    attempt = make_attempt(
        outcome="lost",
        launched=1000.0,
        ended=1300.0,
        progress=Progress(**result),
        timeline=timeline(span(1, 1020.0, 1025.0, None, **result), claimed=1010.0, setup=1010.0, ready=1020.0),
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

    def some() -> Progress:
        return Progress(
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
        span(number, moment(), maybe(moment()), maybe(moment())) | {"progress": maybe(dataclasses.asdict(some()))}
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


# Output for people


class Named:
    """Fields of a job that the view of its goodput uses."""

    id, state = "digits-1a2b", "succeeded"


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_the_table_the_bars_and_what_was_possible() -> None:
    text = goodput_view.goodput_text(cast("Job", Named()), two_attempts())
    lines = text.splitlines()
    assert lines[0] == (
        "digits-1a2b succeeded: goodput 45.0% (2 attempts, 2 starts of the program; 3m 40s paid, 0.22 USD)"
    )
    assert re.fullmatch(
        r"possible \d\d\.\d% with 51s a start, an interruption every 3m 40s, 500ms a save, saving every 15s", lines[1]
    )
    assert "done again           11s   5.0%  xx" in text
    assert max(map(len, lines)) <= 100
    bars = [line.strip() for line in lines if re.fullmatch(r" {9}[#xwbsirpe.]+", line)]
    assert [len(bar) for bar in bars] == [91, round(91 * 100 / 120)], "as long as they were paid for"
    assert bars[0].count("#") == round(91 * 49 / 120)


def test_a_bar_has_each_part_with_its_share() -> None:
    assert goodput_view.bar(Times(productive=6, redone=3, ending=1), 10) == "######xxxe"
    assert goodput_view.bar(Times(productive=1e-9, other=9.0), 10) == "." * 10
    assert goodput_view.bar(Times(), 10) == ""
    rng = random.Random(1)
    for _ in range(200):
        times = Times(
            other=1.0, **{name: rng.choice([0.0, rng.uniform(0, 100)]) for name in ("redone", "boot", "start")}
        )
        assert len(goodput_view.bar(times, 77)) == 77


@pytest.mark.parametrize(
    ("times", "advice"),
    [
        (Times(productive=30, setup=61, other=9), "61% of the paid time is setup: `setup` takes 61s a start: put what"),
        (Times(productive=50, redone=50), "50% of the paid time is done again: steps were lost"),
        (Times(productive=70, blocked=30), "30% of the paid time is saving: saves come too often"),
        (Times(productive=90, setup=10), ""),
        (Times(), ""),
    ],
)
def test_what_dominates_is_worth_a_sentence(times: Times, advice: str) -> None:
    report = dataclasses.replace(two_attempts(), times=times, paid_seconds=times.total, starts=1)
    found = goodput_view.advice_for(report)
    assert found.startswith(advice.replace("61s a", "1m 1s a"))
    assert "{" not in found.replace("{every: auto}", "")
    assert bool(found) == bool(advice)


def test_a_program_that_counts_no_steps_gets_no_advice_on_its_training() -> None:
    times = Times(boot=10, other=90)
    report = dataclasses.replace(two_attempts(), times=times, paid_seconds=100.0, steps=None, goodput=None, starts=1)
    found = goodput_view.advice_for(report)
    assert found.startswith("90% of the paid time is program: the program counts no steps")
    assert "Checkpointer in its loop counts them" in found
    assert "evaluat" not in found
    counted = dataclasses.replace(report, steps=5)
    assert "90% of the paid time is other: the program ran outside of the steps" in goodput_view.advice_for(counted)


def test_every_part_is_shown() -> None:
    assert [part.name for part in goodput_view.PARTS] == [field.name for field in dataclasses.fields(Times)]
    assert len({part.letter for part in goodput_view.PARTS}) == len(goodput_view.PARTS)


def test_a_job_without_machines_has_nothing_to_show() -> None:
    report = make_report([make_attempt(launched=None)], now=0.0)
    assert goodput_view.goodput_text(cast("Job", Named()), report).endswith("no machine was asked for yet")


def test_the_picture_is_an_svg_with_a_bar_for_each_part() -> None:
    picture = goodput_plot.svg("<digits> & co", two_attempts())
    root = ElementTree.fromstring(picture)
    widths = [float(bar.get("width", 0)) for bar in root.iter("{http://www.w3.org/2000/svg}rect") if len(bar)]
    first, second = widths[:8], widths[8:]
    assert sum(first) == pytest.approx(sum(second) * 120 / 100, abs=0.1)
    assert "<digits> & co" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_report_as_json_has_the_parts() -> None:
    value = json.loads(json.dumps(report_json(two_attempts())))
    assert sum(value["times"].values()) == pytest.approx(value["paid_seconds"])
    assert value["optimum"]["goodput"] > value["goodput"]
    assert value["attempts"][0]["times"]["redone"] == 11
