"""Jobs that must be kept because another one was started from their checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..store.model import JobRow


def needed_by(jobs: Iterable[JobRow], removed: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the id of each job that must be kept -> ids of the jobs that were started from it.

    jobs: all of the store; removed: ids of jobs that go as well, and thus need nothing
    """
    found: dict[str, list[str]] = {}
    for job in jobs:
        if job.source is not None and job.id not in removed and not job.is_record:
            found.setdefault(job.source.job, []).append(job.id)
    return found
