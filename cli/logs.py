"""`cloudgpu logs`: print the output of a job's program."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.follow import Follower, Interrupts, LineFormat, LogFilter
from .shared.job.job_argument import find_job, job_argument, watch
from .shared.job.report_view import closing_lines
from .shared.options import DURATION
from .shared.output import remark
from .shared.text import amount, plural

if TYPE_CHECKING:
    from ..control.jobs import Job
    from .shared.job.job_at_url import JobAtUrl

_MAX_TAIL = 1_000_000
"""Maximum lines of --tail, which are held in memory."""
_TO = "Write the logs of all attempts and machines as files."


@click.command()
@job_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--node", help="Only this machine's lines, e.g. worker-1.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt's lines.")
@click.option("--since", type=DURATION, metavar="DURATION", help="Only lines of the last 10m, 2h, …")
@click.option("-n", "--tail", type=click.IntRange(0, _MAX_TAIL), metavar="N", help="Begin with the last N lines.")
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help=_TO)
@click.option("--force", is_flag=True, help="With --to: replace files that are there and differ.")
def command(
    *,
    job: str,
    follow: bool,
    node: str | None,
    attempt: int | None,
    since: float | None,
    tail: int | None,
    timestamps: bool,
    folder: Path | None,
    force: bool,
) -> Exit | None:
    """Print what JOB's program has written on all its machines, in order of time; attempts one after the other.

    \b
    cloudgpu logs digits
    cloudgpu logs digits --follow --node worker-1
    cloudgpu logs digits --tail 100 --follow
    cloudgpu logs digits --since 10m --timestamps | grep loss
    cloudgpu logs digits --to logs

    With --to, each machine's log of each attempt becomes a file: FOLDER/attempt-1/worker-0.1.log.

    Where a job has several machines or ranks, each line begins with its own. Ctrl-C ends the printing, never the job.

    JOB may be the URL of a job's folder, s3://bucket/jobs/digits-a1b2c3d4: then all that is needed is access to it.
    """
    _check_options(follow=follow, tail=tail, folder=folder, force=force)
    chosen = LogFilter(attempt, node, None if since is None else time.time() - since)
    if "://" in job:
        from .shared.job.job_at_url import JobAtUrl

        at_url = JobAtUrl(job)
        if folder is None:
            return _print_from(at_url, chosen, follow=follow, timestamps=timestamps, tail=tail)
        _write(at_url, folder, chosen, timestamps=timestamps, force=force)
        return None
    found = find_job(job, newest=True)
    _require_job_dir(found)
    if not follow or found.done:
        _check_there(found, node, attempt)
    if folder is None:
        return _print(found, chosen, follow=follow, timestamps=timestamps, tail=tail)
    _write(found, folder, chosen, timestamps=timestamps, force=force)
    return None


def _require_job_dir(job: Job) -> None:
    """Raise CommandError if the job's folder is gone."""
    from ..protocol.jobdir import JOB_KEY

    if not job.open_dir().exists(JOB_KEY):
        raise CommandError(
            f"the job dir of {job.id} is gone: {job.job_dir}",
            hint=f"what the store knows of it: cloudgpu status {job.id}",
            exit_code=Exit.UNAVAILABLE,
        )


def _print(job: Job, chosen: LogFilter, *, follow: bool, timestamps: bool, tail: int | None) -> Exit | None:
    """Print the log of a job of this computer's store."""
    form = LineFormat(job, timestamps=timestamps)
    follower = Follower(job, form, chosen, tail=tail, keep_alive=lambda: watch(job))
    if not follow:
        follower.print_all()
        return None
    watch(job)
    with Interrupts() as interrupts:
        ended = follower.follow(interrupts)
    if not ended:
        return Exit.INTERRUPTED
    sys.stdout.flush()  # the log's last line comes before the closing lines
    for line in closing_lines(job):
        click.echo(line, err=True)
    return None


def _check_options(*, follow: bool, tail: int | None, folder: Path | None, force: bool) -> None:
    """Raise UsageError for options that exclude each other."""
    if folder is not None and (follow or tail is not None):
        raise click.UsageError("--to writes whole logs: it cannot be used with --follow or --tail")
    if force and folder is None:
        raise click.UsageError("--force needs --to FOLDER")


def _write(job: Job | JobAtUrl, folder: Path, chosen: LogFilter, *, timestamps: bool, force: bool) -> None:
    """Write the logs as files and say where they are."""
    from .shared.job.log_files import write_logs

    written = write_logs(job, folder, chosen, timestamps=timestamps, force=force)
    size = sum(path.stat().st_size for path in written)
    click.echo(f"{plural(len(written), 'file')}, {amount(size)}, in {folder}")


def _print_from(found: JobAtUrl, chosen: LogFilter, *, follow: bool, timestamps: bool, tail: int | None) -> Exit | None:
    """Print the log of a job at a URL, without this computer's store."""
    follower = Follower(found, LineFormat(found, timestamps=timestamps), chosen, tail=tail)
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
