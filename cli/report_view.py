"""The report of a job: what became of its time and money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import STATE_TONES, Column, clean, style, table
from .text import duration, money

if TYPE_CHECKING:
    from ..control.jobs import Job
    from ..control.report import Report

_HEADS = (
    Column("attempt", right=True),
    Column("outcome"),
    Column("where", least=8, spare=3),
    Column("steps", right=True),
    Column("redone", right=True),
    Column("paid time", right=True, spare=2),
    Column("lost", right=True),
    Column("cost", right=True, spare=1),
)


def summary(job: Job) -> str:
    """For the end of `submit`: how the job ended, then its report."""
    reason = f": {clean(job.reason)}" if job.reason else ""
    tone = STATE_TONES[job.state]
    return "\n".join([f"{job.id} {style(job.state, tone, err=True)}{reason}", *report_lines(job.report())])


def report_lines(report: Report) -> list[str]:
    """A sentence on time, one on steps where the program counts them, one on money; a line an attempt if several."""
    attempts = f"{len(report.attempts)} attempt{'s' * (len(report.attempts) != 1)}"
    interrupted = f", {report.interruptions} interrupted" if report.interruptions else ""
    lines = [f"attempts  {attempts}{interrupted}; {duration(report.paid_seconds)} paid, {money(report.cost)}"]
    if report.steps is not None:
        goodput = "unknown" if report.goodput is None else f"{report.goodput:.1%}"
        lines.append(f"steps     {report.steps:,} done, {report.redone:,} redone")
        lines.append(
            f"goodput   {goodput}: {duration(report.useful_seconds)} of training that counts, "
            f"{duration(report.lost_seconds)} lost{_each(report)}"
        )
    if len(report.attempts) > 1:
        lines += table(_HEADS, [_row(report, index) for index in range(len(report.attempts))]).splitlines()
    return lines


def report_json(report: Report) -> dict[str, Any]:
    """For scripts; docs/cli.md describes it."""
    return report.to_json()


def _each(report: Report) -> str:
    if not report.interruptions:
        return ""
    return f", {duration(report.lost_seconds / report.interruptions)} an interruption"


def _row(report: Report, index: int) -> list[str]:
    attempt = report.attempts[index]
    return [
        str(attempt.number),
        attempt.outcome or "running",
        attempt.place,
        "-" if attempt.step is None else f"{attempt.restored_step or 0:,}–{attempt.step:,}",
        f"{attempt.redone:,}",
        duration(attempt.seconds),
        duration(max(0.0, attempt.seconds - attempt.useful_seconds)),
        money(attempt.cost),
    ]
