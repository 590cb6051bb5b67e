"""Thread of the checkpoint writer that writes one rank's saves; rank 0's thread also commits them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ....protocol.checkpoint_names import Name
from ....protocol.jobdir import JobDirError
from ..disk_space import describe_shortage, make_room
from ..format.manifest import RankManifest
from ..store import CheckpointStore, DiskFullError
from .committer import Committer, Staged
from .protocol import SaveResult
from .slots import Slot

RETRY_TIMEOUT_S = 60.0
"""Seconds for which a save is retried, and other ranks are waited for, once the trainer has exited."""
_FIRST_PAUSE_S = 0.2
_LOOKS_FOR_ROOM = 5
"""Maximum number of attempts to write a part while the disk is full: another rank may be removing an old checkpoint."""


@dataclass(slots=True)
class Written:
    """The newest part that a rank has written. A new process of the rank may restore it from the slot's memory."""

    name: Name
    slot: Slot
    size: int
    manifest: bytes


@dataclass(slots=True)
class Outbox:
    """Callbacks that send messages to the trainer, if it is connected. Called from the writer's thread."""

    written: Callable[[Name], None]
    result: Callable[[SaveResult], None]
    note: Callable[[str], None]


@dataclass(slots=True, eq=False)
class RankWriter:
    """Writer of one rank: `start()` it and `stage()` saves; after `detach()` it ends when all work is done."""

    store: CheckpointStore
    rank: int
    world: int
    outbox: Outbox
    may_still_write: Callable[[int], bool]
    """Function that returns whether another rank may still write its part. Called from the writer's thread."""
    when_idle: Callable[[], None]
    """Called from the writer's thread when it has no work, and when it ends."""
    written: Written | None = None
    busy: int = 0
    """Number of staged saves that are neither finished (durable; on rank 0: committed) nor failed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _inbox: queue.SimpleQueue[Staged | None] = field(default_factory=queue.SimpleQueue)
    _abandoned: set[Name] = field(default_factory=set)
    _gone: threading.Event = field(default_factory=threading.Event)
    _gone_at: float = 0.0
    _working: bool = False
    _ended: bool = False
    _leftovers: list[Name] = field(default_factory=list)
    _committer: Committer | None = None
    _short_of_room: bool = False
    """True if it was reported that fewer than `keep` checkpoints are kept."""

    def start(self) -> None:
        if self.rank == 0:
            self._committer = Committer(self.store, self.world, self._finish, self.may_still_write, self.outbox.note)
        # A daemon thread: if it hangs in a store, the process can still exit.
        threading.Thread(target=self._run, name=f"rank {self.rank}", daemon=True).start()

    def stage(self, staged: Staged) -> None:
        with self._lock:
            self.busy += 1
        self._inbox.put(staged)

    def abandon(self, name: Name) -> None:
        if self.busy:  # else the save has ended already
            self._abandoned.add(name)
            self._inbox.put(None)

    def detach(self) -> None:
        self._gone_at = time.monotonic()
        self._gone.set()
        self._inbox.put(None)

    @property
    def idle(self) -> bool:
        """True if nothing is staged and cleanup is complete."""
        return self.busy == 0 and not self._working

    @property
    def ended(self) -> bool:
        return self._ended

    # Methods called in the writer's thread

    def _run(self) -> None:
        while not (self._gone.is_set() and self.idle):
            self._turn()
        self._ended = True
        self.when_idle()

    def _turn(self) -> None:
        """Wait for an event and handle it."""
        committer = self._committer
        try:
            staged = self._inbox.get(timeout=committer.pause() if committer else None)
        except queue.Empty:
            staged = None
        self._working = True
        if staged is not None:
            self._save(staged)
        if committer:
            for name in self._abandoned & committer.waiting():
                committer.fail(name, "another rank could not write its part")
            committer.commit_ready(impatient=self._gone.is_set())
        self._working = False
        if self.idle:
            self.when_idle()

    def _save(self, staged: Staged) -> None:
        begun = time.monotonic()
        if staged.slot is not None:
            error = self._write_patiently(staged, staged.slot)
            staged.slot = None
            if error is not None:
                return self._finish(staged, written=False, committed=False, error=error)
            self.outbox.written(staged.name)
        if self._committer is None:
            return self._finish(staged, written=True, committed=False, error=None)
        self._committer.add(staged, retry_timeout_s=max(RETRY_TIMEOUT_S, 10 * (time.monotonic() - begun)))
        return None

    def _write_patiently(self, staged: Staged, slot: Slot) -> str | None:
        """Write a part with retries; return the reason if that fails, else None.

        A full disk is retried when space could be freed. Other errors are retried only if the trainer has exited, since
        then no later save follows.
        """
        pause, looks = _FIRST_PAUSE_S, 0
        while True:
            try:
                self._clean_up(staged.name)
                self._write(staged, slot)
            except (JobDirError, OSError, ValueError) as error:
                self._leftovers.append(staged.name)
                reason, is_full = str(error), isinstance(error, DiskFullError)
            else:
                return None
            self._remove_leftovers()
            if is_full:
                looks += 1
                if self._make_room(staged):
                    continue
                if self.world > 1 and looks < _LOOKS_FOR_ROOM:
                    time.sleep(_FIRST_PAUSE_S)
                    continue
                reason = f"{reason}: {describe_shortage(self.store, staged.size)}"
            if staged.name in self._abandoned or not self._gone.is_set():
                return reason
            if time.monotonic() - self._gone_at > RETRY_TIMEOUT_S:
                return reason
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _make_room(self, staged: Staged) -> bool:
        """Remove the oldest checkpoint if there is a newer intact one; return whether it was removed.

        The first removal is reported.
        """
        if not make_room(self.store, staged.name, staged.size):
            return False
        if not self._short_of_room:
            self.outbox.note(f"{self.store} has no room for keep={staged.keep} checkpoints: fewer are kept from now on")
        self._short_of_room = True
        return True

    def _write(self, staged: Staged, slot: Slot) -> None:
        if slot.size < staged.size:
            raise ValueError(f"{staged.name}: the slot has {slot.size} bytes, {staged.size} were said to be staged")
        manifest = RankManifest.from_bytes(staged.manifest)
        content = self.store.write_rank(manifest, slot.view[: staged.size])
        self.written = Written(staged.name, slot, staged.size, content)

    def _clean_up(self, name: Name) -> None:
        self._remove_leftovers()
        if self._committer:
            self._committer.clean_up(name)

    def _remove_leftovers(self) -> None:
        """Remove the parts of failed saves; those that cannot be removed now stay on the list."""
        left, self._leftovers = self._leftovers, []
        for name in left:
            try:
                self.store.discard_rank(name, self.rank)
            except JobDirError:
                self._leftovers.append(name)

    def _finish(
        self, staged: Staged, *, written: bool, committed: bool, error: str | None, fenced: bool = False
    ) -> None:
        seconds = time.monotonic() - staged.submitted
        self.outbox.result(SaveResult(staged.name, written, committed, error, fenced, seconds))
        self._abandoned.discard(staged.name)
        with self._lock:
            self.busy -= 1
