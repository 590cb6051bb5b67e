"""`cloudgpu cancel`: cancel jobs."""

from __future__ import annotations

import click

from .shared.job.job_argument import find_job, jobs_argument, watch
from .shared.options import yes_option
from .shared.output import can_ask, remark


@click.command()
@jobs_argument()
@click.option("--reason", default="", help="Recorded with the job.")
@click.option("--wait", is_flag=True, help="Return when the machines are gone.")
@yes_option
def command(jobs: tuple[str, ...], reason: str, wait: bool, yes: bool) -> None:
    """Cancel each JOB: its program saves and stops, then its machines are terminated.

    \b
    cloudgpu cancel digits-k3v9x2ma
    cloudgpu cancel digits other --yes --wait

    A job that has ended already is left as it is. Several jobs, or one that is not named by its whole id, are asked
    for on a terminal; --yes answers.
    """
    found = {job.id: job for job in map(find_job, jobs)}  # all are resolved before the first is cancelled
    running = [job for job in found.values() if not job.done]
    for job in found.values():
        if job.done:
            remark(f"{job.id} has {job.state} already")
    if not running:
        return
    exact = {job.id for job in running} <= set(jobs)
    if (not exact or len(running) > 1) and not yes and can_ask():
        click.confirm(f"cancel {', '.join(job.id for job in running)}?", err=True, abort=True)
    for job in running:
        job.cancel(reason or "cancelled by the user")
        watch(job)
        click.echo(f"cancelling {job.id}")
    if wait:
        for job in running:
            job.wait()
            click.echo(f"{job.id} {job.state}")
