"""Report of a job's time and money: attempts, steps, goodput, cost. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from statistics import median
from typing import Any

from ...protocol.jobdir import Progress, Timeline
from ...runtime.goodput import best_goodput
from ..store.model import Attempt
from . import cost
from .paid_time import NO_TIME, Run, Times, read_runs, split_paid_seconds, with_redone_steps


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt. Steps are training steps as the Checkpointer counts them; None: the program reported none."""

    number: int
    outcome: str
    """Outcome of the attempt; "" while the attempt lasts."""
    reason: str
    place: str
    """Zone of the offer, or else its region."""
    seconds: float
    """Paid time."""
    cost: Decimal | None
    """US dollars; None: unknown."""
    restored_step: int | None
    """Step of the checkpoint from which the attempt started; None: it started without one."""
    step: int | None
    """Number of steps done by the attempt's end, including those before the restore."""
    saved_step: int | None
    """Step of the attempt's newest checkpoint."""
    redone: int
    """Steps of this attempt that a later attempt had to repeat."""
    useful_seconds: float
    """Seconds in training steps that count."""
    times: Times = NO_TIME
    """Paid seconds by use; they add up to `seconds`."""
    starts: int = 1
    """Number of starts of the program in this attempt."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best goodput possible with the interruptions that occurred, and its inputs. Times are in seconds."""

    goodput: float
    interval: float | None
    """Best time between two saves; None: there was no interruption, or the save times are unknown."""
    cost: float
    """C: time for which a save blocks training; 0: unknown."""
    restart: float
    """R: from the launch request, or from the end of a run, to the first step; mean over all starts."""
    mean: float | None
    """M: paid time divided by the number of interruptions; None: there was none."""
    lag: float
    """L: time from a save's copy until the checkpoint is durable; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Report:
    """The whole job. `goodput` is useful divided by paid time; None if no time was paid or no step was done."""

    attempts: tuple[AttemptReport, ...]
    interruptions: int
    """Attempts that ended because of their machines, not because of the program."""
    steps: int | None
    """Steps done, each counted once."""
    redone: int
    paid_seconds: float
    useful_seconds: float
    lost_seconds: float
    """Paid, but not useful: startup, saving, restoring, redone steps."""
    goodput: float | None
    cost: Decimal | None
    """US dollars; None: unknown."""
    wasted_cost: Decimal | None
    """Cost of the lost seconds in US dollars; None: unknown."""
    times: Times = NO_TIME
    """Paid seconds by use; they add up to `paid_seconds`."""
    starts: int = 0
    """Number of starts of the program in all attempts."""
    optimum: Optimum | None = None
    """Best possible goodput; None: no step is known to be done."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=lambda pairs: {k: str(v) if isinstance(v, Decimal) else v for k, v in pairs})


INTERRUPTED = frozenset({"preempted", "lost", "again"})
"""Outcomes of attempts that ended because of their machines."""


def make_report(
    attempts: Sequence[Attempt],
    now: float,
    live: Progress | None = None,
    timeline: Timeline | None = None,
) -> Report:
    """Return the report of a job's attempts; `live` and `timeline` belong to the attempt that still runs."""
    launched = [attempt for attempt in attempts if attempt.launched is not None]
    timelines = [one.timeline or (timeline if one.ended is None else None) for one in launched]
    runs_by_attempt = [
        read_runs(one, seen, live if one.ended is None else None) for one, seen in zip(launched, timelines, strict=True)
    ]
    settled = iter(with_redone_steps([run for runs in runs_by_attempt for run in runs]))
    runs = [[next(settled) for _ in one] for one in runs_by_attempt]
    lines = tuple(_line(one, spent, now, seen) for one, spent, seen in zip(launched, runs, timelines, strict=True))
    return _sum(lines, [run for one in runs for run in one], cost.total(launched, now))


def _line(attempt: Attempt, runs: Sequence[Run], now: float, timeline: Timeline | None) -> AttemptReport:
    paid = cost.paid_seconds(attempt, now)
    reported = [run.progress for run in runs if run.progress is not None]
    times = split_paid_seconds(paid, attempt, timeline, runs)
    return AttemptReport(
        number=attempt.number,
        outcome=attempt.outcome,
        reason=attempt.reason,
        place=attempt.offer.zone or attempt.offer.region,
        seconds=paid,
        cost=cost.attempt_cost(attempt, now),
        restored_step=reported[0].restored_step if reported else None,
        step=reported[-1].step if reported else None,
        saved_step=reported[-1].saved_step if reported else None,
        redone=sum(run.redone for run in runs),
        useful_seconds=times.productive,
        times=times,
        starts=len(runs),
    )


def _sum(lines: tuple[AttemptReport, ...], runs: Sequence[Run], total: Decimal | None) -> Report:
    paid = sum(line.seconds for line in lines)
    times = sum((line.times for line in lines), NO_TIME)
    useful = times.productive
    steps = max((line.step for line in lines if line.step is not None), default=None)
    reported = [run.progress for run in runs if run.progress is not None]
    return Report(
        attempts=lines,
        interruptions=sum(line.outcome in INTERRUPTED for line in lines),
        steps=steps,
        redone=sum(line.redone for line in lines),
        paid_seconds=paid,
        useful_seconds=useful,
        lost_seconds=max(0.0, paid - useful),
        goodput=min(1.0, useful / paid) if paid > 0 and steps else None,
        cost=total,
        wasted_cost=None if total is None or not paid else total * Decimal(repr(1 - min(1.0, useful / paid))),
        times=times,
        starts=len(runs),
        optimum=_optimum(times, reported, len(runs)) if steps else None,
    )


def _optimum(times: Times, reported: Sequence[Progress], starts: int) -> Optimum:
    """Apply the equations of runtime.goodput; each start after the first follows an interruption."""
    save = median([one.cost for one in reported if one.cost is not None] or [0.0])
    lag = median([one.lag for one in reported if one.lag is not None] or [0.0])
    restart = (times.restart + times.ending) / starts
    mean = times.total / (starts - 1) if starts > 1 else None
    goodput, interval = best_goodput(times.productive, starts, cost=save, restart=restart, mean=mean, lag=lag)
    return Optimum(goodput, interval, save, restart, mean, lag)
