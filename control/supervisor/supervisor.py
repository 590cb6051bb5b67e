"""Supervisor: polls every active job and takes single steps for it (reconcile/steps/).

Memory is only a cache: any process that holds a job's lease decides on the same step.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from ...jobspecs.targets import info
from ...protocol.jobdir import JobDir, JobDirError
from ...provisioners import get_provisioner
from ...provisioners.base import Provisioner, ProvisionError
from ...provisioners.shared.accounts import OTHER_ACCOUNT
from ...provisioners.shared.clock import Clock, SystemClock
from ...storage.stores import Buckets
from ...storage.urls import local_folder
from ..clock import JobTime
from ..errors import DamagedRowError, StoreError
from ..reconcile import login_hints
from ..reconcile.steps.context import Memory, Tools
from ..reconcile.steps.step import Step
from ..store.model import QUEUES, Attempt, JobRow
from ..store.store import ActiveJob, LostRaceError, Store
from .due_times import Due, DueTimes
from .foreign_account import is_unsupervised, unsupervised_reason
from .job_memory import Trouble, Watched
from .lanes import Lane, lane_of
from .leases import LEASE_S, Leases, new_owner

log = logging.getLogger("cloudgpu.supervisor")

TRAINING_RETRY_TIMEOUT_S = 3_600.0
"""Seconds for which the job dir may be unusable, while the job's machines run, before the job is given up: they may
still train, or have ended and cost nothing. Also applies while a checkpoint is copied, because nothing is paid then."""
RETRY_TIMEOUT_S = 900.0
"""Seconds for which the job dir of any other job may be unusable before it is given up: exceeds a short outage."""

_UNRECORDED = 15
"""Number of tries, a second apart, before a job without machines gets the reason that it needs another account's
credentials. Until then, a supervisor with these credentials may take the job."""
_PAUSE_S = (1.0, 60.0)
"""First and maximum pause in seconds after a failed step."""
LOGIN_S = 30.0
"""Maximum pause in seconds after a step whose credentials were refused, so that renewed ones are used soon."""
_QUIET_WANTED_S = 0.4
"""Maximum seconds between two polls of a running job while other jobs wait in its target's queue, so that the next job
starts soon after this one has ended."""
_QUIET_CLOUD_S = (1.0, 3.0)
"""First and maximum seconds between two polls of a job while nothing changes, unless the target's poll_s overrides
them. They bound the cost of the polls of a cloud, which grows with the number of jobs."""
_CHANGES_S = 1.0
"""Seconds between two queries for changed jobs, unless a command names a job."""
_LIST_S = 30.0
"""Seconds between two lists of all active jobs, which find changes without an event and events that became visible
out of order."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Result of a tick: the number of jobs, and the time until the next useful tick."""

    active: int
    """Number of jobs that have not ended."""
    wait_s: float
    """Seconds until the next tick is useful, unless there is a wake-up before."""


def _opener() -> Callable[[str], JobDir]:
    """Return a function that opens job dirs. It does not recreate a missing one, and shares a bucket's connections."""
    buckets = Buckets()
    return lambda url: JobDir(url, make=False, bucket=buckets.of(url))


