"""Report of a job for people and scripts: how its time and money were used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..output import STATE_TONES, Column, clean, columns, style, table
from ..text import amount, duration, money, plural

if TYPE_CHECKING:
    from ....control.accounting.report import Report
    from ....control.jobs import Job

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


def summary(job: Job, *, said: str = "") -> str:
    """Return how the job ended, then its report, for the end of `submit`. `said`: a reason that was already printed."""
    reason = f": {clean(job.reason)}" if job.reason and job.reason != said else ""
    tone = STATE_TONES[job.state]
    head = f"{job.id} {style(job.state, tone, err=True)}{reason}"
    return "\n".join([head, *report_lines(job.report()), *outputs_lines(job), *resume_lines(job)])


def resume_lines(job: Job) -> list[str]:
    """Return the line that says how an ended job goes on from its checkpoint; none if it has saved nothing."""
    command = job.look_for_checkpoint().resume_command
    return [] if command is None else [f"go on from its checkpoint:  {command}"]


def outputs_lines(job: Job) -> list[str]:
    """Return where the outputs of an ended job are and how to get them; empty: it has none."""
    from ....protocol.jobdir import JobDirError

    command = f"cloudgpu outputs {job.id} --to FOLDER"
    try:
        outputs, missing = job.outputs(), job.missing_outputs()
    except JobDirError as error:
        return [f"outputs   {style('warning', 'warn', err=True)}: they cannot be listed now: {clean(str(error))}"]
    lines = []
    if outputs.found:
        what = f"{plural(len(outputs.found), 'file')}, {amount(outputs.size)}"
        lines.append(f"outputs   {what}, in {clean(job.job_dir)}/outputs")
        lines.append(f"          get them: {command}")
    lines += [f"outputs   {style('warning', 'warn', err=True)}: {clean(name)} is missing" for name in missing]
    return lines


def report_lines(report: Report) -> list[str]:
    """Return lines on time, steps (if the program counts them) and money, and a table of attempts if there are
    several."""
    attempts = f"{len(report.attempts)} attempt{'s' * (len(report.attempts) != 1)}"
    interrupted = f", {report.interruptions} interrupted" if report.interruptions else ""
    cost = "cost unknown" if report.cost is None else money(report.cost)
    lines = [f"attempts  {attempts}{interrupted}; {duration(report.paid_seconds)} paid, {cost}"]
    if report.steps is not None:
        goodput = "unknown" if report.goodput is None else f"{report.goodput:.1%}"
        lines.append(f"steps     {report.steps:,} done, {report.redone:,} redone")
        lines.append(
            f"goodput   {goodput}: {duration(report.useful_seconds)} of training that counts, "
            f"{duration(report.lost_seconds)} lost{_through_interruptions(report)}"
        )
    if len(report.attempts) > 1:
        rows = [_row(report, index) for index in range(len(report.attempts))]
        lines += table(_HEADS, rows, width=columns() - 2).splitlines()
    return lines


def report_json(report: Report) -> dict[str, Any]:
    """Return the report for scripts; docs/reference/cli.md describes it."""
    lost = _lost_through_interruptions(report)
    each = lost / report.interruptions if report.interruptions else None
    return {**report.to_json(), "lost_seconds_per_interruption": each}


def _lost_through_interruptions(report: Report) -> float:
    """Return the paid seconds that interruptions cost: start-up, saving and redone work of interrupted attempts.

    The attempt that reached the end is not counted: an undisturbed job has the same overhead.
    """
    from ....control.accounting.report import INTERRUPTED

    return sum(max(0.0, one.seconds - one.useful_seconds) for one in report.attempts if one.outcome in INTERRUPTED)


def _through_interruptions(report: Report) -> str:
    if not report.interruptions:
        return ""
    lost = _lost_through_interruptions(report)
    if report.interruptions == 1:
        return f", {duration(lost)} of it through the interruption"
    each = duration(lost / report.interruptions)
    return f", {duration(lost)} of it through {report.interruptions} interruptions ({each} each)"


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
