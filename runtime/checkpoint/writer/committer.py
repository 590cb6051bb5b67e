"""Commit saves whose parts are all written, and remove old checkpoints; only rank 0's writer does this."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ....protocol.checkpoint_names import Name
from ....protocol.jobdir import JobDirError
from ..disk_space import make_room
from ..errors import FencedError
from ..store import CheckpointStore, DiskFullError

if TYPE_CHECKING:
    from .slots import Slot

TRIES = 3
"""Maximum number of attempts to commit a save while the trainer runs, since the trainer can save again."""
_PAUSES_S = {True: (0.005, 0.5), False: (0.05, 2.0)}
"""Minimum and maximum seconds between two checks for other ranks' parts: in a local folder, in an object store."""


@dataclass(slots=True)
class Staged:
    """One rank's part of a save, as submitted to the writer."""

    name: Name
    slot: Slot | None
    """Slot that holds the data; None: an earlier writer process wrote this part, and only the commit remains."""
    size: int
    manifest: bytes
    finished: bool
    keep: int
    rows: bytes
    submitted: float
    """time.monotonic() of submit(); the clock is the same in all processes of a machine."""


class Finish(Protocol):
    """Callback that reports the outcome of a save."""

    def __call__(
        self, staged: Staged, *, written: bool, committed: bool, error: str | None, fenced: bool = False
    ) -> None: ...


@dataclass(slots=True)
class _Waiting:
    staged: Staged
    retry_timeout_s: float
    """Seconds to wait for other ranks' parts once the trainer has exited."""
    until: float = float("inf")
    """time.monotonic() at which to stop waiting. Infinite while the trainer runs: the trainer can abandon the save when
    another rank has failed, or replace it by a later save.
    """
    missing: str = ""
    """Reason why the save cannot be committed yet."""
    failures: int = 0


class Committer:
    """Committer of the saves that rank 0 has written, oldest first. Not thread-safe.

    finish           called with the outcome of each save
    may_still_write  returns whether a rank may still write its part
    note             sends a warning to the trainer
    """

    def __init__(
        self,
        store: CheckpointStore,
        world: int,
        finish: Finish,
        may_still_write: Callable[[int], bool],
        note: Callable[[str], None],
    ) -> None:
        self._store, self._world, self._finish, self._may_still_write, self._note = (
            store,
            world,
            finish,
            may_still_write,
            note,
        )
        self._waiting: list[_Waiting] = []
        self._dirty = True
        """True if the store may contain parts of failed saves: at first those of earlier processes."""
        self._cleanup_failure_reported = False
        """True if a failed clean_up() was reported; reset when one succeeds."""
        self._shortest, self._longest = _PAUSES_S[store.job_dir.folder is not None]
        self._pause = self._shortest

    def add(self, staged: Staged, *, retry_timeout_s: float) -> None:
        self._waiting.append(_Waiting(staged, retry_timeout_s))
        self._pause = self._shortest

    def waiting(self) -> set[Name]:
        return {waiting.staged.name for waiting in self._waiting}

    def pause(self) -> float | None:
        """Return the seconds until the next commit_ready() is due; None if no save is waiting."""
        return self._pause if self._waiting else None

    def fail(self, name: Name, reason: str) -> None:
        """Give up a waiting save that will not be completed, and report `reason`."""
        for waiting in [waiting for waiting in self._waiting if waiting.staged.name == name]:
            self._give_up(waiting, reason)

    def commit_ready(self, *, impatient: bool) -> None:
        """Commit the saves whose parts are all written, and remove checkpoints that exceed their `keep`.

        impatient  True if the trainer has exited: no later save will follow, and waiting is limited to `patience_s`
        """
        committed = None
        for waiting in list(self._waiting):
            if impatient:
                waiting.until = min(waiting.until, time.monotonic() + waiting.retry_timeout_s)
            if self._commit(waiting, impatient=impatient):
                committed = waiting
        self._pause = min(1.5 * self._pause, self._longest)
        if committed is None:
            return
        for waiting in [w for w in self._waiting if w.staged.name.age < committed.staged.name.age]:
            self._give_up(waiting, f"{waiting.missing}; {committed.staged.name} is complete and has superseded it")
        self._retain(committed.staged)

    def clean_up(self, coming: Name) -> None:
        """Remove the parts of failed saves, of any process, that are older than the save `coming`.

        A failure is only reported, since these parts only take space.
        """
        if not self._dirty:
            return
        waiting = self.waiting()
        try:
            self._store.discard_uncommitted(
                lambda name: name.attempt <= coming.attempt and name.age < coming.age and name not in waiting
            )
        except JobDirError as error:
            if not self._cleanup_failure_reported:
                self._note(f"what failed saves have left could not be removed: {error}")
            self._cleanup_failure_reported = True
        else:
            self._dirty = self._cleanup_failure_reported = False

    def _commit(self, waiting: _Waiting, *, impatient: bool) -> bool:
        """Commit a save if possible, and return whether it is committed; give up a save that cannot be completed."""
        staged = waiting.staged
        try:
            if not self._store.is_committed(staged.name):  # True if an earlier writer was killed after the commit
                if absent := self._absent(staged.name):
                    waiting.missing = f"{len(absent)} of {self._world} ranks have not written their part: {absent[:8]}"
                    # Check again: a rank may have written its part and exited since the first check.
                    hopeless = impatient and not any(map(self._may_still_write, absent)) and self._absent(staged.name)
                    return self._expire(waiting, now=bool(hopeless))
                digests = self._store.digests(staged.name, self._world)
                if staged.rows:
                    self._store.put_metrics(staged.rows)
                self._store.commit(staged.name, digests, finished=staged.finished, time=time.time())
        except FencedError as error:
            self._give_up(waiting, str(error), fenced=True)
            return False
        except (JobDirError, ValueError) as error:
            if not (isinstance(error, DiskFullError) and make_room(self._store, staged.name, 0)):
                waiting.failures += 1
            waiting.missing = str(error)
            return self._expire(waiting, now=not impatient and waiting.failures >= TRIES)
        self._waiting.remove(waiting)
        self._finish(staged, written=True, committed=True, error=None)
        return True

    def _absent(self, name: Name) -> list[int]:
        return sorted(set(range(self._world)) - self._store.ranks_written(name))

    def _expire(self, waiting: _Waiting, *, now: bool) -> bool:
        if now or time.monotonic() > waiting.until:
            self._give_up(waiting, waiting.missing)
        return False

    def _give_up(self, waiting: _Waiting, reason: str, *, fenced: bool = False) -> None:
        self._waiting.remove(waiting)
        self._dirty = True
        try:
            self._store.discard_failed(waiting.staged.name)
        except JobDirError as error:
            reason = f"{reason}; and what was written could not be removed: {error}"
        self._finish(waiting.staged, written=True, committed=False, error=reason, fenced=fenced)

    def _retain(self, staged: Staged) -> None:
        self.clean_up(staged.name)
        try:
            self._store.retain(staged.name, staged.keep)
        except JobDirError as error:
            self._note(f"old checkpoints could not be removed: {error}")
