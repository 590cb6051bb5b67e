"""When a checkpoint is due, and what the log says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.jobdir import Progress
from cloudgpu.runtime.checkpoint.errors import CheckpointError
from cloudgpu.runtime.checkpoint.progress import ProgressFile
from cloudgpu.runtime.checkpoint.schedule.interval import History, Observation
from cloudgpu.runtime.checkpoint.schedule.schedule import FIRST_SAVE_S, HURRY_FACTOR, Schedule
from cloudgpu.runtime.goodput import daly_interval


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1h30m", 5400), ("10m", 600), ("2.5", 2.5), (45.0, 45)])
def test_a_duration_is_kept_to_exactly(text: Any, seconds: float) -> None:
    schedule = Schedule(text)
    schedule.count_from(0, 100.0)
    for _ in range(3):  # whatever saves cost and how often there are interruptions
        schedule.resumed({"markets": {"unknown": [1.0, 99]}, "cost": 9.0}, starts=1)
        schedule.count_from(0, 100.0, blocked=50.0)
        schedule.written(10_000.0)
    assert schedule.interval == seconds
    assert not schedule.due(99, 100 + seconds * 0.99)
    assert schedule.due(1, 100 + seconds)


def test_steps_are_kept_to_exactly() -> None:
    schedule = Schedule(10)
    schedule.count_from(5, 0.0)
    assert schedule.interval is None
    assert [step for step in range(5, 30) if schedule.due(step, 1e6)] == list(range(15, 30))


@pytest.mark.parametrize("every", [0, -1, True, "", "soon", 0.0, "0s", None])
def test_what_is_no_interval_is_refused(every: Any) -> None:
    with pytest.raises(CheckpointError, match="expected steps"):
        Schedule(every)


def test_the_first_save_of_all_comes_soon() -> None:
    schedule = Schedule("auto", market="on-demand")
    schedule.count_from(0, 0.0)
    assert schedule.interval == FIRST_SAVE_S


def test_one_slow_save_changes_nothing() -> None:
    schedule = Schedule("auto", market="spot")
    for blocked in (0.9, 0.05, 0.05, 0.05):  # the first made its pages
        schedule.count_from(0, 0.0, blocked)
    settled = schedule.interval
    schedule.count_from(0, 0.0, 30.0)
    assert schedule.interval == settled == pytest.approx(5.45, abs=0.01)


def test_a_save_is_not_due_before_the_one_before_is_written() -> None:
    schedule = Schedule("auto", market="spot")
    schedule.count_from(0, 0.0, 0.05)
    schedule.written(90.0)
    assert schedule.interval == 90
    assert not schedule.due(1000, 80.0)
    schedule.hurry(1000.0)
    assert not schedule.due(1000, 80.0)
    assert schedule.due(1000, 90.0)


def test_long_steps_are_rounded_to_the_nearest_boundary() -> None:
    schedule = Schedule("auto", market="spot")
    schedule.count_from(0, 0.0, 1.23)  # the interval is 27 s
    assert schedule.interval == pytest.approx(26.5, abs=0.5)
    assert [seconds for seconds in (20.0, 40.0) if schedule.due(int(seconds / 20), seconds)] == [20, 40]
    assert [schedule.due(step, step * 10.0) for step in (1, 2, 3)] == [False, False, True]
    assert not schedule.due(0, 1000.0), "nothing has been trained since"


@pytest.mark.parametrize(("every", "before", "after"), [(8, 8, 2), ("40s", 40, 10), ("auto", 31, 7)])
def test_a_notice_quarters_the_interval_until_its_deadline(every: Any, before: int, after: int) -> None:
    schedule = Schedule(every, market="spot")
    schedule.count_from(0, 0.0, 1.23)
    schedule.hurry(until=100.0)
    assert HURRY_FACTOR == 4

    def first_due(start: float) -> int:
        schedule.count_from(0, start)
        return next(step for step in range(1, 100) if schedule.due(step, start + step))

    assert first_due(0.0) == pytest.approx(after, abs=1)
    assert first_due(101.0) == pytest.approx(before, abs=1)


def test_the_history_is_saved_and_restored() -> None:
    first = Schedule("auto", market="spot", nodes=2)
    first.count_from(0, 1000.0)
    first.count_from(10, 1100.0, blocked=0.2)
    second = Schedule("auto", market="spot", nodes=2)
    second.resumed(first.history(1100.0), starts=1)
    second.count_from(10, 5.0)
    lost = 2 * ((2 * 0.2 * 400) ** 0.5 + 0.2) / 2  # of both machines, half an interval and a save
    history = second.history(105.0)
    assert history["markets"]["spot"] == pytest.approx([400.0 + lost, 1], rel=0.01)
    assert history["cost"] == 0.2
    third = Schedule("auto", market="spot", nodes=2)
    third.resumed(history, starts=0)
    assert third.history(0.0) == history, "nothing was interrupted: it had ended"


def test_starts_that_ended_before_their_first_save_count() -> None:
    saved = {"markets": {"spot": [3600.0, 0]}, "cost": 10.0}
    intervals = []
    for starts in (1, 2, 5):
        schedule = Schedule("auto", market="spot")
        schedule.resumed(saved, starts=starts)
        intervals.append(schedule.interval or 0.0)
        assert schedule.history(0.0)["markets"]["spot"][1] == starts
    assert intervals == sorted(intervals, reverse=True)


def test_what_the_job_knows_counts_before_there_is_a_checkpoint() -> None:
    known = History({"spot": Observation(1200.0, 3)}, cost=10.0)
    schedule = Schedule("auto", market="spot", known=known)
    assert schedule.measured()["mean"] == (300 + 1200) / (1 + 3)
    assert schedule.interval == daly_interval(10.0, 375.0)
    schedule.resumed({"markets": {"spot": [500.0, 1]}, "cost": 8.0}, starts=1)
    assert schedule.measured()["mean"] == 375, "the checkpoint knows of fewer interruptions"
    assert schedule.interval == daly_interval(8.0, 375.0), "and of a save's cost better"


def test_time_without_an_interruption_makes_the_interval_longer() -> None:
    schedule = Schedule("auto", market="spot")
    schedule.count_from(0, 0.0)
    intervals = []
    for minute in range(1, 600, 60):
        schedule.count_from(minute, minute * 60.0, blocked=10.0)
        intervals.append(schedule.interval or 0.0)
    assert intervals == sorted(intervals)
    assert intervals[-1] == pytest.approx(daly_interval(10.0, 541 * 60.0 + 300))


def test_what_one_market_did_says_nothing_of_another() -> None:
    schedule = Schedule("auto", market="on-demand")
    schedule.resumed({"markets": {"spot": [3600.0, 50]}, "cost": 1.0}, starts=0)
    assert schedule.history(0.0)["markets"]["spot"] == [3600.0, 50]
    assert schedule.measured()["mean"] == 300


@pytest.mark.parametrize("rubbish", [None, [], "x", {}, {"markets": {"spot": 3}}, {"markets": {}, "cost": "much"}])
def test_a_history_that_cannot_be_understood_is_begun_anew(rubbish: Any) -> None:
    schedule = Schedule("auto", market="spot")
    schedule.resumed(rubbish, starts=1)
    assert schedule.history(0.0)["markets"] == {"spot": [FIRST_SAVE_S / 2, 1]}


def test_the_interval_is_explained_at_first_and_when_it_changes() -> None:
    schedule = Schedule("auto", market="spot")
    schedule.count_from(0, 0.0)
    assert schedule.explanation(0.0) == "saving after 1.5 min, to measure what a save costs"
    schedule.count_from(10, 90.0, blocked=0.25)
    assert schedule.explanation(90.0) == (
        "saving every 14 s: a save blocks 0.25 s, the mean time between interruptions is taken as 6.5 min "
        "(0 seen in 1.5 min, prior spot)"
    )
    lines = []
    for minute in range(2, 120):
        schedule.count_from(minute, 60.0 * minute, blocked=0.25)
        lines.append(schedule.explanation(60.0 * minute))
    said = [line for line in lines if line]
    assert [line.partition(":")[0] for line in said] == ["saving every 21 s", "saving every 32 s", "saving every 48 s"]
    later = Schedule("auto", market="spot")
    later.resumed({"markets": {"spot": [3 * 3600.0, 9]}, "cost": 0.05}, starts=0)
    assert later.explanation(0.0) == (
        "saving every 11 s: a save blocks 0.05 s, the mean time between interruptions is taken as 18 min "
        "(9 seen in 3 h, prior spot)"
    )


def test_an_interval_as_long_as_a_save_takes_is_explained() -> None:
    schedule = Schedule("auto", market="on-demand")
    schedule.count_from(0, 0.0, blocked=2.0)
    schedule.written(600.0)
    line = str(schedule.explanation(0.0))
    assert line.startswith("saving every 10 min, because a save takes that long to be written: a save blocks 2 s, ")


@pytest.mark.parametrize(("every", "text"), [("90s", "1.5 min"), (500, "500 steps"), (1_000, "1,000 steps")])
def test_what_was_asked_for_is_said_once(every: Any, text: str) -> None:
    schedule = Schedule(every)
    assert schedule.explanation(0.0) == f"saving every {text}, as asked"
    assert schedule.explanation(9.0) is None


def test_what_was_measured_is_told_to_the_agent(tmp_path: Path) -> None:
    schedule = Schedule("auto", market="spot")
    progress = ProgressFile(str(tmp_path / "progress.json"), schedule)
    schedule.count_from(0, 0.0)
    for step, blocked in ((10, 0.25), (20, 0.75)):
        progress.step, progress.step_seconds = step, step * 2.0
        progress.staged()
        schedule.count_from(step, step * 2.0, blocked)
        schedule.written(3.0)
    progress.saved_step = 10
    progress.write(force=True)
    told = Progress.from_bytes((tmp_path / "progress.json").read_bytes())
    assert (told.cost, told.lag, told.saved_seconds) == (0.25, 3.0, 20.0)
    assert told.mean == pytest.approx(340)
    assert told.interval == pytest.approx(daly_interval(0.25, 340))
    progress.saved_step = 20
    assert progress.record().saved_seconds == 40
    progress.saved_step = 15
    assert progress.record().saved_seconds is None, "another process saved that"


def test_what_is_restored_holds_nothing_of_this_process() -> None:
    assert ProgressFile(None, restored_step=7, saved_step=7, step=9, step_seconds=3.0).record().saved_seconds == 0
    assert ProgressFile(None, step=9, step_seconds=3.0).record().saved_seconds == 0
