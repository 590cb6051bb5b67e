"""Leases on jobs: one process at a time advances a job; if it dies, another takes over.

A lease is an owner and a heartbeat counter in the job's row. Its holder increments the counter, also during a long
step. Another process takes the lease over when it knows that the owner is dead, or when the counter has not changed
for LEASE_S of its own monotonic clock. Clocks of different computers are never compared. A holder that was suspended
for too long loses its next write, which compares the owner.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ...provisioners.shared.clock import Clock
from ..store.model import JobRow
from ..store.store import Store
from .supervisor_lock import process_space

LEASE_S = 15.0


class Leases:
    """The leases of one supervisor. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, owner: str, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._clock = clock
        self.owner = owner
        self.lease_s = lease_s
        self._lock = threading.Lock()
        self._renewed: dict[str, float] = {}
        self._all_renewed = clock.monotonic()
        self._watched: dict[str, tuple[tuple[str, int], float]] = {}

    def acquire(self, job: JobRow) -> bool:
        """Return whether this process may advance the job; takes or renews the lease if necessary."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._renewed.get(job.id, -math.inf) < self.lease_s * 2 / 3:
                return True  # the row may be older than the lease
            if job.lease_owner != self.owner and not self._is_free(job, now):
                return False
            if not self._store.take_lease(job, self.owner):
                return False
            self._renewed[job.id] = now
            self._watched.pop(job.id, None)
            return True

    def renew(self) -> None:
        """Renew the lease of every job that this process still holds."""
        with self._lock:
            now = self._clock.monotonic()
            self._renewed = dict.fromkeys(self._store.renew_leases(self.owner), now)
            self._all_renewed = now

    def renew_if_old(self) -> bool:
        """Renew all leases if a third of their time has passed since the last renewal; return whether it had."""
        old = self._clock.monotonic() - self._all_renewed >= self.lease_s / 3
        if old:
            self.renew()
        return old

    def forget(self, job_id: str) -> None:
        with self._lock:
            self._renewed.pop(job_id, None)
            self._watched.pop(job_id, None)

    def give_back(self, job: JobRow) -> None:
        """Release the lease of a job for another process."""
        with self._lock:
            self._store.release_lease(job, self.owner)
            self._renewed.pop(job.id, None)

    def release(self, but: Collection[str] = ()) -> None:
        """Release all leases except those of `but`, so that the next process need not wait."""
        with self._lock:
            self._store.release_leases(self.owner, but)
            self._renewed = {job_id: at for job_id, at in self._renewed.items() if job_id in but}

    def _is_free(self, job: JobRow, now: float) -> bool:
        if job.lease_owner is None or is_dead(job.lease_owner):
            return True
        beat = (job.lease_owner, job.lease_beat)
        seen, since = self._watched.get(job.id, (None, now))
        if seen != beat:
            self._watched[job.id] = (beat, now)
            return False
        return now - since >= self.lease_s


def new_owner() -> str:
    """Return a lease owner for this process: `<process space>/<process id>/<nonce>`."""
    return f"{process_space()}/{os.getpid()}/{secrets.token_hex(4)}"


def is_dead(owner: str) -> bool:
    """Return whether the owner is a dead process of this computer; False if that is unknown."""
    space, _, rest = owner.rpartition("/")[0].rpartition("/")
    if space != process_space() or not rest.isdecimal():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return _is_zombie(rest)


def _is_zombie(process: str) -> bool:
    """Return whether a process has ended but its parent, e.g. the command that started a supervisor, still runs."""
    with suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[:1] == ["Z"]
    return False
