"""Removal of jobs with progress, and its report. Shared by `rm` and `prune`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from ...exit_codes import Exit
from ..errors import CommandError
from ..output import ProgressLine, echo_json, warning
from ..text import plural

if TYPE_CHECKING:
    from ....control.store.model import JobRow

keep_record_option = click.option(
    "--keep-record", is_flag=True, help="Delete the files only: `status` and `cost` still know the job."
)


@dataclass(frozen=True, slots=True)
class Removed:
    """How the removal of one job went."""

    job: str
    error: str = ""
    """"": it is removed."""
    is_refused: bool = False
    """True if repeating the command cannot help."""


def take_away(jobs: Sequence[JobRow], *, keep_record: bool) -> list[Removed]:
    """Remove jobs one after the other; an error of one does not stop the others."""
    from ....control.errors import RemovalError
    from ....control.removal.removing import remove
    from ....control.store.store import open_store
    from ....protocol.jobdir import JobDirError

    done, ids = [], {job.id for job in jobs}
    with ProgressLine() as line:
        for number, job in enumerate(_dependents_first(jobs), 1):
            line(head := f"removing {job.id} ({number} of {len(jobs)})")
            say = partial(_say_deleted, line, head)
            try:
                remove(open_store(), job, also=ids, keep_record=keep_record, on_deleted=say)
            except (RemovalError, JobDirError) as error:
                done.append(Removed(job.id, str(error), isinstance(error, RemovalError)))
                ids.discard(job.id)  # it stays, and so must the job that it was started from
            else:
                done.append(Removed(job.id))
    return done


def _say_deleted(line: ProgressLine, head: str, count: int) -> None:
    line(f"{head}: {plural(count, 'object')} deleted")


def _dependents_first(jobs: Sequence[JobRow]) -> list[JobRow]:
    """Return the newest jobs first: a job is newer than the one that it was started from."""
    return sorted(jobs, key=lambda job: -job.created)


def report(done: Sequence[Removed], *, as_json: bool) -> None:
    """Print what was removed. Raises CommandError if anything was not."""
    failed = [one for one in done if one.error]
    if as_json:
        echo_json([{"job": one.job, "removed": not one.error, "error": one.error or None} for one in done])
    else:
        for one in done:
            if not one.error:
                click.echo(f"removed {one.job}")
    for one in failed:
        warning(one.error)
    if failed:
        can_repeat = any(not one.is_refused for one in failed)
        raise CommandError(
            f"{len(failed)} of {plural(len(done), 'job')} {'was' if len(failed) == 1 else 'were'} not removed",
            hint="run the command again: what is gone already does no harm" if can_repeat else "",
            exit_code=Exit.UNAVAILABLE if can_repeat else Exit.USAGE,
        )
