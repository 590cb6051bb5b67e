"""Saves in flight: staged in a slot, written and committed by the writer process, and tracked on all ranks.

A save blocks training only for the copy into a slot. Its outcome is exchanged at later step boundaries, in the
all-reduce that ranks make there in any case (exchange()). So all ranks learn at the same step which save was committed,
and which one failed on which rank.

Saves are numbered from 1, the same on all ranks. A rank has two slots, so at most two saves are in progress, one with
an even and one with an odd number. The all-reduce has one value for failures of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, NoReturn

from ....protocol.checkpoint_names import Name
from ..errors import FencedError, logger
from ..format.manifest import RankManifest
from ..format.tree import flatten
from ..writer.client import Save, SaveResult, WriterClient
from .overlap import Overlap
from .replicated import Replicated
from .staging import Layout, Stager
from .staleness_check import StaleSaves

if TYPE_CHECKING:
    from ..ranks import Ranks

LAST_TRIES = 3
"""Maximum number of attempts at the last save, at the end of the training or before a stop."""
LAST_PAUSE = 0.5
"""Seconds before the second attempt; twice that before the third."""
POLL_S = 0.1
"""Seconds to wait for the writer between two exchanges, when there is nothing else to do."""
WARN_AFTER_S = 60.0
"""Seconds of waiting for the writer after which a warning is logged; it is repeated each time the wait has doubled."""
_SAVE_ERRORS = (OSError, MemoryError, RuntimeError)
"""Errors that fail only the current save, such as too little memory for a slot; later saves are attempted."""


@dataclass(slots=True)
class InFlight:
    """A save that is staged, but not known to be committed."""

    number: int
    name: Name
    finished: bool
    error: str | None = None
    """Reason why the save failed on this rank; None: not known to have failed."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Content:
    """Content of one save."""

    step: int
    finished: bool
    snapshot: dict[str, Any]
    """State to save; its tensors are the live ones, which staging copies."""
    rows: Callable[[str], bytes]
    """Returns the metrics to save with the checkpoint of this name."""


