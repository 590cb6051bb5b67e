"""`cloudgpu cancel`: cancel jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.job_argument import confirm, jobs_argument, select_jobs, watch
from .shared.options import json_option, label_option, yes_option
from .shared.output import echo_json, remark, warning
from .shared.text import plural

if TYPE_CHECKING:
    from ..control.jobs import Job


@click.command()
@jobs_argument()
@label_option
@click.option("--all", "everything", is_flag=True, help="Every job that has not ended.")
@click.option("--reason", default="", help="Recorded with the job.")
@click.option("--wait", is_flag=True, help="Return when the machines are gone.")
@yes_option
@json_option
def command(
    *,
    jobs: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    everything: bool,
    reason: str,
    wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Cancel each JOB: its program saves and stops, then its machines are terminated.

    \b
    cloudgpu cancel digits-k3v9x2ma
    cloudgpu cancel digits other --yes --wait
    cloudgpu cancel --label sweep=7
    cloudgpu cancel --all

    A job that has ended already is left as it is. Several jobs, or one that is not named by its whole id, are asked
    for on a terminal; --yes answers. Without a terminal, --label and --all need it.
    """
    found = select_jobs(jobs, labels, everything=everything, chosen=lambda job: not job.done)
    running = [job for job in found if not job.done]
    for job in found:
        if job.done:
            remark(f"{job.id} has {job.state} already")
    if running:
        confirm("cancel", running, jobs, yes=yes)
    elif not jobs:
        remark("no active job was found")
    failed = _cancel(running, reason or "cancelled by the user", quiet=as_json)
    if wait:
        _wait([job for job in running if job.id not in failed], quiet=as_json)
    if as_json:
        echo_json([_json(job, failed.get(job.id), was_running=job in running) for job in found])
    if failed:
        raise CommandError(
            f"{len(failed)} of {plural(len(running), 'job')} could not be cancelled",
            hint="run the command again: jobs that are being cancelled are left as they are",
            exit_code=Exit.UNAVAILABLE,
        )


def _cancel(jobs: Sequence[Job], reason: str, *, quiet: bool) -> dict[str, str]:
    """Cancel jobs; return id -> error of those that could not be cancelled."""
    from ..control.errors import ControlError

    failed: dict[str, str] = {}
    for job in jobs:
        try:
            job.cancel(reason)
            watch(job)
        except ControlError as error:
            failed[job.id] = str(error)
            warning(f"{job.id} could not be cancelled: {error}")
        else:
            _say(f"cancelling {job.id}", quiet=quiet)
    return failed


def _wait(jobs: Sequence[Job], *, quiet: bool) -> None:
    for job in jobs:
        job.wait()
        _say(f"{job.id} {job.state}", quiet=quiet)


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        click.echo(text)


def _json(job: Job, error: str | None, *, was_running: bool) -> dict[str, Any]:
    return {"job": job.id, "state": job.state, "cancelled": was_running and error is None, "error": error}
