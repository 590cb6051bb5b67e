"""signal.json of an attempt: the only small object that its machines poll.

A writer of stop.json or notice.json also writes signal.json, so that machines see these within one poll. A command
that follows the job renews a watch mark in it, which makes machines write heartbeats and log lines at short
intervals.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from .jobdir import JobDir, JobDirError, Signal, attempt_key

WATCH_S = 90.0
"""Seconds for which a watch mark is valid."""
RENEW_S = 60.0
"""Seconds between two marks of a watching command."""


def signal_key(attempt: int) -> str:
    return attempt_key(attempt, "signal.json")


def send_signal(job_dir: JobDir, attempt: int, *, watch_s: float = 0.0) -> None:
    """Make the attempt's machines read stop.json and notice.json at once. Raises JobDirError.

    No-op in a local folder, where machines read these at short intervals anyway. Every signal replaces the previous
    one, but machines count a watch from when they see it, so the next signal does not cut it short.
    """
    if job_dir.folder is None:
        job_dir.put(signal_key(attempt), Signal(uuid.uuid4().hex, watch_s).to_bytes())


class WatchMark:
    """Mark in the job dir that a command watches a job; best effort."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marked: tuple[str, int] | None = None
        self._due = 0.0

    def renew(self, job_dir: JobDir, attempt: int) -> None:
        """Write the mark, at most once per RENEW_S for an attempt. Errors are ignored."""
        where, now = (job_dir.url, attempt), self._clock()
        if job_dir.folder is not None or (where == self._marked and now < self._due):
            return
        self._marked, self._due = where, now + RENEW_S
        with suppress(JobDirError):
            send_signal(job_dir, attempt, watch_s=WATCH_S)
