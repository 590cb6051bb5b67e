"""Check whether an orphaned launch still belongs to another store: its nodes write heartbeats.

Two stores may be copies of each other (an image of a machine, a restored backup), and know the same jobs.
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
"""How old a heartbeat may be, by two computers' clocks, that says that a node is alive."""
_NEWEST_JOBS = 200
"""Jobs beside whose folders an unknown job's folder is looked for."""


def is_alive(store: Store, leftover: Leftover, now: float) -> bool:
    """Return whether a node of the launch has written a heartbeat within FRESH_S, and no result.

    A store that refuses or does not answer may hide one, so True; a bucket that does not exist has none.
    """
    return bool(leftover.job_id) and any(
        _has_live_node(url, leftover.attempt, now) for url in _job_dirs(store, leftover.job_id)
    )


def _job_dirs(store: Store, job_id: str) -> Iterator[str]:
    """The folders of a job; of one that the store does not know, those it would have beside the other jobs'."""
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
    except RecordError:  # whatever it is, it is no heartbeat
        return False
    return heartbeat is not None and abs(now - heartbeat.time) < FRESH_S
