"""What the jobs of a process share on a target: its provisioner, and what was seen of its machines a moment ago."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from .calls import LaunchInterruptedError
from .clock import Clock

WINDOW_S = 3.0
"""So old a look may be for watching; what decides about a launch or an end asks for a fresh one."""
PAUSE = 4.0
"""A look that takes long, as of a thousand machines, is used for this many times as long as it took."""
STALE_S = 30.0
"""While a look is under way, one that is at most this many seconds old is used: nothing waits for a slow server then.
Also the longest time for which a look is used because it took long."""

_Key = TypeVar("_Key", bound=Hashable)
_Seen = TypeVar("_Seen")
_T = TypeVar("_T")


class _View(Generic[_Seen]):
    """What was seen under one key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun = float("-inf")
        """Steady time at which the look that found `seen` was begun."""
        self.took = 0.0
        """Seconds that it took."""
        self.seen: _Seen | None = None
        self.failed: tuple[float, Exception] | None = None
        """When the last look failed, and how."""


class Looks(Generic[_Key, _Seen]):
    """Looks that are shared: whoever asks while another asks gets that one's answer, if it is fresh enough."""

    def __init__(self, ask: Callable[[_Key], _Seen], clock: Clock, *, lasts_s: float = WINDOW_S) -> None:
        """`lasts_s`: seconds for which an answer is used where no fresher one is asked for."""
        self._ask = ask
        self._clock = clock
        self._lasts_s = lasts_s
        self._lock = threading.Lock()
        self._views: dict[_Key, _View[_Seen]] = {}

    def at(self, key: _Key, *, since: float | None = None) -> _Seen:
        """What `ask` says of a key.

        `since`: no look that was begun before this steady time will do; without, one of the last `lasts_s` does, and an
        older one while another thread asks. Raises what `ask` raises; also to those who have waited for that look: a
        hundred jobs must not wait for the same server one after the other.
        """
        with self._lock:
            view = self._views.setdefault(key, _View())
        asked = self._clock.monotonic()
        if not view.lock.acquire(blocking=False):
            if since is None and view.seen is not None and view.begun > asked - STALE_S:
                return view.seen
            view.lock.acquire()
        try:
            oldest = self._clock.monotonic() - self._lasts(view) if since is None else since
            if view.seen is not None and view.begun > oldest:
                return view.seen
            if view.failed is not None and view.failed[0] > asked:
                raise view.failed[1]
            return self._look(key, view)
        finally:
            view.lock.release()

    def forget(self, key: _Key) -> None:
        """Ask anew the next time."""
        with self._lock:
            self._views.pop(key, None)

    def _lasts(self, view: _View[_Seen]) -> float:
        return max(self._lasts_s, min(PAUSE * view.took, STALE_S))

    def _look(self, key: _Key, view: _View[_Seen]) -> _Seen:
        begun = self._clock.monotonic()
        try:
            view.seen = seen = self._ask(key)
        except LaunchInterruptedError:  # says nothing to the other jobs that wait for this look
            raise
        except Exception as error:
            view.failed = (self._clock.monotonic(), error)
            raise
        view.begun, view.took, view.failed = begun, self._clock.monotonic() - begun, None
        return seen


class PerSettings(Generic[_T]):
    """One object for all jobs of this process, and another once the settings in the environment are others."""

    def __init__(self, make: Callable[[], _T], *prefixes: str) -> None:
        """`prefixes`: of the variables that are its settings, e.g. `AWS_`."""
        self._make = make
        self._prefixes = prefixes
        self._lock = threading.Lock()
        self._made: dict[frozenset[tuple[str, str]], _T] = {}

    def __call__(self) -> _T:
        settings = frozenset(item for item in os.environ.items() if item[0].startswith(self._prefixes))
        with self._lock:
            if settings not in self._made:
                self._made[settings] = self._make()
            return self._made[settings]
