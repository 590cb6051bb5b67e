"""Remove ended jobs.

The order makes it repeatable after a kill at any point: the goal "remove" is set, the folders are deleted, and the row
goes last. A job with that goal whose removal was interrupted is removed by the same call again.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...protocol.jobdir import JobDir, JobDirError
from ...storage.objects import Usage
from ..errors import RemovalError
from ..store.model import JobRow
from ..store.store import Store
from .keeping import needed_by
from .own_folders import open_own

log = logging.getLogger("cloudgpu.removal")

_PARALLEL = 8
"""Number of jobs whose folders are measured at once."""
_RETRY_S = 120.0
"""Seconds for which a store's transient errors are retried, for each of a job's folders."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An ended job with the size of its folders."""

    job: JobRow
    usage: Usage | None
    """None: it is unknown, because a folder cannot be read; `problem` says why."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Prunable:
    """Jobs that `prune` would remove, and those that it keeps although they are old enough."""

    candidates: list[Candidate]
    needed: dict[str, list[str]]
    """Id of a job that is kept -> ids of the jobs that were started from it."""


def find_prunable(store: Store, before: float, chosen: Callable[[JobRow], bool]) -> Prunable:
    """Return the jobs that ended before a time (epoch seconds) and are chosen, oldest first. Raises StoreError."""
    jobs = store.list_jobs(active_only=False)
    old = [job for job in jobs if job.ended is not None and job.ended < before and chosen(job) and not job.is_record]
    ids = {job.id for job in old}
    # A job that stays because another needs it may itself have been started from one of the others.
    while (needed := needed_by(jobs, {job.id for job in old})).keys() & {job.id for job in old}:
        old = [job for job in old if job.id not in needed]
    with ThreadPoolExecutor(_PARALLEL, "usage") as pool:
        candidates = list(pool.map(lambda job: measure(job, jobs), sorted(old, key=lambda job: job.ended or 0.0)))
    return Prunable(candidates, {job_id: by for job_id, by in needed.items() if job_id in ids})


def measure(job: JobRow, jobs: Sequence[JobRow]) -> Candidate:
    """Return the size of a job's folders."""
    try:
        sizes = [job_dir.usage() for job_dir in open_own(job, jobs)]
    except (JobDirError, RemovalError) as error:
        return Candidate(job, None, str(error))
    return Candidate(job, Usage(sum(one.objects for one in sizes), sum(one.bytes for one in sizes)))


def remove(
    store: Store,
    job: JobRow,
    *,
    also: Collection[str] = (),
    keep_record: bool = False,
    on_deleted: Callable[[int], None] = lambda _objects: None,
) -> None:
    """Delete an ended job's folders, then its row. No-op for a job that does not exist: another process has removed it.

    Raises RemovalError, JobDirError, StoreError.

    job: as it was when its removal was decided; a job that has been resumed since then is refused
    also: ids of jobs that are removed by the same command
    keep_record: keep the row, for `status` and `cost`
    on_deleted: called with the number of objects deleted so far
    """
    now = store.job(job.id)
    if now is None:
        return
    jobs = store.list_jobs(active_only=False)
    needed = needed_by(jobs, {job.id, *also}).get(job.id)
    if needed:
        raise RemovalError(f"{job.id} is needed: {', '.join(needed)} started from it; remove that first")
    active = next((one for one in (job, now) if one.ended is None), None)
    if active is not None:
        raise RemovalError(f"{job.id} is {active.state}: cancel it first, with `cloudgpu cancel {job.id} --wait`")
    folders = open_own(now, jobs)
    if not store.claim_removal(job, time.time()):
        if store.job(job.id) is None:
            return
        raise RemovalError(f"{job.id} was started again since you chose it, and is kept; `cloudgpu status {job.id}`")
    _delete(folders, on_deleted)
    if keep_record:
        store.finish_removal(job.id, time.time())
    else:
        store.delete_job(job.id)


def remove_leftovers(store: Store, job: JobRow) -> bool:
    """Delete what was written into a job's folders while another command removed it; return False if it was not
    removed. Raises RemovalError, JobDirError, StoreError.

    job: as it was when writing began
    """
    now = store.job(job.id)
    if now is not None and not now.is_removed:
        return False
    _delete(open_own(job, store.list_jobs(active_only=False)), lambda _objects: None)
    return True


def _delete(folders: Sequence[JobDir], on_deleted: Callable[[int], None]) -> None:
    for job_dir in folders:
        with job_dir.retrying(_RETRY_S, functools.partial(log.warning, "%s"), refused_s=0.0):
            job_dir.delete_all(on_deleted)
