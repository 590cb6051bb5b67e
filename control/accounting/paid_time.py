"""Split the paid seconds of an attempt by their use. Pure functions.

The machine's clock and the supervisor's may differ, and a machine that is preempted may report no end time. Reported
times are therefore counted in order of reliability, up to the paid time. The unexplained remainder is `other`, so that
the parts always add up to the paid time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise

from ...protocol.jobdir import Heartbeat, Progress, Result, Span, Timeline
from ..store.model import Attempt


@dataclass(frozen=True, slots=True)
class Times:
    """Paid seconds by use; they add up to the paid time."""

    productive: float = 0.0
    """Seconds in training steps that count."""
    redone: float = 0.0
    """Seconds in training steps that were lost and repeated later."""
    blocked: float = 0.0
    """Seconds for which saves blocked the training."""
    boot: float = 0.0
    """Seconds from the launch request to the first machine's report: queue, boot, installation of the agent."""
    setup: float = 0.0
    """Seconds of downloading the code and running the job file's `setup`."""
    start: float = 0.0
    """Seconds from a program start to the first step, without the restore: imports, compilation, data."""
    restore: float = 0.0
    """Seconds of reading checkpoints and seeking to their position in the data."""
    pause: float = 0.0
    """Seconds between the end of the program and its next start on the same machines."""
    ending: float = 0.0
    """Seconds from the program's end, or its last report, until all machines were gone: detection, last writes,
    termination."""
    other: float = 0.0
    """Seconds in which the program ran outside of its steps, or reported nothing."""

    @property
    def restart(self) -> float:
        """Return the seconds spent on all starts of the program together."""
        return self.boot + self.setup + self.start + self.restore + self.pause

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __add__(self, more: Times) -> Times:
        return Times(**{field.name: getattr(self, field.name) + getattr(more, field.name) for field in fields(self)})


NO_TIME = Times()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program, with the number of its steps that a later run had to repeat."""

    span: Span
    progress: Progress | None
    """Progress at the end of the run; None: the program reported none."""
    redone: int = 0
    """Steps that a later run had to repeat."""
    lost: float = 0.0
    """Seconds spent in the redone steps."""


def progress_of(record: Heartbeat | Result | Span) -> Progress | None:
    """Return the program's progress from a record; None: the record has none."""
    return Progress(**record.progress) if record.progress else None


def timeline_of(record: Heartbeat | Result) -> Timeline | None:
    """Return the timeline from a record; None: an older version of the agent wrote the record."""
    return Timeline(**record.timeline) if record.timeline else None


def spans_of(timeline: Timeline | None) -> list[Span]:
    """Return every start of the program, oldest first."""
    return [] if timeline is None else [Span(**span) for span in timeline.spans]


def merge_timelines(timelines: Sequence[Timeline]) -> Timeline:
    """Merge the timelines of several nodes, some of which started late or were lost early.

    Each generation is taken from the node that reached the most steps in it; the time before is taken from the first
    node.
    """
    spans: dict[int, Span] = {}
    for span in (span for timeline in timelines for span in spans_of(timeline)):
        if span.generation not in spans or _steps(span) > _steps(spans[span.generation]):
            spans[span.generation] = span
    first = min(timelines, key=lambda timeline: timeline.claimed)
    ended = max((timeline.ended or 0.0 for timeline in timelines), default=0.0) or None
    return replace(first, spans=[asdict(spans[number]) for number in sorted(spans)], ended=ended)


def _steps(span: Span) -> int:
    progress = progress_of(span)
    return 0 if progress is None else progress.step


def read_runs(attempt: Attempt, timeline: Timeline | None, live: Progress | None = None) -> list[Run]:
    """Return every run of the program in this attempt, oldest first. `live`: newest progress of a running attempt."""
    spans, last = spans_of(timeline), attempt.progress or live
    if not spans:
        return [Run(Span(1, attempt.launched or 0.0), last)] if last else []
    return [*(Run(span, progress_of(span)) for span in spans[:-1]), Run(spans[-1], last or progress_of(spans[-1]))]


def with_redone_steps(runs: Sequence[Run]) -> list[Run]:
    """Return all runs of a job, each with the steps that the next run with known progress had to repeat."""
    settled: list[Run] = []
    following: Progress | None = None
    for run in reversed(runs):
        settled.append(run if run.progress is None or following is None else _settled(run, run.progress, following))
        following = run.progress or following
    return settled[::-1]


def _settled(run: Run, mine: Progress, following: Progress) -> Run:
    begun, resumed = mine.restored_step or 0, following.restored_step or 0
    done, redone = mine.step - begun, max(0, mine.step - max(begun, resumed))
    if resumed == mine.saved_step and mine.saved_seconds is not None and redone:
        lost = mine.step_seconds - mine.saved_seconds
    else:
        lost = mine.step_seconds * redone / done if done > 0 else 0.0
    return replace(run, redone=redone, lost=min(max(0.0, lost), mine.step_seconds))


def split_paid_seconds(paid: float, attempt: Attempt, timeline: Timeline | None, runs: Sequence[Run]) -> Times:
    """Split an attempt's paid seconds by use."""
    reported = [run.progress for run in runs if run.progress is not None]
    lost = sum(run.lost for run in runs)
    claims = {
        "productive": sum(one.step_seconds for one in reported) - lost,
        "redone": lost,
        "blocked": sum(one.blocked_seconds for one in reported),
        "restore": sum(one.restore_seconds for one in reported),
        **_starting(paid, attempt, timeline, runs),
    }
    left = max(0.0, paid)
    parts: dict[str, float] = {}
    for name, seconds in claims.items():
        parts[name] = min(max(0.0, seconds), left)
        left -= parts[name]
    silent = attempt.ended is not None and bool(reported) and runs[-1].span.ended is None
    rest = "ending" if silent else "other"
    parts[rest] = parts.get(rest, 0.0) + left
    return Times(**parts)


def _starting(paid: float, attempt: Attempt, timeline: Timeline | None, runs: Sequence[Run]) -> dict[str, float]:
    """Return use -> seconds, for the uses whose times the timeline reports. Without a timeline or run, all is boot."""
    launched = attempt.launched or 0.0
    if timeline is None:
        return {} if runs else {"boot": paid}
    boot = timeline.claimed - launched
    # All time until the setup is done counts as setup.
    setup = paid if timeline.ready is None and not runs else (timeline.ready or timeline.claimed) - timeline.claimed
    pause = sum(max(0.0, b.span.started - (a.span.ended or b.span.started)) for a, b in pairwise(runs))
    ending = 0.0
    if runs and attempt.ended is not None and (last := runs[-1].span.ended) is not None:
        ending = paid - max(0.0, boot) - (last - timeline.claimed)
    return {"boot": boot, "setup": setup, "start": sum(map(_start, runs)), "pause": pause, "ending": ending}


def _start(run: Run) -> float:
    """Return the seconds from the program's start to its first step, without the restore.

    0 if it reported no progress; without a first step, the duration of the run, infinite while it lasts.
    """
    if run.progress is None:
        return 0.0
    if run.span.first_step is None:
        return 0.0 if run.progress.step_seconds else (run.span.ended or math.inf) - run.span.started
    done = run.progress.step - (run.progress.restored_step or 0)
    first = run.progress.step_seconds / done if done > 0 else 0.0  # a step is reported at its end
    return max(0.0, run.span.first_step - run.span.started - first - run.progress.restore_seconds)
