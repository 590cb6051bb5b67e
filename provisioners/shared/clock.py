"""Time as provisioners take it, handed in, so that tests need not wait for it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a provisioner takes its time from."""

    def now(self) -> float:
        """Epoch seconds."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""


class SystemClock:
    """The computer's."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
