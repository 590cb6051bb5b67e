"""Read secrets on this computer and give them to the supervisor, at a submission and when it has lost them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...jobspecs.secrets import is_reference
from ..errors import ControlError, NotRunningError, SourceError, SubmitError
from ..store.model import JobRow
from ..supervisor.spawn import ensure_supervisor
from .channel import give
from .sources import absolute, read_values


def values_of(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the secrets that only this computer can read, name -> value. Raises SubmitError."""
    try:
        return read_values(sources, os.environ)
    except SourceError as error:
        raise SubmitError(str(error)) from error


def give_secrets(job_id: str, values: Mapping[str, str], what: str) -> None:
    """Give a job's secrets to the supervisor, which is started if none runs. Raises SubmitError.

    `what`: what the job is if they are not taken, e.g. "not submitted".
    """
    if not values:
        return
    try:
        ensure_supervisor()
        give(job_id, values)
    except ControlError as error:
        raise SubmitError(f"{job_id} is {what}, and its secrets were not taken: {error}") from error


def provide(job: JobRow, changed: Mapping[str, str]) -> list[str]:
    """Give the supervisor the secrets of a job again; return their names. See Job.provide_secrets()."""
    sources = job.policy.secrets
    if job.ended is not None:
        raise NotRunningError(f"{job.id} is {job.state}: it needs no secrets any more")
    if not sources:
        raise NotRunningError(f"{job.id} has no secrets that come from this computer")
    if unknown := sorted(changed.keys() - sources.keys()):
        raise NotRunningError(f"{job.id} has no secret {', '.join(unknown)}; it has {', '.join(sources)}")
    if references := sorted(name for name, source in changed.items() if is_reference(source)):
        raise SubmitError(f"{', '.join(references)}: only machines read a secret manager: give env: or file:")
    try:
        values = values_of({**sources, **absolute(changed, Path.cwd())})
    except SourceError as error:
        raise SubmitError(str(error)) from error
    ensure_supervisor()
    give(job.id, values)
    ensure_supervisor(job.id)
    return list(values)
