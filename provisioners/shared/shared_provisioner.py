"""The provisioner that all jobs of a process share, until the settings in the environment change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class PerSettings(Generic[_T]):
    """Make one object for each state of some environment variables. Thread-safe."""

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
