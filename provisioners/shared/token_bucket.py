"""Token buckets: client-side rate limits of API calls, shared by all jobs of a process, first come first served.

A caller that must wait is queued under a key, e.g. the call's idempotency token. It calls take() again with the same
key when its turn has come; take() itself never sleeps.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from .clock import Clock

SLOW_S = 10.0
"""Seconds for which the rate is halved after the provider throttled a call: other processes use the same limit."""
LATE_S = 5.0
"""A caller that is late by this number of seconds no longer delays those behind it, but keeps its position."""
FORGOTTEN_S = 600.0
"""A caller that is late by this number of seconds is removed from the queue."""


class Rate(NamedTuple):
    """Rate limit of a provider."""

    per_s: float
    """Refill rate: calls per second."""
    burst: float
    """Capacity of the bucket: calls at once after a pause."""


class Bucket:
    """Token bucket with a queue of waiting callers. Thread-safe."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens, self._filled = rate.burst, clock.monotonic()
        self._slow_until = float("-inf")
        self._line: dict[str, float] = {}
        """Queue: key -> monotonic time of its turn, in order of arrival."""

    def take(self, key: str) -> float:
        """Take a token and return 0, or return the seconds after which to retry with the same key."""
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
        """Record that the provider throttled a call: empty the bucket, and slow down, as other processes use the same
        limit."""
        with self._lock:
            now = self._clock.monotonic()
            self._fill(now)
            self._tokens = min(self._tokens, 0.0)
            self._slow_until = now + SLOW_S

    @property
    def waiting(self) -> int:
        """Number of callers in the queue."""
        with self._lock:
            return len(self._line)

    def _ahead(self, key: str, now: float) -> int:
        """Return the number of callers before this one that are not late; drop those that will not return."""
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
        """Return the seconds in which `missing` tokens are added."""
        seconds, slow = missing / self.rate.per_s, max(0.0, self._slow_until - now)
        return seconds + min(seconds, slow / 2)
