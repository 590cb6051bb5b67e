"""JOB argument of commands: an id, a unique prefix of an id, or a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...exit_codes import Exit
from ..errors import CommandError
from ..output import can_ask, remark, warning

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ....control.errors import NoSuchJobError
    from ....control.jobs import Job

_F = TypeVar("_F", bound=Callable[..., Any])

_SEARCHED = 1_000
"""Maximum number of jobs, newest first, that are searched for a name."""

_NAMED = 5
"""Maximum number of jobs named in a question."""

NO_JOBS = "no jobs; `cloudgpu submit FILE` makes one"

OUTCOMES: dict[str, Exit] = {
    "succeeded": Exit.OK,
    "failed": Exit.FAILED,
    "cancelled": Exit.STOPPED,
    "stopped": Exit.STOPPED,
}
"""Exit code of a command that waited for a job, by the job's final state."""


def job_argument(*, required: bool = True) -> Callable[[_F], _F]:
    """Return a decorator that adds the JOB argument, with shell completion."""
    return click.argument("job", metavar="JOB" if required else "[JOB]", required=required, shell_complete=_complete)


def jobs_argument() -> Callable[[_F], _F]:
    """Return a decorator that adds JOB arguments, in whose place --label or --all may be given; see select_jobs()."""
    return click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=_complete)


def select_jobs(
    refs: Sequence[str], labels: Sequence[tuple[str, str]], *, everything: bool, chosen: Callable[[Job], bool]
) -> list[Job]:
    """Return the jobs that a command line names, or those with all the labels, or all; these only if they are `chosen`.

    Raises UsageError for none or several of these ways, NoSuchJobError.
    """
    if bool(refs) + bool(labels) + everything != 1:
        raise click.UsageError("give one or more JOBs, or --label KEY=VALUE, or --all")
    if refs:
        return list({job.id: job for job in map(find_job, refs)}.values())
    from ....control.jobs import list_jobs

    return [job for job in list_jobs(limit=None) if chosen(job) and set(labels) <= job.labels.items()]


def confirm(what: str, jobs: Sequence[Job], refs: Sequence[str], *, yes: bool) -> None:
    """Ask on a terminal before something is done to several jobs, or to one that is not named by its whole id.

    Without a terminal, jobs that are not named need --yes. Raises Abort, UsageError.
    """
    is_exact = {job.id for job in jobs} <= set(refs)
    if yes or (is_exact and len(jobs) == 1):
        return
    if can_ask():
        click.confirm(f"{what} {_names(jobs)}?", err=True, abort=True)
    elif not refs:
        raise click.UsageError(f"this would {what} {_names(jobs)}, and there is no terminal to ask at: add --yes")


def _names(jobs: Sequence[Job]) -> str:
    shown = ", ".join(job.id for job in jobs[:_NAMED])
    return shown if len(jobs) <= _NAMED else f"{len(jobs):,} jobs ({shown}, …)"


def find_job(ref: str, *, newest: bool = False) -> Job:
    """Return the job with this id, id prefix or name. Raises NoSuchJobError, CommandError.

    Prints the id on stderr if `ref` is not the whole id. `newest`: of several jobs with that name, take the newest.
    Commands that change a job require a unique reference.
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


def watch(job: Job, *, read_only: bool = False) -> Job:
    """Ensure that a supervisor advances the job; starts a new one if none runs. Raises ControlError if that fails.

    read_only: print a warning instead of raising
    """
    if not job.done:
        from ....control.errors import ControlError
        from ....control.jobs import ensure_supervisor

        try:
            ensure_supervisor()
        except ControlError as error:
            if not read_only:
                raise
            warning(str(error))
    return job


def _complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from ....control.errors import ControlError
    from ....control.jobs import list_jobs

    try:
        jobs = list_jobs()
    except ControlError:  # no messages while the user types: without the store, nothing is completed
        return []
    return [CompletionItem(job.id, help=job.state) for job in jobs if job.id.startswith(incomplete)]
