"""signal.json of an attempt: the one small object that its machines poll.

Who writes stop.json or notice.json writes it too, so machines see these within one poll. A command that follows the job
renews a watch mark in it: then heartbeats and log lines come often.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from .jobdir import JobDir, JobDirError, Signal, attempt_key

WATCH_S = 90.0
"""Seconds for which a watch mark counts."""
RENEW_S = 60.0
"""Seconds between two marks of a command that watches."""


def signal_key(attempt: int) -> str:
    return attempt_key(attempt, "signal.json")


def send_signal(job_dir: JobDir, attempt: int, *, watch_s: float = 0.0) -> None:
    """Have the attempt's machines look at stop.json and notice.json at once. Raises JobDirError.

    In a local folder they look often by themselves. Every signal replaces the one before: machines count a watch from
    when they see it, so none is cut short by the next signal.
    """
    if job_dir.folder is None:
        job_dir.put(signal_key(attempt), Signal(uuid.uuid4().hex, watch_s).to_bytes())


class WatchMark:
    """Says in the job dir that a command watches a job; best effort."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marked: tuple[str, int] | None = None
        self._due = 0.0

    def renew(self, job_dir: JobDir, attempt: int) -> None:
        """Write the mark, at most once in RENEW_S for an attempt; without the right to write, lines come rarely."""
        where, now = (job_dir.url, attempt), self._clock()
        if job_dir.folder is not None or (where == self._marked and now < self._due):
            return
        self._marked, self._due = where, now + RENEW_S
        with suppress(JobDirError):
            send_signal(job_dir, attempt, watch_s=WATCH_S)
