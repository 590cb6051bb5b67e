"""The folders that belong to one job alone. Nothing else may ever be deleted with it.

A folder's URL comes from the store, and what is in the folder may have been written by any program. So a folder is the
job's own only if the last part of its path, as requests use it, is the job's id; if it is no link; if no other job's
folder is in it; if the job.json in it names no other job; and if each attempt in it is known to the store, as another
store may have gone on with the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from ...protocol.jobdir import JOB_KEY, JobDir, JobRecord, RecordError
from ...protocol.logs.format import attempt_numbers
from ..errors import RemovalError
from ..store.model import JobRow

_ID = re.compile(r"[a-z][a-z0-9-]{0,40}-[a-z0-9]{1,16}", re.ASCII)
"""Ids of jobs: a name and a suffix."""


def folder_urls(job: JobRow) -> list[str]:
    """Return the URLs of a job's folders, one for each cloud that has a separate one."""
    return list(dict.fromkeys([job.job_dir, *job.policy.job_dirs.values()]))


def open_own(job: JobRow, others: Iterable[JobRow]) -> list[JobDir]:
    """Open the folders of a job after checking that each is its own. Raises RemovalError, JobDirError.

    others: all jobs of the store; the job itself is ignored
    """
    taken = {url.rstrip("/"): other.id for other in others if other.id != job.id for url in folder_urls(other)}
    return [_checked(url.rstrip("/"), job, taken) for url in folder_urls(job)]


def _checked(url: str, job: JobRow, taken: dict[str, str]) -> JobDir:
    job_dir, job_id = JobDir(url, make=False), job.id
    if _ID.fullmatch(job_id) is None or job_dir.name != job_id:
        raise RemovalError(f"{job_id}: {url} is not deleted: it is no folder of this job's name")
    if job_dir.folder is not None and job_dir.folder.is_symlink():
        raise RemovalError(f"{job_id}: {url} is not deleted: it is a link to another folder")
    if job_dir.folder is not None and not job_dir.folder.parent.exists():
        raise RemovalError(
            f"{job_id}: {url} is not deleted: {job_dir.folder.parent} is not on this computer now, or its disk is not "
            "mounted; if it is gone for good, make it as an empty folder and repeat the command"
        )
    inside = next((other for there, other in taken.items() if f"{there}/".startswith(f"{url}/")), None)
    if inside is not None:
        raise RemovalError(f"{job_id}: {url} is not deleted: the folder of {inside} is in it")
    with suppress(RecordError):  # a damaged record names no job
        record = JobRecord.read(job_dir, JOB_KEY)
        if record is not None and record.job_id != job_id:
            raise RemovalError(f"{job_id}: {url} is not deleted: its job.json is that of {record.job_id}")
    if (newest := max(attempt_numbers(job_dir), default=0)) > job.attempt:
        raise RemovalError(
            f"{job_id}: {url} is not deleted: it has an attempt {newest}, and here the job had {job.attempt}. It "
            "belongs to the store that began it"
        )
    return job_dir
