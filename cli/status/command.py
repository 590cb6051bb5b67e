"""`cloudgpu status`: list jobs, or show one in full."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from ..shared.job.job_argument import NO_JOBS, find_job, job_argument, watch
from ..shared.options import json_option, label_option
from ..shared.output import echo_json, is_terminal, style

_WATCH_S = 1.0
_NEWEST = 20
"""Maximum jobs in the list without --all, --active and --label; --json lists every job."""


@click.command()
@job_argument(required=False)
@click.option("-a", "--all", "everything", is_flag=True, help=f"List every job, not the newest {_NEWEST} only.")
@click.option("--active", is_flag=True, help="List only jobs that have not ended.")
@click.option("-w", "--watch", "watching", is_flag=True, help="Show it again every second, until the job has ended.")
@label_option
@json_option
def command(
    *,
    job: str | None,
    everything: bool,
    active: bool,
    watching: bool,
    labels: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """List jobs, or show JOB: its attempts, machines, last events and, when it has ended, the report.

    \b
    cloudgpu status
    cloudgpu status --active --label team=vision
    cloudgpu status digits --watch
    cloudgpu status digits --json | jq .report.goodput
    """
    if watching and as_json:
        raise click.UsageError("--watch is for people; for programs there is: cloudgpu events JOB --follow --json")
    if job is None:
        limit = None if everything or active or labels or as_json else _NEWEST
        _repeat(lambda: _list(active=active, limit=limit, labels=labels, as_json=as_json), watching=watching)
        return
    if labels:
        raise click.UsageError("--label chooses jobs of the list: leave out JOB")
    found = watch(find_job(job, newest=True), read_only=True)

    def show() -> bool:
        from .view import job_text, status_json

        found.refresh().look_for_checkpoint()
        if watching:
            watch(found, read_only=True)
            found.mark_watched()
        echo_json(status_json(found)) if as_json else click.echo(job_text(found))
        return not found.done

    _repeat(show, watching=watching)


def _list(*, active: bool, limit: int | None, labels: Sequence[tuple[str, str]], as_json: bool) -> bool:
    from ...control.jobs import count_jobs, list_jobs
    from .view import list_json, list_text

    jobs = [job for job in list_jobs(active_only=active, limit=limit) if set(labels) <= job.labels.items()]
    for job in jobs:
        if not job.done:
            watch(job, read_only=True)
            break  # one supervisor advances all jobs
    if as_json:
        echo_json(list_json(jobs))
        return True
    if jobs:
        click.echo(list_text(jobs))
        if limit is not None and (total := count_jobs()) > limit:
            click.echo(style(f"the newest {len(jobs):,} of {total:,} jobs; --all lists every one", "faint"))
    elif labels:
        click.echo(f"no {'active ' * active}job has {' and '.join(f'{key}={value}' for key, value in labels)}")
    else:
        click.echo(_none_listed(stored=count_jobs()) if active else NO_JOBS)
    return True


def _none_listed(*, stored: int) -> str:
    """Return the text for an empty list of active jobs."""
    if not stored:
        return NO_JOBS
    have = "1 stored job has" if stored == 1 else f"all {stored:,} stored jobs have"
    return f"no active jobs: {have} ended; `cloudgpu status` lists {'it' if stored == 1 else 'them'}"


def _repeat(show: Callable[[], bool], *, watching: bool) -> None:
    """Show once or, if watching, every second on a cleared screen until `show` returns False or Ctrl-C is pressed."""
    try:
        while True:
            if watching and is_terminal():
                click.clear()
            if not show() or not watching:
                return
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        if not watching:
            raise