class Supervisor:
    """Advances all jobs of a store.

    tick() does so in one thread. In a pool of threads (worker_pool.py), one thread calls due() and next_tick(), a job
    is advanced by one thread at a time, and all other methods are thread-safe.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        provisioner: Callable[[str], Provisioner] = get_provisioner,
        open_dir: Callable[[str], JobDir] | None = None,
        owner: str | None = None,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self._clock = clock or SystemClock()
        self._store = store
        self._leases = Leases(store, self._clock, owner or new_owner(), lease_s)
        self._tools = Tools(store, self._clock, self._leases.owner, provisioner, open_dir or _opener())
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()
        """Guards the keys of `_watched`."""
        self._due_times = DueTimes()
        self._ask_at = self._list_at = -math.inf
        """Monotonic times of the next query for changes and of the next list of active jobs.

        Kept as sums, so that due() and next_tick() agree: `now - asked >= S` may be false although `asked + S <= now`.
        """
        self._last_event = 0
        self._retry_timeout_s = retry_timeout_s

    @property
    def lease_s(self) -> float:
        """Lease time in seconds; renew() should be called about three times within it."""
        return self._leases.lease_s

    def tick(self, *, woken: Collection[str] | None = None) -> Tick:
        """Take one step for each job that is due; `woken` as in due(). Raises only StoreError."""
        if self._leases.renew_if_old():
            self._tools.seen.write(self._store)
        for due in self.due(woken=woken):
            self.advance(due.job_id)
        return self.next_tick()

    def due(self, *, woken: Collection[str] | None = None) -> list[Due]:
        """Return the jobs that are due, earliest first, including changed ones. Raises StoreError.

        `woken`: ids of jobs that a command has changed; empty: query the store at once; None: there was no wake-up.
        """
        now = self._clock.monotonic()
        named = set(woken or ())
        if now >= self._list_at:
            self._list_all(now)
        elif (woken is not None and not named <= self._watched.keys()) or now >= self._ask_at:
            self._read_changes(now)
            if not named <= self._watched.keys():
                # It has ended; or its event has the number of one that was deleted with a removed job, as SQLite uses
                # the newest numbers again.
                self._list_all(now)
        self._tools.watched = len(self._watched)
        for job_id in named:
            watched = self._watched.get(job_id)
            if watched is not None:
                watched.expire()
                self.make_due(job_id)
        return [
            Due(job_id, watched.target)
            for job_id in self._due_times.take(self._clock.monotonic())
            if (watched := self._watched.get(job_id)) is not None
        ]

    def next_tick(self) -> Tick:
        """Return the number of jobs and the time of the next useful tick. Jobs being advanced are not due."""
        now = self._clock.monotonic()
        wait_s = min(self._due_times.next(), self._ask_at) - now
        return Tick(active=len(self._watched), wait_s=max(0.0, wait_s))

    def advance(self, job_id: str, lane: Lane | None = None) -> Lane | None:
        """Take one step of a watched job if this process holds the lease. Raises only StoreError.

        `lane`: lane of the calling thread; None: it may take any step. If the step needs another lane, that lane is
        returned and the job stays due, because its goal or a limit may end it before the step is taken.
        """
        watched = self._watched.get(job_id)
        if watched is None:
            return None
        due = self._clock.monotonic() + _PAUSE_S[0]  # default, so that no error causes a busy loop
        needed = None
        try:
            rows = self._rows(job_id, watched)
            if rows is None:
                self._forget(job_id)
            else:
                due, needed = self._advance(*rows, watched, lane)
        except DamagedRowError as error:  # only an operator can repair it; the other jobs continue
            if watched.damage != str(error):
                log.warning("%s", error)
            watched.damage, due = str(error), self._clock.monotonic() + _PAUSE_S[1]
        finally:
            if job_id in self._watched:
                self._due_times.put(job_id, due)
        return needed

    def target(self, job_id: str) -> str:
        """Return the target of the job's newest attempt; "" without an attempt."""
        watched = self._watched.get(job_id)
        return "" if watched is None else watched.target

    def make_due(self, job_id: str) -> None:
        """Make a job due at once, unless its steps fail: then its backoff is kept."""
        watched = self._watched.get(job_id)
        if watched is not None and watched.trouble is None:
            self._due_times.put(job_id, self._clock.monotonic())

    def _list_all(self, now: float) -> None:
        """Read all active jobs: at first, and then periodically to find changes without an event."""
        last = self._store.last_event()
        active = self._store.active_jobs()
        for gone in self._watched.keys() - {job.id for job in active}:
            self._forget(gone)
        for job in active:
            self._note(job)
        self._ask_at, self._list_at = now + _CHANGES_S, now + _LIST_S
        self._last_event = last

    def _read_changes(self, now: float) -> None:
        """Read the jobs that have changed since the last query."""
        changes = self._store.changes(self._last_event)
        for gone in changes.ended:
            self._forget(gone)
        for job in changes.active:
            self._note(job)
        self._ask_at, self._last_event = now + _CHANGES_S, changes.last

    def _note(self, job: ActiveJob) -> None:
        """Start to watch a job; make a watched job due if its row has changed."""
        watched = self._watched.get(job.id)
        if watched is None:
            with self._lock:
                self._watched[job.id] = Watched(Memory(JobTime(self._clock, job.updated)), job.target)
            self._due_times.put(job.id, self._clock.monotonic())
            return
        watched.target = job.target
        if watched.job is None:
            watched.changes += 1  # a read is in progress, and its result may be stale
        elif (watched.job.updated, watched.job.goal) != (job.updated, job.goal):
            watched.expire()
            self.make_due(job.id)

    def _forget(self, job_id: str) -> None:
        with self._lock:
            self._watched.pop(job_id, None)
        self._due_times.remove(job_id)
        self._leases.forget(job_id)
        self._tools.seen.forget(job_id)
        self._tools.queue.restore(job_id)

    def _rows(self, job_id: str, watched: Watched) -> tuple[JobRow, Attempt | None] | None:
        """Return the job and its newest attempt, read again if they may have changed; None: it has ended."""
        if watched.job is not None:
            return watched.job, watched.attempt
        changes = watched.changes
        job = self._store.job(job_id)
        if job is None or job.ended is not None:
            return None
        attempt = self._store.current_attempts([job]).get(job_id) if job.attempt else None
        if attempt is not None:
            watched.target = attempt.offer.cloud
        if changes == watched.changes:
            watched.attempt, watched.job = attempt, job
        return job, attempt

    def renew(self) -> None:
        """Renew all leases of this process and write the observed states. Raises StoreError."""
        self._leases.renew()
        self._tools.seen.write(self._store)

    def release(self, but: Collection[str] = ()) -> None:
        """Release all leases for other processes, except those of jobs in the middle of a step (`but`)."""
        self._leases.release(but)

    def _advance(
        self, job: JobRow, attempt: Attempt | None, watched: Watched, lane: Lane | None
    ) -> tuple[float, Lane | None]:
        """Take a step; return the monotonic time at which the job is due again, and the lane it needs if not `lane`.

        An error in one job is written to its events and never stops the others.
        """
        try:
            return self._step(job, attempt, watched, lane)
        except LostRaceError:
            return self._changed(watched), None
        except DamagedRowError as error:
            return self._troubled(job, attempt, watched, error), None
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one job's bug must not stop the supervision of others
            return self._failed(job, attempt, watched, error), None

    def _step(
        self, job: JobRow, attempt: Attempt | None, watched: Watched, lane: Lane | None
    ) -> tuple[float, Lane | None]:
        if not self._leases.acquire(job):
            watched.memory.first_launch_of = 0  # another process may send the request
            watched.expire()
            return self._rest(watched), None
        if lane is Lane.POLL and (needed := lane_of(job, attempt, watched.memory.time.now())) is not lane:
            return self._rest(watched), needed
        step = Step(self._tools, watched.memory, job, attempt)
        watched.memory.pause_s = 0.0
        changed = step.take()
        self._tools.queue.restore(job.id)
        watched.trouble = None
        if not changed and job.not_before <= watched.memory.time.now() and step.note_login(""):
            watched.expire()
        if is_unsupervised(job):
            self._store.set_reason(job, "", self._leases.owner)
            watched.expire()
        return self._changed(watched) if changed else self._rest(watched), None

    def _changed(self, watched: Watched) -> float:
        """Return the due time of a job whose rows have changed: now."""
        watched.trouble, watched.quiet_s = None, 0.0
        watched.expire()
        return self._clock.monotonic()

    def _failed(self, job: JobRow, attempt: Attempt | None, watched: Watched, error: Exception) -> float:
        """Handle a failed step; return the monotonic time of the retry."""
        if isinstance(error, ProvisionError) and error.code == OTHER_ACCOUNT:
            return self._other_account(job, attempt, watched, error)
        self._note_login(job, attempt, watched, error)
        if not isinstance(error, (JobDirError, ProvisionError)):
            log.error("%s: a step failed", job.id, exc_info=error)
        return self._troubled(job, attempt, watched, error)

    def _rest(self, watched: Watched) -> float:
        """Return the due time of a job that has not changed."""
        if watched.memory.pause_s:
            return self._clock.monotonic() + watched.memory.pause_s
        first, most = info(watched.target).poll_s or _QUIET_CLOUD_S
        if watched.target in QUEUES and self._tools.queue.is_waited_for():
            most = _QUIET_WANTED_S
        watched.quiet_s = min(max(watched.quiet_s * 1.2, first), most)
        return self._clock.monotonic() + watched.quiet_s

    def _other_account(self, job: JobRow, attempt: Attempt | None, watched: Watched, error: ProvisionError) -> float:
        """Write in the job's reason that it needs another account's credentials; return the time of the retry.

        Before the job's launch the reason is delayed, as a supervisor with credentials of that account may take the
        lease.
        """
        tries = watched.trouble.times if watched.trouble else 0
        has_machines = attempt is not None and attempt.launched is not None
        if not has_machines and tries < _UNRECORDED:
            watched.trouble = watched.trouble or Trouble()
            watched.trouble.times += 1
            watched.expire()
            due = self._clock.monotonic() + _PAUSE_S[0]
        else:
            reason = unsupervised_reason(error, has_machines=has_machines)
            if reason != job.reason:
                self._store.set_reason(job, reason, self._leases.owner)
            due = self._troubled(job, attempt, watched, error)
        self._leases.give_back(job)
        return due

    def _note_login(self, job: JobRow, attempt: Attempt | None, watched: Watched, error: Exception) -> None:
        """Write in the job's reason which credentials must be renewed, if they caused the error."""
        if said := login_hints.login_message(error):
            has_machines = attempt is not None and attempt.launched is not None
            said = f"{said}. {login_hints.consequence(watched.target, has_machines=has_machines)}"
            with suppress(LostRaceError):
                Step(self._tools, watched.memory, job, attempt).note_login(said)
                watched.expire()

    def _troubled(self, job: JobRow, attempt: Attempt | None, watched: Watched, error: Exception) -> float:
        """Record a failed step; return the monotonic time of the retry. Gives up a job that fails for too long."""
        is_expected, by_job_dir = isinstance(error, (JobDirError, ProvisionError)), isinstance(error, JobDirError)
        is_ours = is_expected or isinstance(error, StoreError)
        message = str(error) if is_ours else f"{type(error).__name__}: {error}"
        by_login = login_hints.login_message(error) != ""
        now = self._clock.monotonic()
        trouble = watched.trouble = watched.trouble or Trouble()
        if trouble.message != message:
            trouble.message = message
            log.warning("%s: %s", job.id, message)
            self._store.add_event(job, "trouble", message, watched.memory.time.now())
        trouble.times += 1
        self._tools.queue.skip(job.id)
        if by_job_dir:
            watched.memory.reopen_dirs()
        pause = min(_PAUSE_S[0] * 2.0 ** min(trouble.times - 1, 30), LOGIN_S if by_login else _PAUSE_S[1])
        runs = attempt is not None and attempt.state == "running"
        # Machines that are gone cost nothing, and an object store recovers; their local folder does not.
        gone = watched.memory.machines_gone and local_folder(job.dir_on(watched.target)) is not None
        moves = attempt is not None and attempt.state == "launching" and watched.memory.moving == attempt.number
        patience = TRAINING_RETRY_TIMEOUT_S if (runs and not gone) or moves else self._retry_timeout_s
        reason = ""
        if not _is_out_of_reach(error):  # giving up would only hide why its machines keep running
            reason = trouble.patience.reason_to_end(
                job, attempt, now=now, job_now=watched.memory.time.now(), message=message, is_expected=is_expected
            )
        if by_job_dir and not by_login and trouble.without_dir(now, watched.memory.copied) >= patience:
            reason = f"given up after {patience:.0f} s: {message}"
        if reason:
            self._give_up(Step(self._tools, watched.memory, job, attempt), job, reason)
        watched.expire()
        return now + pause

    @staticmethod
    def _give_up(step: Step, job: JobRow, reason: str) -> None:
        try:
            step.give_up(reason)
        except LostRaceError:
            return
        except StoreError:
            raise
        except Exception:
            log.exception("%s: it could not be given up", job.id)


def _is_out_of_reach(error: Exception) -> bool:
    """Return whether the error requires other credentials: of another account, or renewed ones."""
    return isinstance(error, ProvisionError) and (error.code == OTHER_ACCOUNT or error.error_class == "expired")
