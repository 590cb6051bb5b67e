"""A clock for what must wait for others: pauses are short, and count in full."""

from __future__ import annotations

import time

HASTE = 50


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
