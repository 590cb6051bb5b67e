"""Clocks that shorten pauses but count them in full, a bound for fast operations, and the current date."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator

SPEEDUP = 50
FAST_LIMIT_S = 30.0
"""Limit in seconds of thread time for an operation that takes a fraction of a second on an idle computer."""


@contextlib.contextmanager
def fast() -> Iterator[None]:
    """Assert that the block's run time does not grow with its input: it may take at most FAST_LIMIT_S seconds.

    Thread time is measured because the computer may be busy. The limit is generous because in a process that has run
    many tests the garbage collector traverses millions of objects.
    """
    began = time.thread_time()
    yield
    assert time.thread_time() - began < FAST_LIMIT_S, "what grows without bound takes minutes"


def today() -> str:
    """Return today's UTC date in ISO format, as in the column `date` of tables.

    Tests call it before and after an operation, since they may run past midnight."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


class FastClock:
    """Clock with real epoch time, for timestamps of machines and files; a pause takes 1/SPEEDUP of the time that it
    counts."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / SPEEDUP)
        self._skipped += seconds * (SPEEDUP - 1) / SPEEDUP


class StillClock(FastClock):
    """Clock that only pauses advance, so that a poll cache's TTL does not expire on a slow computer."""

    def monotonic(self) -> float:
        return self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / SPEEDUP)
        self._skipped += seconds
