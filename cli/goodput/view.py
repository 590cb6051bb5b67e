"""Text output of `cloudgpu goodput`: a table of the paid time's parts, bars per attempt, and advice."""

from __future__ import annotations

import textwrap
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ..shared.output import STATE_TONES, Column, Tone, clean, columns, style, table
from ..shared.text import duration, money

if TYPE_CHECKING:
    from ...control.accounting.paid_time import Times
    from ...control.accounting.report import AttemptReport, Report
    from ...control.jobs import Job


class Part(NamedTuple):
    """Display settings of one part of the paid time."""

    name: str
    """Field name in control.accounting.paid_time.Times."""
    label: str
    letter: str
    """Character that fills the part's share of text bars."""
    tone: Tone
    color: str
    """Fill colour in SVG charts."""
    advice: str
    """Advice if the part dominates; `{each}` is replaced by the part's time per program start."""


PARTS = (
    Part("productive", "training", "#", "good", "#2e7d32", ""),
    Part(
        "redone",
        "done again",
        "x",
        "bad",
        "#c62828",
        "steps were lost since the last save: let `checkpoint: {{every: auto}}` decide how often to save",
    ),
    Part(
        "blocked",
        "saving",
        "w",
        "warn",
        "#f9a825",
        "saves come too often for what they cost: let `checkpoint: {{every: auto}}` decide",
    ),
    Part(
        "boot",
        "getting machines",
        "b",
        "faint",
        "#90a4ae",
        "{each} a start until machines report: a smaller image, or a place with free capacity, starts sooner",
    ),
    Part(
        "setup",
        "setup",
        "s",
        "note",
        "#5c6bc0",
        "`setup` takes {each} a start: put what it installs into an image (`cloudgpu image build`)",
    ),
    Part(
        "start",
        "program start",
        "i",
        "note",
        "#26a69a",
        "the program takes {each} from its start to its first step: imports, compilation and preparing data are worth "
        "caching in the image",
    ),
    Part(
        "restore",
        "restoring",
        "r",
        "note",
        "#8e24aa",
        "restoring takes {each} a start: keep checkpoints in the machines' region, and give the loader a sampler that "
        "can skip without reading",
    ),
    Part(
        "pause",
        "pause before restart",
        "p",
        "faint",
        "#bdbdbd",
        "a program that dies again and again is started later each time: `cloudgpu logs` shows the cause",
    ),
    Part(
        "ending",
        "ending",
        "e",
        "faint",
        "#78909c",
        "machines are paid for {each} a start after the program's end: a notice or a clean end costs less than a "
        "machine that must be found dead",
    ),
    Part(
        "other",
        "other",
        ".",
        "faint",
        "#cfd8dc",
        "the program ran outside of the steps that it counts, for example to evaluate after the loop",
    ),
)
_UNCOUNTED = (
    "the program counts no steps, so how much of it was training is unknown: a Checkpointer in its loop counts them "
    "(`docs/guides/checkpointing.md`)"
)
"""Advice for the part "other" if the program counted no steps."""
DOMINATES = 0.15
"""Share of the paid time above which a part gets advice."""
_LEAST = 0.0005
"""Share of the paid time below which a part is not listed."""

_TOTALS = (Column("part"), Column("time", right=True), Column("share", right=True), Column("", least=10))
_ATTEMPTS = (
    Column("attempt", right=True),
    Column("outcome"),
    Column("where", least=8, spare=2),
    Column("starts", right=True, spare=3),
    Column("paid time", right=True, spare=1),
    Column("goodput", right=True),
)


def goodput_text(job: Job, report: Report) -> str:
    """Return the whole report for a terminal or a pipe."""
    state = style(job.state, STATE_TONES.get(job.state, "note"))
    if not report.attempts:
        return f"{job.id} {state}: no machine was asked for yet"
    lines = [f"{job.id} {state}: {_headline(report)}", *_possible(report), ""]
    lines += [_totals(report), "", *_bars(report)]
    if advice := advice_for(report):
        lines += ["", *textwrap.wrap(f"advice: {advice}", columns())]
    return "\n".join(lines)


