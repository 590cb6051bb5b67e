"""Token buckets: how fast a provider takes calls of one kind, shared by all jobs of a process, first come first served.

A caller that must wait keeps its place in the line under a key, e.g. the call's idempotency token. It may go away and
come back when its turn has come: no thread has to sleep meanwhile.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from .clock import Clock

SLOW_S = 10.0
"""Seconds after a refusal for which the rate is halved, because other processes call the provider as well."""
LATE_S = 5.0
"""A caller that is this many seconds late does not hold up those behind it; it keeps its place."""
FORGOTTEN_S = 600.0
"""A caller that is this many seconds late will not come back."""


class Rate(NamedTuple):
    """Rate limit of a provider."""

    per_s: float
    """Calls a second, in the long run."""
    burst: float
    """Calls at once, after a pause."""


class Bucket:
    """One token bucket and the line before it. Any thread may call it."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens, self._filled = rate.burst, clock.monotonic()
        self._slow_until = float("-inf")
        self._line: dict[str, float] = {}
        """Key -> steady time of its turn, in the order in which they came."""

    def take(self, key: str) -> float:
        """Take a token and return 0; or return the seconds after which to ask again with the same key."""
        with self._lock:
            now = self._clock.monotonic()
            self._fill(now)
            ahead = self._ahead(key, now)
            missing = ahead + 1 - self._tokens
            if missing <= 0:
                self._tokens -= 1
                self._line.pop(key, None)
                return 0.0
            wait = self._until(missing, now)
            self._line[key] = now + wait
            return wait

    def refuse(self) -> None:
        """Note that the provider has refused a call: its bucket is empty, and others take from it."""
        with self._lock:
            now = self._clock.monotonic()
            self._fill(now)
            self._tokens = min(self._tokens, 0.0)
            self._slow_until = now + SLOW_S

    @property
    def waiting(self) -> int:
        """Callers in the line."""
        with self._lock:
            return len(self._line)

    def _ahead(self, key: str, now: float) -> int:
        """Callers before this one that are not late."""
        for one in [one for one, turn in self._line.items() if turn < now - FORGOTTEN_S and one != key]:
            del self._line[one]
        ahead = 0
        for one, turn in self._line.items():
            if one == key:
                break
            ahead += turn >= now - LATE_S
        return ahead

    def _fill(self, now: float) -> None:
        slow = max(0.0, min(now, self._slow_until) - self._filled)
        seconds = max(0.0, now - self._filled - slow / 2)
        self._tokens = min(self.rate.burst, self._tokens + seconds * self.rate.per_s)
        self._filled = now

    def _until(self, missing: float, now: float) -> float:
        """Return the seconds until `missing` tokens have been added."""
        seconds, slow = missing / self.rate.per_s, max(0.0, self._slow_until - now)
        return seconds + min(seconds, slow / 2)
