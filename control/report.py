"""What became of a job's time and money: attempts, steps, goodput, cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from . import cost
from .model import Attempt


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt. Steps are those of the training, as the Checkpointer counts them; None: it said nothing of them."""

    number: int
    outcome: str
    """"" while it lasts."""
    reason: str
    place: str
    """Region or zone, as the offer has it."""
    seconds: float
    """Paid time."""
    cost: Decimal | None
    """US dollars; None: unknown."""
    restored_step: int | None
    """Steps done in the checkpoint it started from; None: from nothing."""
    step: int | None
    """Steps done when it ended, those before the restore included."""
    saved_step: int | None
    """Steps done in its newest checkpoint."""
    redone: int
    """Steps it did that a later attempt had to do again."""
    useful_seconds: float
    """Of training steps that counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """A job as a whole. `goodput` is useful over paid time; None where there is nothing to divide."""

    attempts: tuple[AttemptReport, ...]
    interruptions: int
    """Attempts that ended by the machines' doing, not by the program's."""
    steps: int | None
    """Done, each counted once."""
    redone: int
    paid_seconds: float
    useful_seconds: float
    lost_seconds: float
    """Paid, but not useful: start-up, saving, restoring, steps redone."""
    goodput: float | None
    cost: Decimal | None
    """US dollars; None: unknown."""
    wasted_cost: Decimal | None
    """What the lost seconds cost; None: unknown."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=lambda pairs: {k: str(v) if isinstance(v, Decimal) else v for k, v in pairs})


INTERRUPTED = frozenset({"preempted", "lost", "again"})
"""Outcomes of attempts that ended by the machines' doing."""


def make_report(attempts: Sequence[Attempt], now: float, live: Mapping[str, Any] | None = None) -> Report:
    """From a job's attempts; `live` is the progress of the one that still runs."""
    launched = [attempt for attempt in attempts if attempt.launched is not None]
    progress = [attempt.progress or (live if attempt.ended is None else None) or {} for attempt in launched]
    redone = [_redone(progress[index], progress[index + 1 :]) for index in range(len(progress))]
    lines = tuple(map(_line, launched, progress, redone, [now] * len(launched)))
    paid = sum(line.seconds for line in lines)
    useful = sum(line.useful_seconds for line in lines)
    total = cost.total(launched, now)
    steps = [line.step for line in lines if line.step is not None]
    return Report(
        attempts=lines,
        interruptions=sum(line.outcome in INTERRUPTED for line in lines),
        steps=max(steps, default=None),
        redone=sum(redone),
        paid_seconds=paid,
        useful_seconds=useful,
        lost_seconds=max(0.0, paid - useful),
        goodput=min(1.0, useful / paid) if paid > 0 and steps else None,
        cost=total,
        wasted_cost=None if total is None or not paid else total * Decimal(repr(1 - min(1.0, useful / paid))),
    )


def _redone(mine: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> int:
    """Steps beyond the point that the next attempt which trained at all began from."""
    following = next((progress for progress in later if progress), None)
    if not mine or following is None:
        return 0
    begin = int(following.get("restored_step") or 0)
    return max(0, int(mine.get("step") or 0) - max(begin, int(mine.get("restored_step") or 0)))


def _line(attempt: Attempt, progress: Mapping[str, Any], redone: int, now: float) -> AttemptReport:
    begin, step = int(progress.get("restored_step") or 0), int(progress.get("step") or 0)
    done = max(0, step - begin)
    useful = float(progress.get("step_seconds") or 0.0) * ((done - redone) / done if done else 0.0)
    end = now if attempt.ended is None else attempt.ended
    return AttemptReport(
        number=attempt.number,
        outcome=attempt.outcome,
        reason=attempt.reason,
        place=attempt.offer["zone"] or attempt.offer["region"],
        seconds=max(0.0, end - (attempt.launched or end)),
        cost=cost.attempt_cost(attempt, now),
        restored_step=progress.get("restored_step"),
        step=progress.get("step"),
        saved_step=progress.get("saved_step"),
        redone=redone,
        useful_seconds=max(0.0, useful),
    )
