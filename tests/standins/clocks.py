"""A clock for what must wait for others: pauses are short, and count in full. And what "at once" is on any computer,
and "today" at any time."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator

HASTE = 50
MINUTES = 30.0
"""What takes a fraction of a second on a quiet computer takes less than half of one on any."""


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """What is done in here is bounded: it takes a moment, where what grows with its input would take minutes.

    By the thread's own time, for the computer may be busy; and far beyond the moment that is meant, for a process that
    has been through many tests has millions of objects, which its garbage collector goes through meanwhile.
    """
    began = time.thread_time()
    yield
    assert time.thread_time() - began < MINUTES, "what grows without bound takes minutes"


def today() -> str:
    """As tables are dated, to be asked before and after: a test may be under way at midnight."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


class FastClock:
    """Epoch time is real, for machines and files are stamped with it; a pause takes a fiftieth of what it counts."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / HASTE)
        self._skipped += seconds * (HASTE - 1) / HASTE


class StillClock(FastClock):
    """Only pauses count: what shares a look of a moment does so on a computer that is slow, too."""

    def monotonic(self) -> float:
        return self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / HASTE)
        self._skipped += seconds
