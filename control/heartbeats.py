"""Check whether an orphaned launch still writes heartbeats, and so may belong to another store.

Two stores can be copies of each other (a machine image, a restored backup) and know the same jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..protocol.jobdir import Heartbeat, JobDir, JobDirError, RecordError, attempt_key, is_permanent, local_url
from . import paths

if TYPE_CHECKING:
    from ..provisioners.tagged_resources import Leftover
    from .store.store import Store

FRESH_S = 600.0
"""Maximum age in seconds of a heartbeat that proves a node alive; allows for the skew between two computers' clocks."""
_NEWEST_JOBS = 200
"""Number of the newest known jobs whose parent folders are searched for the folder of an unknown job."""


def is_alive(store: Store, leftover: Leftover, now: float) -> bool:
    """Return whether a node of the launch wrote a heartbeat within FRESH_S and no result.

    Also True if the object store refuses access or does not answer. A missing bucket counts as having no heartbeat.
    """
    return bool(leftover.job_id) and any(
        _has_live_node(url, leftover.attempt, now) for url in _job_dirs(store, leftover.job_id)
    )


def _job_dirs(store: Store, job_id: str) -> Iterator[str]:
    """Yield the folders of a job; for a job unknown to the store, the possible folders beside those of known jobs."""
    job = store.job(job_id)
    if job is not None:
        yield from {job.job_dir, *job.policy.job_dirs.values()}
        return
    jobs = store.list_jobs(active_only=False, limit=_NEWEST_JOBS)
    urls = {url for one in jobs for url in (one.job_dir, *one.policy.job_dirs.values())}
    parents = {url.rstrip("/").rpartition("/")[0] for url in urls} | {local_url(paths.default_job_dir())}
    yield from (f"{parent}/{job_id}" for parent in sorted(parents))


def _has_live_node(url: str, attempt: int, now: float) -> bool:
    try:
        job_dir = JobDir(url, make=False)
        keys = set(job_dir.list(attempt_key(attempt, "nodes")))
        return any(
            _is_fresh(job_dir, key, now)
            for key in keys
            if key.endswith("/heartbeat.json") and f"{key.rpartition('/')[0]}/result.json" not in keys
        )
    except JobDirError as error:
        return not is_permanent(error)


def _is_fresh(job_dir: JobDir, key: str, now: float) -> bool:
    try:
        heartbeat = Heartbeat.read(job_dir, key)
    except RecordError:  # an invalid record is not a heartbeat
        return False
    return heartbeat is not None and abs(now - heartbeat.time) < FRESH_S
