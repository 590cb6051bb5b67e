"""How often a node writes its heartbeat and its log into the job dir: often while a command watches, else rarely.

In an object store each write costs money, so the steady state is at most one write a minute, for heartbeat and log
together. A local folder costs nothing: there the node always writes often.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

SETTLE_S = 60.0
"""Seconds after the program's start, or after something happened, for which the node writes often."""
BEAT_S = 90.0
"""Seconds between two heartbeats in the steady state."""
LOG_S = 180.0
"""Seconds between two writes of the log in the steady state."""
LONGEST_WATCH_S = 600.0
"""Seconds for which one watch mark counts, at most."""


class Pace:
    """Decide whether this node writes often. Thread-safe."""

    def __init__(self, *, free: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`free`: writing costs nothing, so it is always done often."""
        self._free, self._clock = free, clock
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._busy_until = math.inf
        self._watched_until = -math.inf

    @property
    def is_quick(self) -> bool:
        return self._free or self._clock() < max(self._busy_until, self._watched_until)

    def on_quick(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the node is to write at once."""
        self._listeners.append(listener)

    def settle(self) -> None:
        """The program has begun: write at once, and often for SETTLE_S; then the steady state follows."""
        with self._lock:
            self._busy_until = self._clock() + SETTLE_S
        self._announce()

    def stay_quick(self) -> None:
        """Write often from now on, as before the program's start and while it ends."""
        with self._lock:
            self._busy_until = math.inf
        self._announce()

    def watched(self, seconds: float) -> None:
        """A command watches this attempt for this number of seconds from now."""
        with self._lock:
            until = self._clock() + min(seconds, LONGEST_WATCH_S)
            self._watched_until = max(self._watched_until, until)
        if self.is_quick:
            self._announce()

    def _announce(self) -> None:
        for listener in self._listeners:
            listener()