def _headline(report: Report) -> str:
    """Return a sentence with the goodput, attempts, starts and cost."""
    goodput = "unknown, for the program counts no steps" if report.goodput is None else f"{report.goodput:.1%}"
    attempts = f"{len(report.attempts)} attempt{'s' * (len(report.attempts) != 1)}"
    starts = f"{report.starts} start{'s' * (report.starts != 1)} of the program"
    paid = f"{duration(report.paid_seconds)} paid, {money(report.cost)}"
    return f"goodput {goodput} ({attempts}, {starts}; {paid})"


def _possible(report: Report) -> list[str]:
    """Return a line with the best goodput possible at the measured costs, and the save interval for it; [] if
    unknown."""
    optimum = report.optimum
    if optimum is None:
        return []
    given = [f"{duration(optimum.restart)} a start"]
    if optimum.mean is not None:
        given.append(f"an interruption every {duration(optimum.mean)}")
    if optimum.cost:
        given.append(f"{_short(optimum.cost)} a save")
    saving = "" if optimum.interval is None else f", saving every {duration(optimum.interval)}"
    return [f"possible {optimum.goodput:.1%} with {', '.join(given)}{saving}"]


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms" if seconds < 0.995 else duration(seconds)


def _totals(report: Report) -> str:
    paid = report.paid_seconds or 1.0
    width = max(10, columns() - 52)
    rows = []
    for part in PARTS:
        seconds = getattr(report.times, part.name)
        if seconds >= _LEAST * paid:
            rows.append(
                [
                    _label(part, report),
                    duration(seconds),
                    f"{seconds / paid:.1%}",
                    part.letter * round(width * seconds / paid),
                ]
            )
    return table(_TOTALS, rows)


def _label(part: Part, report: Report) -> str:
    """Return the part's label; "other" is called "program" if no steps were counted."""
    return "program" if part.name == "other" and report.steps is None else part.label


def _bars(report: Report) -> list[str]:
    """Return the table of attempts, and under each row a bar whose length is proportional to the attempt's paid
    time."""
    rows = [_row(attempt) for attempt in report.attempts]
    head, *lines = table(_ATTEMPTS, rows).splitlines()
    longest = max((attempt.seconds for attempt in report.attempts), default=0.0) or 1.0
    room = columns() - 9
    shown = [head]
    for line, attempt in zip(lines, report.attempts, strict=True):
        shown += [line, " " * 9 + bar(attempt.times, max(1, round(room * attempt.seconds / longest)))]
    return shown


def bar(times: Times, width: int) -> str:
    """Return a bar of `width` characters in which each part's letter fills a share proportional to the part's time."""
    total = times.total or 1.0
    done = accumulate((getattr(times, part.name) for part in PARTS), initial=0.0)
    cells = zip(PARTS, pairwise(round(width * seconds / total) for seconds in done), strict=True)
    return "".join(style(part.letter * (end - begin), part.tone) for part, (begin, end) in cells if end > begin)


def _row(attempt: AttemptReport) -> list[str]:
    goodput = attempt.useful_seconds / attempt.seconds if attempt.seconds > 0 and attempt.step is not None else None
    return [
        str(attempt.number),
        attempt.outcome or "running",
        attempt.place,
        str(attempt.starts),
        duration(attempt.seconds),
        "-" if goodput is None else f"{goodput:.1%}",
    ]


def advice_for(report: Report) -> str:
    """Return a sentence on the most expensive part besides training; "" if none exceeds DOMINATES."""
    worst = max(PARTS[1:], key=lambda part: float(getattr(report.times, part.name)))
    seconds = getattr(report.times, worst.name)
    if report.paid_seconds <= 0 or seconds < DOMINATES * report.paid_seconds:
        return ""
    each = duration(seconds / max(1, report.starts))
    share = f"{seconds / report.paid_seconds:.0%} of the paid time is {_label(worst, report)}"
    advice = _UNCOUNTED if worst.name == "other" and report.steps is None else worst.advice.format(each=each)
    return clean(f"{share}: {advice}")
