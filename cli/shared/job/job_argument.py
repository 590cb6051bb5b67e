"""The JOB argument of commands: an id, the unique beginning of one, or a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...exit_codes import Exit
from ..errors import CommandError
from ..output import remark, warning

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ....control.errors import NoSuchJobError
    from ....control.jobs import Job

_F = TypeVar("_F", bound=Callable[..., Any])

_SEARCHED = 1_000
"""Newest jobs among which a name is looked for."""

NO_JOBS = "no jobs; `cloudgpu submit FILE` makes one"

OUTCOMES: dict[str, Exit] = {
    "succeeded": Exit.OK,
    "failed": Exit.FAILED,
    "cancelled": Exit.STOPPED,
    "stopped": Exit.STOPPED,
}
"""Final state of a job -> exit code of the command that waited for it."""


def job_argument(*, required: bool = True) -> Callable[[_F], _F]:
    """Decorator: the JOB argument, completed by the shell."""
    return click.argument("job", metavar="JOB" if required else "[JOB]", required=required, shell_complete=_complete)


def jobs_argument() -> Callable[[_F], _F]:
    """Decorator: one or more JOB arguments."""
    return click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=_complete)


def find_job(ref: str, *, newest: bool = False) -> Job:
    """The job of this reference; which one is said on stderr where that was not its whole id. Raises NoSuchJobError.

    `newest`: of several jobs of the same name, take the newest. Commands that change a job insist on one.
    """
    from ....control.errors import NoSuchJobError
    from ....control.jobs import get_job, list_jobs

    try:
        job = get_job(ref)
    except NoSuchJobError as error:
        jobs = list_jobs(limit=_SEARCHED)
        named = [job for job in jobs if job.name == ref]
        if not named:
            raise _with_suggestion(error, ref, jobs) from None
        if not newest:
            raise
        job = named[0]
        remark(f"job {job.id}, the newest of {len(named)} named {ref}")
        return job
    if ref != job.id:
        remark(f"job {job.id}")
    return job


def _with_suggestion(error: NoSuchJobError, ref: str, jobs: Sequence[Job]) -> Exception:
    from ....jobspecs.suggest import closest

    near = closest(ref, list(dict.fromkeys([*(job.name for job in jobs), *(job.id for job in jobs)])))
    return CommandError(str(error), hint=f"did you mean {' or '.join(near)}?" if near else "", exit_code=Exit.USAGE)


def watch(job: Job, *, only_looking: bool = False) -> Job:
    """Ensure that a supervisor advances the job: one that died is replaced. Raises ControlError if it cannot be.

    only_looking: that is a warning
    """
    if not job.done:
        from ....control.errors import ControlError
        from ....control.jobs import ensure_supervisor

        try:
            ensure_supervisor()
        except ControlError as error:
            if not only_looking:
                raise
            warning(str(error))
    return job


def _complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from ....control.errors import ControlError
    from ....control.jobs import list_jobs

    try:
        jobs = list_jobs()
    except ControlError:  # while the user types is no time for messages: without the store nothing is completed
        return []
    return [CompletionItem(job.id, help=job.state) for job in jobs if job.id.startswith(incomplete)]
