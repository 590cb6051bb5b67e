"""`cloudgpu status`: the list of jobs, or one with everything that is known of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from .jobref import NO_JOBS, find_job, job_argument, watch
from .options import json_option
from .output import echo_json, is_terminal

_WATCH_S = 1.0


@click.command()
@job_argument(required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="List jobs of all times, not the newest 20 only.")
@click.option("--active", is_flag=True, help="List only jobs that have not ended.")
@click.option("-w", "--watch", "watching", is_flag=True, help="Show it again every second, until the job has ended.")
@json_option
def command(*, job: str | None, everything: bool, active: bool, watching: bool, as_json: bool) -> None:
    """List jobs, or show JOB: its attempts, machines, last events and, when it has ended, the report.

    \b
    cloudgpu status
    cloudgpu status digits --watch
    cloudgpu status digits --json | jq .report.goodput
    """
    if watching and as_json:
        raise click.UsageError("--watch is for people; for programs there is: cloudgpu events JOB --follow --json")
    limit = 10_000 if everything else 20
    if job is None:
        _repeat(lambda: _list(active=active, limit=limit, as_json=as_json), watching=watching)
        return
    found = watch(find_job(job, newest=True), only_looking=True)

    def show() -> bool:
        from .status_view import job_text, status_json

        found.refresh()
        if watching:
            watch(found, only_looking=True)
            found.mark_watched()
        echo_json(status_json(found)) if as_json else click.echo(job_text(found))
        return not found.done

    _repeat(show, watching=watching)


def _list(*, active: bool, limit: int, as_json: bool) -> bool:
    from ..control.jobs import list_jobs
    from .status_view import list_json, list_text

    jobs = list_jobs(active_only=active, limit=limit)
    for job in jobs:
        if not job.done:
            watch(job, only_looking=True)
            break  # one supervisor advances them all
    if as_json:
        echo_json(list_json(jobs))
    else:
        click.echo(list_text(jobs) if jobs else NO_JOBS)
    return True


def _repeat(show: Callable[[], bool], *, watching: bool) -> None:
    """Once, or on a cleared screen every second until there is nothing more to wait for; Ctrl-C ends it."""
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
