"""Time, handed in, so that tests need not wait for it; and a job's own time, which no setting of the clock changes."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the control side takes its time from."""

    def now(self) -> float:
        """Epoch seconds by the computer's clock, which may be set at any moment."""

    def monotonic(self) -> float:
        """Seconds since some moment."""


class SystemClock:
    """The computer's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        # Unlike time.monotonic(), CLOCK_BOOTTIME goes on while a laptop sleeps: leases and limits must too.
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class JobTime:
    """A job's time as one process sees it: the wall clock is read once, from then on time is measured.

    So limits and cost count what has really passed, whatever the wall clock does meanwhile. `not_before` is what was
    last written of the job: nor does its time go back when another process takes over after the clock was set back.
    """

    def __init__(self, clock: Clock, not_before: float) -> None:
        self._clock = clock
        self._offset = max(clock.now(), not_before) - clock.monotonic()

    def now(self) -> float:
        """Epoch seconds, as if the wall clock had never been set."""
        return self._offset + self._clock.monotonic()
