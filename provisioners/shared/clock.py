"""The clock of provisioners and control, passed in so that tests need not wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time, and of pauses."""

    def now(self) -> float:
        """Return epoch seconds by the computer's clock, which may be set at any moment."""

    def monotonic(self) -> float:
        """Return seconds since some moment, including the time for which the computer was suspended.

        Machines run and bill while a laptop sleeps, and another supervisor may take over: limits, leases, timeouts and
        the age of cached answers count that time too, which time.monotonic() of Linux leaves out.
        """

    def sleep(self, seconds: float) -> None:
        """Pause for this time."""


class SystemClock:
    """The computer's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; monotonic() of macOS counts suspended time by itself
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
