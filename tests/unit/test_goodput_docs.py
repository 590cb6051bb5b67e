"""docs/explanation/goodput.md shows what the Checkpointer does: its tables and log lines are computed from the
product's code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.runtime.checkpoint.schedule.interval import PRIORS, UNKNOWN_PRIOR, History, Observation
from cloudgpu.runtime.checkpoint.schedule.schedule import Schedule
from cloudgpu.runtime.goodput import goodput
from cloudgpu.tests.bench import interval as bench
from cloudgpu.tests.standins.interruptions import COLD_GOAL, GRID, LEARNT_GOAL, with_lag
from cloudgpu.tests.standins.long_mode import LONG

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "goodput.md").read_text()
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
SIMULATED = {
    "`spot`": (GRID, "spot", True),
    "`spot`, written in 3 C": ([with_lag(world) for world in GRID], "spot", True),
    "`on-demand`": (GRID, "on-demand", True),
    "outside of a job": (GRID, UNKNOWN_PRIOR.name, False),
}
"""Conditions, prior, and whether a job counts past interruptions; by caption."""


def rows(heading: str) -> Iterator[list[str]]:
    """Return the cells of each row of the table that starts with this line."""
    _, found, rest = PAGE.partition(f"{heading}\n")
    assert found, heading
    for line in rest.splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def test_the_intervals_are_those_that_are_chosen() -> None:
    table = list(rows("| M | C | R | τ | goodput |"))
    assert len(table) == 7
    for *times, interval, shown in table:
        mean, cost, restart = map(seconds, times)
        learnt = History({"spot": Observation(1e6 * mean, 1_000_000)}, cost=cost)
        chosen = Schedule("auto", market="spot", known=learnt).interval
        assert chosen is not None
        assert chosen == pytest.approx(seconds(interval), abs=0.5)
        assert f"{goodput(chosen, cost, restart, mean):.1%}".replace("%", " %") == shown


def test_the_log_lines_are_those_that_are_written() -> None:
    schedule = Schedule("auto", market="spot")
    schedule.count_from(0, 0.0)
    lines = [schedule.explanation(0.0)]
    schedule.count_from(1, 90.0, blocked=0.05)
    lines.append(schedule.explanation(90.0))
    assert re.findall(r"^    cloudgpu: (saving .*)$", PAGE, re.MULTILINE) == lines


def test_the_weights_are_those_of_the_priors() -> None:
    shown = {
        market: float(weight)
        for markets, weight in rows("| market | weight a (interruptions) |")
        for market in re.findall(r"`([^`]+)`", markets) or [UNKNOWN_PRIOR.name]
    }
    assert shown == {prior.name: prior.interruptions for prior in (*PRIORS.values(), UNKNOWN_PRIOR)}


def test_the_interval_after_a_day_without_interruption() -> None:
    schedule = Schedule("auto", market="spot")
    schedule.count_from(0, 0.0)
    schedule.count_from(1, 24 * 3600.0, blocked=10.0)
    assert schedule.interval is not None
    assert f"saves every {schedule.interval / 60:.0f} minutes" in PAGE


@pytest.mark.parametrize("caption", SIMULATED)
def test_the_simulated_figures(caption: str) -> None:
    """With the matching prior the goals are reached; CLOUDGPU_LONG=1 computes every figure again."""
    table = [" | ".join(row) for row in rows(f"| M ({caption}) | R | save 0.1 s | 10 s | 60 s |")]
    assert len(table) == 6
    if "spot" in caption:
        found = [float(figure) / 100 for row in table for figure in re.findall(r"([\d.]+)%", row)]
        assert min(found[::2]) >= LEARNT_GOAL
        assert min(found[1::2]) >= COLD_GOAL
    if LONG:
        worlds, market, in_job = SIMULATED[caption]
        assert [row.strip("| ") for row in bench.lines(worlds, market, in_job=in_job)] == table
