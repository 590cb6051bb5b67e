"""`cloudgpu wait`: wait until a job has ended; the exit code is its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .exit_codes import Exit
from .shared.job.job_argument import OUTCOMES, find_job, job_argument, watch
from .shared.job.job_view import job_json
from .shared.job.report_view import outputs_lines, resume_lines
from .shared.options import DURATION, json_option
from .shared.output import ProgressLine, clean, echo_json, remark
from .shared.text import ago

if TYPE_CHECKING:
    from ..control.jobs import Job


@click.command()
@job_argument()
@click.option("--timeout", type=DURATION, help="Give up after so long, e.g. 30m; the job goes on.")
@json_option
def command(job: str, timeout: float | None, as_json: bool) -> Exit:
    """Wait until JOB has ended. Exit codes: 0 succeeded, 1 failed, 5 cancelled, stopped or timed out.

    \b
    cloudgpu wait digits && cloudgpu submit evaluate.yaml
    cloudgpu wait digits --timeout 2h
    """
    found = watch(find_job(job, newest=True))
    with ProgressLine() as progress:
        ended = found.wait(lambda seen: progress(_line(seen)), timeout)
    if as_json:
        echo_json(job_json(found.look_for_checkpoint()))
    elif ended:
        click.echo(f"{found.id} {found.state}" + (f": {clean(found.reason)}" if found.reason else ""))
    if ended:
        if not as_json:
            for line in [*outputs_lines(found), *resume_lines(found)]:
                click.echo(line, err=True)
        return OUTCOMES[found.state]
    remark(f"{found.id} is still {found.state}: it goes on")
    return Exit.STOPPED


def _line(job: Job) -> str:
    reason = f": {job.reason}" if job.reason else ""
    return f"{job.id} {job.state}{reason} (submitted {ago(job.created)})"
