"""Cache of cloud API responses, shared by all jobs of a process: concurrent callers share one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from .api_calls import LaunchInterruptedError
from .clock import Clock

TTL_S = 3.0
"""Default TTL in seconds; launch() and terminate() request a fresh answer with `since`."""
TTL_FACTOR = 4.0
"""The TTL is at least the duration of the call times this factor, so that slow calls are not repeated all the time."""
STALE_S = 30.0
"""Seconds up to which a stale answer is returned while a call is in flight, instead of waiting for a slow server. Also
the limit of the TTL that TTL_FACTOR gives."""

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Entry(Generic[_Answer]):
    """Cache entry of one key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held during the call."""
        self.begun = float("-inf")
        """Monotonic time at which the call that returned `answer` began."""
        self.took_s = 0.0
        self.answer: _Answer | None = None
        self.failed: tuple[float, Exception] | None = None
        """Monotonic time at which the last call failed, and its error."""


class PollCache(Generic[_Key, _Answer]):
    """Single-flight TTL cache with a lock for each key, so that a hanging call delays no other key. Thread-safe."""

    def __init__(self, call: Callable[[_Key], _Answer], clock: Clock, *, ttl_s: float = TTL_S) -> None:
        """`ttl_s`: seconds for which an answer is used, unless get() is called with `since`."""
        self._call = call
        self._clock = clock
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry[_Answer]] = {}

    def get(self, key: _Key, *, since: float | None = None) -> _Answer:
        """Return the answer for a key, cached or from a new call.

        `since`: monotonic time after which the answer's call must have begun. None: an answer of age up to `ttl_s` is
        accepted, or an older one (STALE_S) while another thread's call is in flight. Exceptions of a call are raised in
        every caller that waited for it, so that a hundred jobs do not wait for the same server one after the other.
        Exceptions are not cached otherwise.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
        asked = self._clock.monotonic()
        if not entry.lock.acquire(blocking=False):
            if since is None and entry.answer is not None and entry.begun > asked - STALE_S:
                return entry.answer
            entry.lock.acquire()
        try:
            oldest = self._clock.monotonic() - self._ttl(entry) if since is None else since
            if entry.answer is not None and entry.begun > oldest:
                return entry.answer
            if entry.failed is not None and entry.failed[0] > asked:
                raise entry.failed[1]
            return self._refresh(key, entry)
        finally:
            entry.lock.release()

    def forget(self, key: _Key) -> None:
        """Invalidate the answer for a key."""
        with self._lock:
            self._entries.pop(key, None)

    def _ttl(self, entry: _Entry[_Answer]) -> float:
        return max(self._ttl_s, min(TTL_FACTOR * entry.took_s, STALE_S))

    def _refresh(self, key: _Key, entry: _Entry[_Answer]) -> _Answer:
        begun = self._clock.monotonic()
        try:
            entry.answer = answer = self._call(key)
        except LaunchInterruptedError:  # concerns this caller only
            raise
        except Exception as error:
            entry.failed = (self._clock.monotonic(), error)
            raise
        entry.begun, entry.took_s, entry.failed = begun, self._clock.monotonic() - begun, None
        return answer
