"""`cloudgpu rm`: remove ended jobs with everything that they have stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .shared.job.job_argument import confirm, jobs_argument, select_jobs
from .shared.job.removal import keep_record_option, report, take_away
from .shared.options import json_option, label_option, yes_option
from .shared.output import remark

if TYPE_CHECKING:
    from ..control.jobs import Job


@click.command()
@jobs_argument()
@label_option
@click.option("--all", "everything", is_flag=True, help="Every job that has ended.")
@keep_record_option
@yes_option
@json_option
def command(
    *,
    jobs: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    everything: bool,
    keep_record: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove each JOB that has ended: its folder with code, logs, checkpoints and outputs, and what `status`, `events`
    and `cost` know of it.

    \b
    cloudgpu rm digits-k3v9x2ma
    cloudgpu rm digits other --yes
    cloudgpu rm --label sweep=7 --keep-record

    This cannot be undone. A job that runs is refused: cancel it first. So is one from whose checkpoint another job was
    started. If the command is interrupted, run it again. Several jobs, or one that is not named by its whole id, are
    asked for on a terminal; --yes answers. Without a terminal, --label and --all need it.
    """

    def is_chosen(job: Job) -> bool:
        return job.done and not (keep_record and job.row.is_record)

    found = select_jobs(jobs, labels, everything=everything, chosen=is_chosen)
    if not found:
        remark("there is no such job that has ended")
    else:
        confirm("remove", found, jobs, yes=yes)
    report(take_away([job.row for job in found], keep_record=keep_record), as_json=as_json)
