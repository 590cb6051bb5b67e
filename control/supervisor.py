"""The supervisor: looks at every active job again and again, and takes one step for each (steps.py).

Nothing is decided upon what is only remembered: whoever holds a job's lease comes to the same step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from ..provisioners import get_provisioner
from ..provisioners.base import Provisioner, ProvisionError
from ..runtime.jobdir import JobDir, JobDirError
from . import logins
from .clock import Clock, JobTime, SystemClock
from .errors import StoreError
from .job_step import Memory, Tools
from .leases import LEASE_S, Leases, new_owner
from .model import Attempt, JobRow
from .steps import Step
from .store import LostRaceError, Store

log = logging.getLogger("cloudgpu.supervisor")

TRAINING_PATIENCE_S = 3_600.0
"""A job whose dir cannot be used for so long is given up, while its machines run: they may go on training. Likewise
while its checkpoint is being copied: nothing is paid for meanwhile, and there is more to lose."""
PATIENCE_S = 300.0
"""Likewise, when nothing runs that could be lost."""

_PAUSE_S = (1.0, 60.0)
"""After a failed step: at first, and at most."""
LOGIN_S = 30.0
"""After a failed step whose credentials were not accepted, in seconds at most: renewed ones are found within it."""
_UNTRIED_S = 300.0
"""Between two failures of a job dir: longer than the longest pause and the slowest try together. So it was not tried
meanwhile (a laptop was shut, or there was other trouble), and might have been of use."""
_QUIET_S = {"local": (0.1, 2.0)}
"""By target, between two looks at a job while nothing changes: at first, and at most."""
_QUIET_CLOUD_S = (1.0, 3.0)
"""Likewise in a cloud, where each look is paid for, and a hundred jobs are looked at as often as one."""
_LONGEST_QUIET_S = 2.0


@dataclass(slots=True)
class _Trouble:
    """Steps of a job that failed in a row. Times are steady."""

    message: str = ""
    times: int = 0
    dir_since: float = -math.inf
    """Since then the job dir could not be used, as often as that was tried."""
    dir_tried: float = -math.inf
    """When it was, the last time."""

    def without_dir(self, now: float, copied: float) -> float:
        """For how long the job dir, which has failed just now, has been of no use; `copied` as in Memory."""
        if now - self.dir_tried > _UNTRIED_S:
            self.dir_since = now
        self.dir_since = max(self.dir_since, copied)  # what gets on, however often it is cut off, is used
        self.dir_tried = now
        return now - self.dir_since


@dataclass(slots=True)
class _Watched:
    """What this process keeps in mind of a job."""

    memory: Memory
    target: str
    """Of the newest attempt; "" before there is one."""
    due: float = 0.0
    """Steady time of the next look."""
    quiet_s: float = 0.0
    """The last pause while nothing changed; 0: something did."""
    trouble: _Trouble | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """A job that is to be looked at."""

    job_id: str
    target: str
    """Whose calls the look may make; "": none's."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What a tick found."""

    active: int
    """Jobs that have not ended."""
    wait_s: float
    """The next tick is of no use sooner, unless somebody asks for something."""


def _open_dir(url: str) -> JobDir:
    """The dir of a job that was submitted: if it is gone, it is not made again."""
    return JobDir(url, make=False)


