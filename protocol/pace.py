"""Pace of a node's writes of heartbeat and log to the job dir: short intervals while a command watches, else long ones.

In an object store each write costs money, so the steady state is at most one write a minute, for heartbeat and log
together. A local folder costs nothing, so there the intervals are always short.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

SETTLE_S = 60.0
"""Seconds after each start of the program for which the intervals are short."""
BEAT_S = 90.0
"""Seconds between two heartbeats in the steady state."""
LOG_S = 180.0
"""Seconds between two writes of the log in the steady state."""
LONGEST_WATCH_S = 600.0
"""Maximum seconds for which one watch mark is valid."""


class Pace:
    """Decides whether this node writes at short intervals. Thread-safe."""

    def __init__(self, *, free: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a pace. `free`: writing costs nothing, so the intervals are always short."""
        self._free, self._clock = free, clock
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._busy_until = math.inf
        self._watched_until = -math.inf

    @property
    def is_quick(self) -> bool:
        return self._free or self._clock() < max(self._busy_until, self._watched_until)

    def on_quick(self, listener: Callable[[], None]) -> None:
        """Register a function that is called whenever the node should write at once."""
        self._listeners.append(listener)

    def settle(self) -> None:
        """Write at once, at short intervals for SETTLE_S, then in the steady state. Call it at the program's start."""
        with self._lock:
            self._busy_until = self._clock() + SETTLE_S
        self._announce()

    def stay_quick(self) -> None:
        """Write at short intervals from now on, e.g. before the program's start and while it ends."""
        with self._lock:
            self._busy_until = math.inf
        self._announce()

    def watched(self, seconds: float) -> None:
        """Write at short intervals for this number of seconds, as a command watches this attempt."""
        with self._lock:
            until = self._clock() + min(seconds, LONGEST_WATCH_S)
            self._watched_until = max(self._watched_until, until)
        if self.is_quick:
            self._announce()

    def _announce(self) -> None:
        for listener in self._listeners:
            listener()
