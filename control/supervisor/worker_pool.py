"""Thread pools that advance jobs, so that a slow or hanging call delays no other job.

Each target has separate threads for each lane (lanes.py), because calls to the same target tend to hang together,
and launches and terminations are slow. A job is advanced by one thread at a time. A further thread renews the
leases, so that no other process takes a job over during a long step. A step may be abandoned between any two of its
calls, as if the process were killed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping

from ..errors import StoreError
from .lanes import Lane
from .supervisor import Supervisor, Tick

log = logging.getLogger("cloudgpu.supervisor")

THREADS: Mapping[Lane, int] = {Lane.POLL: 16, Lane.LAUNCH: 16, Lane.END: 64}
"""Maximum threads per target, started on demand; higher for terminations, which mostly wait for shutdowns."""


class WorkerPool:
    """Thread pool that does the work of Supervisor.tick() without waiting for the steps. Not thread-safe."""

    def __init__(self, supervisor: Supervisor, on_done: Callable[[], None], *, threads: int | None = None) -> None:
        """Create a pool. `on_done`: called after each step, in the thread of the step.

        `threads`: maximum threads for each lane of a target; None: those in THREADS.
        """
        self._supervisor = supervisor
        self._on_done = on_done
        self._threads = THREADS if threads is None else dict.fromkeys(Lane, threads)
        self._lock = threading.Lock()
        self._busy: dict[str, bool] = {}
        """Jobs that are being advanced or wait for a thread; True: advance again at once afterwards."""
        self._teams: dict[tuple[str, Lane], _LaneThreads] = {}
        self._lines: dict[tuple[str, Lane], dict[str, None]] = {}
        """(target, lane) -> jobs waiting for a slow lane, in order. They are still polled for cancellation."""
        self._failed: StoreError | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._keep_leases, name="leases", daemon=True).start()

    def tick(self, *, woken: Collection[str] | None = None) -> Tick:
        """Hand every due job to a thread; `woken` as in Supervisor.due(). Raises StoreError, also of past steps."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        for due in self._supervisor.due(woken=woken):
            if not self._submit(due.job_id, due.target, Lane.POLL):
                with self._lock:
                    if due.job_id in self._busy:
                        self._busy[due.job_id] = True
                        continue
                self._supervisor.make_due(due.job_id)  # its step has just ended
        self._submit_waiting()
        return self._supervisor.next_tick()

    def _submit(self, job_id: str, target: str, lane: Lane) -> bool:
        """Give a job to the threads of a lane; return False if a thread has it already."""
        with self._lock:
            if job_id in self._busy:
                return False
            self._busy[job_id] = False
        self._team(target, lane).hand(job_id)
        return True

    def _team(self, target: str, lane: Lane) -> _LaneThreads:
        team = self._teams.get((target, lane))
        if team is None:

            def work(job_id: str) -> None:
                self._work(job_id, lane)

            team = self._teams[target, lane] = _LaneThreads(work, self._threads[lane], f"{lane.value}-{target}")
        return team

    def _submit_waiting(self) -> None:
        """Hand waiting jobs, in order, to their lanes' free threads."""
        for (target, lane), line in list(self._lines.items()):
            room = self._team(target, lane).room
            with self._lock:
                waiting = [job_id for job_id in line if job_id not in self._busy][: max(0, room)]
                for job_id in waiting:
                    del line[job_id]
            for job_id in waiting:
                self._submit(job_id, target, lane)

    @property
    def busy(self) -> int:
        """Number of jobs that are being advanced or wait for a thread."""
        with self._lock:
            return len(self._busy)

    def close(self, grace_s: float, *, release: bool = True) -> bool:
        """Start no more steps; return whether all running ones ended within `grace_s`.

        Leases are released, except for jobs in the middle of a step: an abandoned step may still continue.
        """
        self._closed.set()
        end = time.monotonic() + grace_s
        while (left := self._in_step()) and time.monotonic() < end:
            time.sleep(_CLOSE_POLL_S)
        if left:
            log.warning("steps were abandoned, the next supervisor goes on with them: %s", ", ".join(left))
        if release:
            try:
                self._supervisor.release(left)
            except StoreError as error:
                log.warning("%s", error)
        return not left

    def _in_step(self) -> list[str]:
        return [job_id for team in list(self._teams.values()) for job_id in team.in_hand()]

    def _work(self, job_id: str, lane: Lane) -> None:
        needed: Lane | None = None
        try:
            if not self._closed.is_set():
                needed = self._supervisor.advance(job_id, lane)
        except StoreError as error:
            self._failed = error
        except Exception:  # a bug outside of the step itself, logged again at the job's next step
            log.exception("%s: a look failed", job_id)
        finally:
            with self._lock:
                again = self._busy.pop(job_id)
                if needed is not None:
                    self._lines.setdefault((self._supervisor.target(job_id), needed), {}).setdefault(job_id)
            if again:
                self._supervisor.make_due(job_id)
            if not self._closed.is_set():
                self._on_done()

    def _keep_leases(self) -> None:
        while not self._closed.wait(self._supervisor.lease_s / 3):
            try:
                self._supervisor.renew()
            except StoreError as error:  # the store is down for all processes, so none can take over
                log.warning("leases were not renewed: %s", error)
            except Exception:
                log.exception("leases were not renewed")


_CLOSE_POLL_S = 0.02


class _LaneThreads:
    """The threads of one lane of a target, started on demand."""

    def __init__(self, work: Callable[[str], None], most: int, name: str) -> None:
        self._work = work
        self._name = name
        self._most = most
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._size = 0
        self._handed = 0
        """Number of jobs that wait or are being advanced."""
        self._in_hand: set[str] = set()

    def hand(self, job_id: str) -> None:
        """Add a job to the queue (FIFO), and start a thread if all are busy."""
        with self._lock:
            self._handed += 1
            grow = self._handed > self._size < self._most
            self._size += grow
        self._waiting.put(job_id)
        if grow:
            threading.Thread(target=self._run, name=f"{self._name}-{self._size}", daemon=True).start()

    @property
    def room(self) -> int:
        """Number of further jobs that would start at once."""
        with self._lock:
            return self._most - self._handed

    def in_hand(self) -> list[str]:
        with self._lock:
            return sorted(self._in_hand)

    def _run(self) -> None:
        while True:
            job_id = self._waiting.get()
            with self._lock:
                self._in_hand.add(job_id)
            try:
                self._work(job_id)
            finally:
                with self._lock:
                    self._in_hand.discard(job_id)
                    self._handed -= 1
