"""Time, handed in, so that tests need not wait for it and the computer's clock may jump back."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the control side takes its time from."""

    def now(self) -> float:
        """Epoch seconds; never less than before."""

    def monotonic(self) -> float:
        """Seconds since some moment."""


class SystemClock:
    """The computer's clocks. Whatever happens to the wall clock, now() advances at least as fast as time does."""

    def __init__(self) -> None:
        self._wall = time.time()
        self._steady = self.monotonic()

    def monotonic(self) -> float:
        # Unlike time.monotonic(), CLOCK_BOOTTIME goes on while a laptop sleeps: leases and limits must too.
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def now(self) -> float:
        steady = self.monotonic()
        self._wall = max(time.time(), self._wall + steady - self._steady)
        self._steady = steady
        return self._wall
