"""Write the observed state of running attempts to the store in batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..store.model import Attempt, Observation
from ..store.store import Store
from .outcomes import NodeView


class ObservationBuffer:
    """Buffer of steps and heartbeat times of attempts that are not written yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unwritten: dict[tuple[str, int], Observation] = {}
        self._newest: dict[str, tuple[int, Observation]] = {}
        """Job id -> number and newest state of its attempt."""

    def note(self, attempt: Attempt, nodes: Sequence[NodeView]) -> None:
        """Buffer the nodes' newest reports if they changed."""
        times = [node.last_report for node in nodes if node.last_report is not None]
        if not times:
            return
        seen = Observation(max(times), max((node.progress.step for node in nodes if node.progress), default=None))
        with self._lock:
            if self._newest.get(attempt.job_id) != (attempt.number, seen):
                self._newest[attempt.job_id] = attempt.number, seen
                self._unwritten[attempt.job_id, attempt.number] = seen

    def forget(self, job_id: str) -> None:
        """Drop the entry of a job that has ended."""
        with self._lock:
            self._newest.pop(job_id, None)

    def write(self, store: Store) -> None:
        """Write all buffered states in one transaction. Raises StoreError, and keeps the states for a retry."""
        with self._lock:
            batch, self._unwritten = self._unwritten, {}
        if not batch:
            return
        try:
            store.write_seen(batch)
        except Exception:
            with self._lock:
                self._unwritten = batch | self._unwritten
            raise
