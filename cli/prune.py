"""`cloudgpu prune`: remove all jobs that ended long ago."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.removal import keep_record_option, report, take_away
from .shared.options import DURATION, json_option, label_option, yes_option
from .shared.output import Column, ProgressLine, can_ask, echo_json, remark, table, warning
from .shared.text import ago, amount, iso, plural

if TYPE_CHECKING:
    from ..control.removal.removing import Candidate, Prunable
    from ..control.store.model import JobRow

_JOBS = (
    Column("job"),
    Column("state", spare=2),
    Column("ended", right=True),
    Column("size", right=True),
    Column("files", right=True, spare=3),
    Column("folder", least=16, spare=1),
)


@click.command()
@click.option("--older", type=DURATION, required=True, metavar="DURATION", help="Jobs that ended before, e.g. 30d.")
@label_option
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@keep_record_option
@yes_option
@json_option
def command(
    *,
    older: float,
    labels: tuple[tuple[str, str], ...],
    dry_run: bool,
    keep_record: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove the jobs that ended more than a DURATION ago, with their folders here and in buckets.

    \b
    cloudgpu prune --older 30d --dry-run
    cloudgpu prune --older 30d --label team=vision
    cloudgpu prune --older 90d --keep-record --yes

    Shows the jobs with their sizes and asks; --yes answers. Jobs that have not ended are never removed, nor are jobs
    from whose checkpoint a job was started that stays. What is removed, and how: cloudgpu rm --help.
    """
    from ..control.removal.removing import find_prunable
    from ..control.store.store import open_store

    def is_chosen(job: JobRow) -> bool:
        return set(labels) <= dict(job.spec.get("labels") or {}).items()

    with ProgressLine() as line:
        line("looking at the folders of old jobs")
        found = find_prunable(open_store(), time.time() - older, is_chosen)
    if dry_run and as_json:
        echo_json(_json(found))
        return
    if not as_json or not yes:
        _show(found)
    if dry_run:
        return
    if found.candidates and not yes:
        _confirm(found)
    report(take_away([one.job for one in found.candidates], keep_record=keep_record), as_json=as_json)


def _show(found: Prunable) -> None:
    """Print the jobs that would be removed and their size, on stderr beside the question."""
    now = time.time()
    if found.candidates:
        click.echo(table(_JOBS, [_row(one, now) for one in found.candidates]), err=True)
    else:
        remark("no job ended before that")
    for one in found.candidates:
        if one.problem:
            warning(f"{one.job.id}: its size is unknown: {one.problem}")
    for job_id, by in found.needed.items():
        remark(f"kept: {job_id}, from which {', '.join(by)} started")
    if found.candidates:
        remark(f"together {plural(len(found.candidates), 'job')}, {amount(_size(found.candidates))}")


def _confirm(found: Prunable) -> None:
    if not can_ask():
        raise CommandError(
            "there is no terminal to ask at", hint="add --yes, or --dry-run to see only", exit_code=Exit.USAGE
        )
    click.confirm(f"remove {plural(len(found.candidates), 'job')}?", err=True, abort=True)


def _row(one: Candidate, now: float) -> list[str]:
    size, files = ("unknown", "unknown") if one.usage is None else (amount(one.usage.bytes), f"{one.usage.objects:,}")
    return [one.job.id, one.job.state, ago(one.job.ended, now), size, files, one.job.job_dir]


def _size(candidates: Sequence[Candidate]) -> int:
    return sum(one.usage.bytes for one in candidates if one.usage is not None)


def _json(found: Prunable) -> dict[str, Any]:
    jobs = [
        {
            "job": one.job.id,
            "state": one.job.state,
            "ended": iso(one.job.ended),
            "job_dir": one.job.job_dir,
            "files": None if one.usage is None else one.usage.objects,
            "size": None if one.usage is None else one.usage.bytes,
            "problem": one.problem or None,
        }
        for one in found.candidates
    ]
    return {"jobs": jobs, "size": _size(found.candidates), "needed": found.needed}
