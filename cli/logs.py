"""`cloudgpu logs`: print the output of a job's program."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.follow import Follower, Interrupts, LineFormat, LogFilter
from .shared.job.job_argument import find_job, job_argument, watch
from .shared.job.report_view import resume_lines
from .shared.options import DURATION
from .shared.output import remark

if TYPE_CHECKING:
    from ..control.jobs import Job


@click.command()
@job_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--node", help="Only this machine's lines, e.g. worker-1.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt's lines.")
@click.option("--since", type=DURATION, metavar="DURATION", help="Only lines of the last 10m, 2h, …")
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with its time.")
def command(
    *, job: str, follow: bool, node: str | None, attempt: int | None, since: float | None, timestamps: bool
) -> Exit | None:
    """Print what JOB's program has written on all its machines, in order of time; attempts one after the other.

    \b
    cloudgpu logs digits
    cloudgpu logs digits --follow --node worker-1
    cloudgpu logs digits --since 10m --timestamps | grep loss

    Where a job has several machines or ranks, each line begins with its own. Ctrl-C ends the printing, never the job.

    JOB may be the URL of a job's folder, s3://bucket/jobs/digits-a1b2c3d4: then all that is needed is access to it.
    """
    from ..protocol.jobdir import JOB_KEY

    chosen = LogFilter(attempt, node, None if since is None else time.time() - since)
    if "://" in job:
        return _print_from(job, chosen, follow=follow, timestamps=timestamps)
    found = find_job(job, newest=True)
    if not found.open_dir().exists(JOB_KEY):
        raise CommandError(
            f"the job dir of {found.id} is gone: {found.job_dir}",
            hint=f"what the store knows of it: cloudgpu status {found.id}",
            exit_code=Exit.UNAVAILABLE,
        )
    if not follow or found.done:
        _check_there(found, node, attempt)
    form = LineFormat(found, timestamps=timestamps)
    follower = Follower(found, form, chosen, keep_alive=lambda: watch(found))
    if not follow:
        follower.print_all()
        return None
    watch(found)
    with Interrupts() as interrupts:
        ended = follower.follow(interrupts)
    if not ended:
        return Exit.INTERRUPTED
    sys.stdout.flush()  # the log's last line comes before the remark
    for line in resume_lines(found):
        remark(line)
    return None


def _print_from(url: str, chosen: LogFilter, *, follow: bool, timestamps: bool) -> Exit | None:
    """Print the log of a job at a URL, without this computer's store."""
    from .shared.job.job_at_url import JobAtUrl

    found = JobAtUrl(url)
    follower = Follower(found, LineFormat(found, timestamps=timestamps), chosen)
    if follow:
        with Interrupts() as interrupts:
            if not follower.follow(interrupts):
                return Exit.INTERRUPTED
        for name, outcome in found.results.items():
            remark(f"{name} {outcome}")
    else:
        follower.print_all()
    if found.moved_to:
        remark(f"the job went on in another cloud: cloudgpu logs {found.moved_to}")
    return None


def _check_there(job: Job, node: str | None, attempt: int | None) -> None:
    """Raise CommandError for a node or attempt that does not exist; otherwise the empty output would look like a silent
    program."""
    from ..control.reconcile.node_replacement import all_node_names

    attempts = job.attempts()
    if attempt is not None and attempt > len(attempts):
        count = f"{len(attempts)} attempt{'s' * (len(attempts) != 1)}"
        raise CommandError(f"{job.id} has no attempt {attempt}", hint=f"it has {count}", exit_code=Exit.USAGE)
    names = [name for one in attempts for name in all_node_names(one)]
    known = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if node is not None and node not in known and node not in names:
        raise CommandError(
            f"{job.id} has no machine {node!r}",
            hint=f"its machines: {', '.join(known) or 'none yet'}",
            exit_code=Exit.USAGE,
        )
