"""`cloudgpu preempt`: send a preemption notice to a job's machines, as a cloud would."""

from __future__ import annotations

import click

from .shared.job.job_argument import find_job, job_argument, watch
from .shared.options import DURATION
from .shared.text import duration


@click.command()
@job_argument()
@click.option("--after", type=DURATION, default="30s", show_default=True, help="Time between the notice and the end.")
@click.option("--node", help="Only this machine, e.g. worker-0; otherwise all of the job's.")
def command(job: str, after: float, node: str | None) -> None:
    """Give the machines of a running JOB a preemption notice: the way to see that it resumes, before it matters.

    The program may save a checkpoint; when the time is over the machines end without a word, as in a cloud. The job
    then goes on in a new attempt, if `retry:` allows one.

    \b
    cloudgpu preempt digits                          all machines, in 30 seconds
    cloudgpu preempt digits --after 5s --node worker-1
    """
    found = watch(find_job(job))
    nodes = found.preempt(after, node)
    click.echo(f"{found.id}: notice given to {', '.join(nodes)}; gone in {duration(after)}")
