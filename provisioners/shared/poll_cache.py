"""Cache of answers of a cloud's API that the jobs of a process share: concurrent callers share one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from .api_calls import LaunchInterruptedError
from .clock import Clock

TTL_S = 3.0
"""Default age up to which a cached answer is used; launch() and terminate() ask for a fresh one by `since`."""
TTL_FACTOR = 4.0
"""An answer that took long, e.g. a list of a thousand machines, is used for this multiple of the time it took."""
STALE_S = 30.0
"""While a call is in flight, callers use an answer of up to this age instead of waiting for a slow server. Also the
longest time for which an answer is used because it took long."""

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Entry(Generic[_Answer]):
    """The last answer for one key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held during the call."""
        self.begun = float("-inf")
        """Monotonic time at which the call that returned `answer` began."""
        self.took_s = 0.0
        self.answer: _Answer | None = None
        self.failed: tuple[float, Exception] | None = None
        """When the last call failed, and its error."""


class PollCache(Generic[_Key, _Answer]):
    """Single-flight TTL cache with a lock for each key: a key whose call hangs delays no other key. Thread-safe."""

    def __init__(self, call: Callable[[_Key], _Answer], clock: Clock, *, ttl_s: float = TTL_S) -> None:
        """`ttl_s`: seconds for which an answer is used, unless `get` asks for a fresher one."""
        self._call = call
        self._clock = clock
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry[_Answer]] = {}

    def get(self, key: _Key, *, since: float | None = None) -> _Answer:
        """Return the answer for a key.

        `since`: monotonic time; the answer's call began later. None: an answer of at most `ttl_s` is returned, or an
        older one while another thread's call is in flight. Raises what the call raises, also in the callers that waited
        for it: a hundred jobs do not wait for the same server one after the other. Errors are not cached.
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
        """Drop the answer for a key."""
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
