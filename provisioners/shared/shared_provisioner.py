"""Cache of a provisioner for all jobs of a process; if its environment variables change, a new one is created."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class CachedByEnvironment(Generic[_T]):
    """Factory that caches one object per set of values of some environment variables. Thread-safe."""

    def __init__(self, make: Callable[[], _T], *prefixes: str) -> None:
        """`prefixes`: prefixes of the variables that are the cache key, e.g. `AWS_`."""
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
