"""Clock interface of provisioners and control, passed in so that tests need not wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Protocol of a clock that also sleeps."""

    def now(self) -> float:
        """Return epoch seconds by the system clock, which may be set at any moment."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment, including the time for which the computer was suspended.

        Machines run and are billed while a laptop sleeps, and another supervisor may take over: limits, leases,
        timeouts and the age of cached answers must include that time, which Linux's time.monotonic() leaves out.
        """

    def sleep(self, seconds: float) -> None:
        """Sleep for this number of seconds."""


class SystemClock:
    """The computer's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only; on macOS monotonic() includes suspended time
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