class Supervisor:
    """Advances all jobs of a store.

    tick() does it alone. Or several threads do (crew.py): then due() and outlook() are for one of them, advance() and
    hurry() are for one at a time for each job, and the rest is for any.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        provisioner: Callable[[str], Provisioner] = get_provisioner,
        open_dir: Callable[[str], JobDir] = _open_dir,
        owner: str | None = None,
        patience_s: float = PATIENCE_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self._clock = clock or SystemClock()
        self._store = store
        self._leases = Leases(store, self._clock, owner or new_owner(), lease_s)
        self._tools = Tools(store, self._clock, self._leases.owner, provisioner, open_dir)
        self._watched: dict[str, _Watched] = {}
        self._patience_s = patience_s

    @property
    def lease_s(self) -> float:
        """renew() is to be called about three times within it."""
        return self._leases.lease_s

    def tick(self, *, woken: bool = False) -> Tick:
        """One step for each job that is due, or for every job if `woken`. Raises StoreError only."""
        self._leases.renew_if_old()
        for due in self.due(woken=woken):
            self.advance(due.job_id)
        return self.outlook()

    def due(self, *, woken: bool = False) -> list[Due]:
        """The jobs to be looked at, those that wait for the longest first; if `woken`, all that are not in trouble."""
        active = self._store.active_jobs()
        for gone in self._watched.keys() - {job.id for job in active}:
            del self._watched[gone]
            self._leases.forget(gone)
        for job in active:
            watched = self._watched.get(job.id)
            if watched is None:
                self._watched[job.id] = _Watched(Memory(JobTime(self._clock, job.updated)), job.target)
            else:
                watched.target = job.target
        now = self._clock.monotonic()
        found = [
            (watched.due, Due(job_id, watched.target))
            for job_id, watched in self._watched.items()
            if now >= watched.due or (woken and watched.trouble is None)
        ]
        return [due for _, due in sorted(found, key=lambda pair: pair[0])]

    def outlook(self, but: Collection[str] = ()) -> Tick:
        """How many jobs there are, and when the next look is due, of all `but` those that are being looked at."""
        now = self._clock.monotonic()
        waits = [max(0.0, watched.due - now) for job_id, watched in self._watched.items() if job_id not in but]
        return Tick(active=len(self._watched), wait_s=min(waits, default=_LONGEST_QUIET_S))

    def advance(self, job_id: str) -> None:
        """One step for a job that is watched, if the lease is ours. Raises StoreError only."""
        watched = self._watched.get(job_id)
        if watched is None:
            return
        watched.due = self._clock.monotonic() + _PAUSE_S[0]  # whatever happens now, it does not happen without a pause
        job = self._store.job(job_id)
        if job is None or job.ended is not None:
            return
        self._advance(job, self._store.current_attempts([job]).get(job.id), watched)

    def hurry(self, job_id: str) -> None:
        """Somebody asked for something while the job was being looked at: look again at once."""
        watched = self._watched.get(job_id)
        if watched is not None and watched.trouble is None:
            watched.due = self._clock.monotonic()

    def renew(self) -> None:
        """Keep the leases of all jobs that this process holds, however long a step takes. Raises StoreError."""
        self._leases.renew()

    def release(self, but: Collection[str] = ()) -> None:
        """Give up all leases, `but` those of jobs in the middle of a step: another process may go on at once."""
        self._leases.release(but)

    def _advance(self, job: JobRow, attempt: Attempt | None, watched: _Watched) -> None:
        """An error in one job is told in its events and never stops the others."""
        try:
            if not self._leases.hold(job):
                watched.memory.unasked = 0  # somebody else may ask
                self._rest(watched)
                return
            step = Step(self._tools, watched.memory, job, attempt)
            changed = step.take()
            if not changed and job.not_before <= watched.memory.time.now():
                step.note_login("")
        except LostRaceError:
            changed = True
        except StoreError:
            raise
        except (JobDirError, ProvisionError) as error:
            self._note_login(job, attempt, watched, error)
            self._troubled(job, attempt, watched, error)
            return
        except Exception as error:  # a bug met by one job must not leave the machines of the others alone
            log.exception("%s: a step failed", job.id)
            self._troubled(job, attempt, watched, error)
            return
        watched.trouble = None
        if changed:
            watched.quiet_s, watched.due = 0.0, self._clock.monotonic()
        else:
            self._rest(watched)

    def _rest(self, watched: _Watched) -> None:
        first, most = _QUIET_S.get(watched.target, _QUIET_CLOUD_S)
        watched.quiet_s = min(max(watched.quiet_s * 1.2, first), most)
        watched.due = self._clock.monotonic() + watched.quiet_s

    def _note_login(self, job: JobRow, attempt: Attempt | None, watched: _Watched, error: Exception) -> None:
        """Say in the job's reason which credentials must be renewed, if they have caused the error."""
        if said := logins.trouble(error):
            with suppress(LostRaceError):
                Step(self._tools, watched.memory, job, attempt).note_login(said)

    def _troubled(self, job: JobRow, attempt: Attempt | None, watched: _Watched, error: Exception) -> None:
        """A step failed: pause, and after too long without a job dir give the job up."""
        expected, by_job_dir = isinstance(error, (JobDirError, ProvisionError)), isinstance(error, JobDirError)
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        by_login = logins.trouble(error) != ""
        now = self._clock.monotonic()
        trouble = watched.trouble = watched.trouble or _Trouble()
        if trouble.message != message:
            trouble.message = message
            log.warning("%s: %s", job.id, message)
            self._store.add_event(job, "trouble", message, watched.memory.time.now())
        trouble.times += 1
        if by_job_dir:
            watched.memory.job_dirs.clear()  # their credentials were read when they were opened: there may be new ones
        pause = min(_PAUSE_S[0] * 2.0 ** min(trouble.times - 1, 30), LOGIN_S if by_login else _PAUSE_S[1])
        watched.due = now + pause
        trains = attempt is not None and attempt.state == "running" and not watched.memory.machines_gone
        moves = attempt is not None and attempt.state == "launching" and watched.memory.moving == attempt.number
        patience = TRAINING_PATIENCE_S if trains or moves else self._patience_s
        if by_job_dir and not by_login and trouble.without_dir(now, watched.memory.copied) >= patience:
            reason = f"given up after {patience:.0f} s: {message}"
            with suppress(LostRaceError):
                Step(self._tools, watched.memory, job, attempt).give_up(reason)