class Saver:
    """Manager of a process's saves, from staging to commit. Not thread-safe: call it from the training's thread.

    run   identifier of this start, agreed by all ranks, which makes names of checkpoints unique
    """

    def __init__(
        self,
        connect: Callable[[], WriterClient],
        ranks: Ranks,
        objects: Mapping[str, object],
        *,
        attempt: int,
        run: str,
        keep: int,
        overlap: bool | str = False,
    ) -> None:
        self._connect, self._ranks, self.attempt, self._run, self._keep = connect, ranks, attempt, run, keep
        self._client: WriterClient | None = None
        self._stager = Stager()
        self._stale = StaleSaves(objects)
        self._replicated = Replicated(objects, ranks)
        self._overlap = Overlap(objects, overlap)
        self._after_copy: tuple[InFlight, Callable[[], None]] | None = None
        """Save whose copy is in progress, and the function to call when the copy is complete."""
        self._reserved = 0
        self._number = 0
        self._in_flight: dict[int, InFlight] = {}
        self._committed = 0
        """Number of the newest save known to be committed; rank 0 learns it first."""
        self._fenced = False
        self._failures = 0
        """Number of consecutive failed saves."""
        self.last: Name | None = None
        """The newest checkpoint of this run, or the one from which it was restored."""
        self.staged: tuple[int, bool] | None = None
        """Step and `finished` of the newest save that has not failed."""
        self.on_commit: Callable[[Name, float], None] = lambda _name, _seconds: None
        """Called on rank 0 for each commit, with the seconds since the save was staged."""
        self.on_fenced: Callable[[str], NoReturn] = _raise_fenced
        """Called on all ranks, at the same exchange, if a newer attempt has taken over; must not return."""

    @property
    def client(self) -> WriterClient:
        if self._client is None:
            self._client = self._connect()
            self._reserved = 0
        return self._client

    def close(self) -> None:
        """Release the slots' memory; the writer process still writes staged saves."""
        self.join()
        self._overlap.detach()
        self._stager.release()
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._in_flight:  # their outcomes will not be known
            self._in_flight.clear()
            self.staged = None

    # Staging

    def prepare(self, make: Callable[[], Content], more: int = 0) -> int:
        """Allocate the slots' memory before the first save; return the size of this rank's saves in bytes. Collective.

        more  bytes by which the state of this rank's objects will grow
        """
        _, _, layout, _ = self._lay_out(make)
        size = layout.size + (more // self._ranks.world if self._replicated.divides else more)
        with suppress(OSError):  # no memory: the first save reports it
            self._reserve(size)
        return size

    def _lay_out(self, make: Callable[[], Content]) -> tuple[Content, Any, Layout, Sequence[Any]]:
        """Return the content, its tree, the layout of its leaves, and the leaves to copy. Collective.

        Raises CheckpointError on all ranks if a value cannot be saved.
        """
        with self._ranks.raise_on_all():
            content = make()
            tree, leaves = flatten(content.snapshot, "")
        absent = self._replicated.absent(leaves)
        with self._ranks.raise_on_all():
            return content, tree, *self._stager.lay_out(leaves, absent)

    def _reserve(self, size: int) -> None:
        if size > self._reserved:
            self._stager.release()
            self.client.reserve(size)
            self._reserved = size

    def can_stage(self) -> bool:
        """Return whether every rank has a free slot. Collective."""
        try:
            busy = self.client.free_slot() is None
        except OSError:  # no memory: reported by stage()
            busy = False
        return not self._ranks.maximum([busy])[0]

    def stage(self, make: Callable[[], Content], *, at_last: bool = False) -> None:
        """Copy the snapshot into a free slot, and submit it to the writer. Requires can_stage(). Collective.

        at_last  True for the last save, whose copy must not be overlapped

        Raises CheckpointError on all ranks if an object cannot be saved. Other failures are reported by exchange().
        """
        content, tree, layout, sources = self._lay_out(make)
        self._number += 1
        name = Name.of_run(content.step, self.attempt, self._number, self._run)
        save = self._in_flight[self._number] = InFlight(self._number, name, content.finished)
        self.staged = content.step, content.finished
        try:
            self._fill(save, content, tree, layout, sources, overlap=not at_last)
        except _SAVE_ERRORS as error:
            save.error = f"{error}" or type(error).__name__

    def _fill(
        self,
        save: InFlight,
        content: Content,
        tree: object,  # JSON
        layout: Layout,
        sources: Sequence[object],
        *,
        overlap: bool,
    ) -> None:
        self._reserve(layout.size)
        slot = self.client.free_slot()
        if slot is None:
            raise MemoryError("no slot is free")
        memory, ranks, name = self.client.slot(slot), self._ranks, str(save.name)
        manifest = RankManifest(name, ranks.rank, ranks.world, content.step, layout.size, layout.pieces, tree)
        rows = content.rows(name) if ranks.rank == 0 else b""
        message = Save(
            save.name,
            slot,
            layout.size,
            manifest.to_bytes(layout.pieces_json),
            save.finished,
            keep=self._keep,
            rows=rows,
        )

        def hand_over(*, live: bool) -> None:
            self._stale.check(content.step, layout.pieces, memory, live=live)
            self.client.submit(message)

        self._copy(save, self._stager.destinations(layout, sources, slot, memory), sources, hand_over, overlap)

    def _copy(
        self,
        save: InFlight,
        destinations: Sequence[object],
        sources: Sequence[object],
        hand_over: Callable[..., None],
        overlap: bool,
    ) -> None:
        """Copy the sources and call `hand_over`; or copy some of them in the background, until join()."""
        if not (overlap and self._overlap.wanted()):
            start = time.monotonic()
            self._stager.copy_pairs(destinations, sources)
            self._overlap.count_blocking(time.monotonic() - start)
            hand_over(live=True)
            return
        later = self._overlap.choose(sources)
        now = [not one for one in later]
        self._stager.copy_pairs(list(compress(destinations, now)), list(compress(sources, now)))
        rest = list(compress(destinations, later)), list(compress(sources, later))
        self._after_copy = save, lambda: hand_over(live=False)
        self._overlap.start(lambda: self._stager.copy_pairs(*rest), *rest)

    def attach(self) -> None:
        """Prepare for the loop: wait for the agent's writer, and start to join copies before optimizers' steps."""
        self.client.wait_for_writer()
        self._overlap.attach(self.join)

    def join(self) -> None:
        """Wait for a copy in progress and submit it. Called before an optimizer changes parameters."""
        if not self._overlap.under_way or self._after_copy is None:
            return
        (save, hand_over), self._after_copy = self._after_copy, None
        save.error = self._overlap.join()
        if save.error is None:
            try:
                hand_over()
            except _SAVE_ERRORS as error:
                save.error = f"{error}" or type(error).__name__

    # Outcomes of saves

    def exchange(self, *own: int) -> list[int]:
        """Return the maximum of each value of `own` over all ranks, and exchange the outcomes of saves. Collective.

        Makes one small all-reduce. Calls on_fenced if a newer attempt has taken over.
        """
        self.join()
        self._take(self.client.poll())
        values = self._ranks.maximum([*own, self._committed, int(self._fenced), *self._failed()])
        committed, fenced, *failed = values[len(own) :]
        if fenced:
            self.on_fenced(f"a newer attempt than {self.attempt} has taken over the checkpoints")
        self._learn(committed, failed)
        return values[: len(own)]

    def _take(self, results: Sequence[SaveResult]) -> None:
        for result in results:
            save = next((save for save in self._in_flight.values() if save.name == result.name), None)
            self._fenced = self._fenced or result.fenced
            if result.committed and save is not None:
                self._committed = max(self._committed, save.number)
                self.on_commit(save.name, result.seconds)
            elif result.error is not None and save is not None:
                save.error = result.error

    def _failed(self) -> list[int]:
        """Return two codes, for the failed save of this rank with an even and with an odd number; 0 if none failed.

        A code combines the save's number and the rank, so that the maximum over all ranks gives the newest failed save
        and the lowest rank on which it failed.
        """
        numbers = [0, 0]
        for save in self._in_flight.values():
            if save.error is not None:
                numbers[save.number % 2] = save.number * self._ranks.world + self._ranks.world - 1 - self._ranks.rank
        return numbers

    def _learn(self, committed: int, failed: Sequence[int]) -> None:
        """Apply the outcomes that all ranks know now."""
        for code in sorted(failed):
            number, rank = code // self._ranks.world, self._ranks.world - 1 - code % self._ranks.world
            if code and number > committed and (save := self._in_flight.pop(number, None)):
                self._give_up(save, rank)
        self._committed = committed  # the same on all ranks, also for a save that was given up before
        if save := self._in_flight.get(committed):
            if self._failures and self._ranks.rank == 0:
                logger().info(f"saving works again: step {save.name.step} is saved as {save.name}")
            self._failures, self.last = 0, save.name
        for number in [number for number in self._in_flight if number <= committed]:
            del self._in_flight[number]  # also older saves, which a newer one has superseded

    def _give_up(self, save: InFlight, rank: int) -> None:
        if self._ranks.rank == 0 and save.error is None:
            self.client.abandon(save.name)
        if self.staged == (save.name.step, save.finished):
            self.staged = None
        self._failures += 1
        if rank == self._ranks.rank:
            self._log_failure(save)

    def _log_failure(self, save: InFlight) -> None:
        """Log the first of consecutive failures with its cause, then each time their number has doubled."""
        if self._failures & (self._failures - 1):
            return
        often = f"{self._failures} saves in a row have failed; " if self._failures > 1 else ""
        log = logger().error if self._failures > 1 else logger().warning
        log(f"step {save.name.step} could not be saved; {often}{self.describe_newest()}: {save.error}")

    def describe_newest(self) -> str:
        """Return a message that names the newest checkpoint."""
        return f"the newest checkpoint is {self.last}" if self.last else "there is NO checkpoint"

    # The last save

    def save_at_last(self, content: Callable[[], Content], deadline: float) -> bool:
        """Save and wait for the commit, with LAST_TRIES attempts; return whether it succeeded. Collective.

        deadline: in seconds of time.monotonic()
        """
        for attempt in range(LAST_TRIES):
            if attempt:
                time.sleep(LAST_PAUSE * attempt)  # the failure may be transient, and no later save follows
            if not self._wait_for(self.can_stage, deadline):
                return False
            self.stage(content, at_last=True)
            if self.settle(deadline):
                return True
        return False

    def settle(self, deadline: float) -> bool:
        """Wait until the last staged save is committed, on all ranks; return False if it failed, or at the deadline.

        deadline: in seconds of time.monotonic(). Collective.
        """
        number = self._number
        self._wait_for(lambda: number not in self._in_flight, deadline)
        return self._committed >= number

    def _wait_for(self, done: Callable[[], bool], deadline: float) -> bool:
        """Exchange outcomes until done() is true, which must agree on all ranks; return False at the deadline."""
        begun, silence = time.monotonic(), WARN_AFTER_S
        while True:
            now = time.monotonic()
            (expired,) = self.exchange(now >= deadline)
            if done():
                return True
            if expired:
                return False
            if now - begun >= silence:
                silence *= 2
                logger().warning(f"waiting for a checkpoint to be written since {now - begun:.0f} s")
            self._take(self.client.wait(max(0.0, min(POLL_S, deadline - now))))

    def leave_behind(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for staged saves to be written, after the program left its loop early."""
        self.join()
        if self._client is not None and self._in_flight:
            self._take(self._client.wait(timeout_s))


def _raise_fenced(reason: str) -> NoReturn:
    raise FencedError(reason)
