"""Queue of the jobs that wait for this machine: by priority, then first in, first out.

A job may start if enough is left after all jobs ahead of it get what they wait for. A large job is therefore not
overtaken by small ones that want the same GPUs, and does not delay jobs that want other GPUs or none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...provisioners.shared.clock import Clock
from ..store.model import Waiting

if TYPE_CHECKING:
    from ..store.store import Store

SOON_S = 1.0
"""Seconds. A job whose next try is later than this is left out of the queue, so that others can pass it."""
_FRESH_S = 0.2
"""Minimum seconds between two queries of the store for waiting jobs."""
_PAUSE_S = (0.25, 30.0)
"""Minimum and maximum seconds between two polls of a waiting job."""
_PAUSE_PER_PLACE_S = 0.1
_WANTED_S = 2.0
"""Seconds without a call to place() after which the queue is assumed to be empty."""


class Place(NamedTuple):
    """A job's position in the queue."""

    number: int
    """Position, from 1, among the jobs that wait for the same resources."""
    ahead: Mapping[str, int]
    """Resource that this job wants -> amount of it that the jobs ahead wait for."""

    @property
    def pause_s(self) -> float:
        """Seconds until the next poll of the job; longer for jobs farther back."""
        return min(max(_PAUSE_PER_PLACE_S * self.number, _PAUSE_S[0]), _PAUSE_S[1])


def places(waiting: Sequence[Waiting]) -> dict[str, Place]:
    """Return the place of each job; `waiting` is in the order of submission."""
    found: dict[str, Place] = {}
    ahead: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    for job in sorted(waiting, key=lambda job: -job.priority):
        number = 1 + max((jobs[name] for name in job.needs), default=0)
        found[job.job_id] = Place(number, {name: ahead[name] for name in job.needs})
        ahead.update(job.needs)
        jobs.update(job.needs.keys())
    return found


class Queue:
    """Cached queue of one store, shared by all its jobs. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._read = float("-inf")
        self._places: dict[str, Place] = {}
        self._skipped: set[str] = set()

    def place(self, job_id: str, now: float) -> Place:
        """Return a job's place; `now` in epoch seconds. Raises StoreError."""
        with self._lock:
            steady = self._clock.monotonic()
            if job_id not in self._places or steady - self._read >= _FRESH_S:
                waiting = self._store.waiting(now + SOON_S)
                self._places = places([job for job in waiting if job.job_id not in self._skipped - {job_id}])
                self._read = steady
            return self._places.get(job_id) or Place(1, {})

    def is_waited_for(self) -> bool:
        """Return whether a job has asked for its place within the last _WANTED_S seconds: it waits for resources
        that other jobs hold."""
        with self._lock:
            return bool(self._places) and self._clock.monotonic() - self._read < _WANTED_S

    def skip(self, job_id: str) -> None:
        """Let other jobs pass a job whose steps fail, until its next step succeeds."""
        with self._lock:
            self._skipped.add(job_id)

    def restore(self, job_id: str) -> None:
        """Undo skip(): the job gets its place in the queue again. Also called for a job that has ended."""
        with self._lock:
            self._skipped.discard(job_id)
