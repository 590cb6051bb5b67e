"""Priority queue of due times, which finds the due jobs without checking the others."""

from __future__ import annotations

import heapq
import math
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Due:
    """A job whose next step is due."""

    job_id: str
    target: str
    """Cloud that the step may call; "": none."""


class DueTimes:
    """Job ids by monotonic due time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, str]] = []
        self._valid: dict[str, int] = {}
        """Job id -> number of the job's newest entry in the heap; older entries are skipped."""
        self._count = 0

    def put(self, job_id: str, due: float) -> None:
        """Set a job's due time; replaces its earlier one."""
        with self._lock:
            self._count += 1
            self._valid[job_id] = self._count
            heapq.heappush(self._heap, (due, self._count, job_id))
            if len(self._heap) > 4 * len(self._valid) + 64:
                self._compact()

    def remove(self, job_id: str) -> None:
        """Forget a job."""
        with self._lock:
            self._valid.pop(job_id, None)

    def take(self, now: float) -> list[str]:
        """Remove the jobs that are due and return them, the earliest first."""
        found = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                _, number, job_id = heapq.heappop(self._heap)
                if self._valid.get(job_id) == number:
                    del self._valid[job_id]
                    found.append(job_id)
        return found

    def next(self) -> float:
        """Return the earliest due time; infinity: there is none."""
        with self._lock:
            while self._heap and self._valid.get(self._heap[0][2]) != self._heap[0][1]:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else math.inf

    def _compact(self) -> None:
        self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
