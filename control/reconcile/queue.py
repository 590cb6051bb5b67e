"""The order in which jobs that wait for this machine are started: by priority, then first in, first out.

A job may start if, after all jobs ahead of it have been given what they wait for, enough is left: a large job is not
overtaken by small ones that want the same GPUs, and jobs that want other GPUs, or none, do not wait for it.
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
"""A job whose next try is later than this many seconds from now does not take part: others go first meanwhile."""
_FRESH_S = 0.2
"""The store is asked for the waiting jobs this often, at most."""
_PAUSE_S = (0.25, 30.0)
"""Between two looks of a waiting job: at least, and at most."""
_PAUSE_PER_PLACE_S = 0.1
_WANTED_S = 2.0
"""The queue is taken to be empty if no job has asked for its place for this many seconds."""


class Place(NamedTuple):
    """A job's place in the queue."""

    number: int
    """From 1, among the jobs that wait for the same."""
    ahead: Mapping[str, int]
    """The same of the jobs ahead, as far as they wait for what this one wants."""

    @property
    def pause_s(self) -> float:
        """Seconds until the job is to be looked at again: the next ones soon, the others the later the farther."""
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
    """The queue of one store, cached for all its jobs. Threads may share it."""

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
        """Return whether jobs have asked for their places lately: what others hold is wanted as soon as it is free."""
        with self._lock:
            return bool(self._places) and self._clock.monotonic() - self._read < _WANTED_S

    def skip(self, job_id: str) -> None:
        """Let other jobs pass one whose steps fail, until its next step succeeds."""
        with self._lock:
            self._skipped.add(job_id)

    def restore(self, job_id: str) -> None:
        """Give a job its place back, or forget it."""
        with self._lock:
            self._skipped.discard(job_id)
