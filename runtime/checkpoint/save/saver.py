"""Saves in flight: staged in a slot, written by the writer, committed; what all ranks know of them, and when.

A save costs training the copy into a slot. What becomes of it is learnt at later step boundaries: each rank reports in
the all-reduce that is made there anyway (exchange()), so that all ranks know the same at the same step: which save
failed and on which rank, and which is committed.

Saves are numbered from 1, alike on all ranks. A rank has two slots, so at most two saves are not written yet: those of
an even and of an odd number are reported by two values of one vector.
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
"""Of the save at the end or upon a stop, after which there is no other."""
LAST_PAUSE = 0.5
"""Seconds before the second try, doubled before the third."""
GLANCE = 0.1
"""Seconds that ranks wait for their writers between two exchanges, when nothing else is left to be done."""
SILENCE = 60.0
"""Seconds of waiting for a writer after which that is said, and again each time when it has become twice as long."""
_LOST = (OSError, MemoryError, RuntimeError)
"""What a save may fail with alone: no memory for a slot, or none on a GPU to make a tensor contiguous."""


@dataclass(slots=True)
class InFlight:
    """A save that is staged and not known to be committed."""

    number: int
    name: Name
    finished: bool
    error: str | None = None
    """Why it failed on this rank."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Content:
    """What one save is to hold."""

    step: int
    finished: bool
    snapshot: dict[str, Any]
    """Live objects; copied while staging."""
    rows: Callable[[str], bytes]
    """The metrics that go with the checkpoint of this name."""


class Saver:
    """One per process; all its methods are called from the training's thread.

    run   agreed by all ranks: makes names unique without asking each time
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
        """What follows when the copy that is under way is there."""
        self._reserved = 0
        self._number = 0
        self._in_flight: dict[int, InFlight] = {}
        self._committed = 0
        """Number of the newest save that this rank knows to be committed: at first only rank 0 knows."""
        self._fenced = False
        self._failures = 0
        """How many saves in a row have failed now."""
        self.last: Name | None = None
        """The newest checkpoint of this run, or the one it was restored from."""
        self.staged: tuple[int, bool] | None = None
        """Step and `finished` of the newest save that has not failed."""
        self.on_commit: Callable[[Name, float], None] = lambda _name, _seconds: None
        """Called on rank 0 for each commit; with the seconds it took since it was staged."""
        self.on_fenced: Callable[[str], NoReturn] = _raise_fenced
        """Called on all ranks, at the same exchange, when a newer attempt has taken over; never returns."""

    @property
    def client(self) -> WriterClient:
        if self._client is None:
            self._client = self._connect()
            self._reserved = 0
        return self._client

    def close(self) -> None:
        """Give the slots' memory back; what is staged is written all the same."""
        self.join()
        self._overlap.detach()
        self._stager.release()
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._in_flight:  # their results will not be known
            self._in_flight.clear()
            self.staged = None

    # Staging

    def prepare(self, make: Callable[[], Content], more: int = 0) -> int:
        """Have the slots' memory made in the background, so that the first save need not wait for it. Collective.

        more: bytes that the state of this rank's objects will have in addition. Returns the bytes of a save.
        """
        _, _, layout, _ = self._lay_out(make)
        size = layout.size + (more // self._ranks.world if self._replicated.divides else more)
        with suppress(OSError):  # no memory: the first save reports it
            self._reserve(size)
        return size

    def _lay_out(self, make: Callable[[], Content]) -> tuple[Content, Any, Layout, Sequence[Any]]:
        """The content, its tree, and where in a slot what goes. What cannot be saved on one rank, all raise."""
        with self._ranks.together():
            content = make()
            tree, leaves = flatten(content.snapshot, "")
        absent = self._replicated.absent(leaves)
        with self._ranks.together():
            return content, tree, *self._stager.lay_out(leaves, absent)

    def _reserve(self, size: int) -> None:
        if size > self._reserved:
            self._stager.release()
            self.client.reserve(size)
            self._reserved = size

    def can_stage(self) -> bool:
        """Return whether every rank has a slot free; collective."""
        try:
            busy = self.client.free_slot() is None
        except OSError:  # no memory: stage() will tell
            busy = False
        return not self._ranks.maximum([busy])[0]

    def stage(self, make: Callable[[], Content], *, at_last: bool = False) -> None:
        """Copy the snapshot into a free slot, and have it written. There must be one: see can_stage(). Collective.

        at_last: nothing is trained any more, and nothing may be left to be copied later. Raises CheckpointError for
        what cannot be saved, on all ranks; every other failure is one of this save alone.
        """
        content, tree, layout, sources = self._lay_out(make)
        self._number += 1
        name = Name.of_run(content.step, self.attempt, self._number, self._run)
        save = self._in_flight[self._number] = InFlight(self._number, name, content.finished)
        self.staged = content.step, content.finished
        try:
            self._fill(save, content, tree, layout, sources, overlap=not at_last)
        except _LOST as error:
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
        """All at once; or what may be copied while training goes on in the background, until join()."""
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
        """The loop begins: see overlap.py. The agent's writer is there from now on."""
        self.client.wait_for_writer()
        self._overlap.attach(self.join)

    def join(self) -> None:
        """A copy that is under way is waited for, and handed over. Called before an optimizer changes anything."""
        if not self._overlap.under_way or self._after_copy is None:
            return
        (save, hand_over), self._after_copy = self._after_copy, None
        save.error = self._overlap.join()
        if save.error is None:
            try:
                hand_over()
            except _LOST as error:
                save.error = f"{error}" or type(error).__name__

    # What becomes of it

    def exchange(self, *own: int) -> list[int]:
        """The greatest of each value over all ranks; besides, what each knows of its saves. One small all-reduce."""
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
        """Of the saves with an even and with an odd number: the one that failed here, and on which rank, or 0.

        In one number, of which the greatest over all ranks is the newest save's, and the lowest rank's.
        """
        numbers = [0, 0]
        for save in self._in_flight.values():
            if save.error is not None:
                numbers[save.number % 2] = save.number * self._ranks.world + self._ranks.world - 1 - self._ranks.rank
        return numbers

    def _learn(self, committed: int, failed: Sequence[int]) -> None:
        """What all ranks know now."""
        for code in sorted(failed):
            number, rank = code // self._ranks.world, self._ranks.world - 1 - code % self._ranks.world
            if code and number > committed and (save := self._in_flight.pop(number, None)):
                self._give_up(save, rank)
        self._committed = committed  # on all ranks the same, also of a save that was given up before
        if save := self._in_flight.get(committed):
            if self._failures and self._ranks.rank == 0:
                logger().info(f"saving works again: step {save.name.step} is saved as {save.name}")
            self._failures, self.last = 0, save.name
        for number in [number for number in self._in_flight if number <= committed]:
            del self._in_flight[number]  # an older one that a newer has overtaken, too

    def _give_up(self, save: InFlight, rank: int) -> None:
        if self._ranks.rank == 0 and save.error is None:
            self.client.abandon(save.name)
        if self.staged == (save.name.step, save.finished):
            self.staged = None
        self._failures += 1
        if rank == self._ranks.rank:
            self._complain(save)

    def _complain(self, save: InFlight) -> None:
        """The first failure of a row with its cause, then at every doubling: no line per step, no silence either."""
        if self._failures & (self._failures - 1):
            return
        often = f"{self._failures} saves in a row have failed; " if self._failures > 1 else ""
        log = logger().error if self._failures > 1 else logger().warning
        log(f"step {save.name.step} could not be saved; {often}{self.standing()}: {save.error}")

    def standing(self) -> str:
        """What there is to fall back upon, in words."""
        return f"the newest checkpoint is {self.last}" if self.last else "there is NO checkpoint"

    # The last one

    def save_at_last(self, content: Callable[[], Content], deadline: float) -> bool:
        """Stage and wait until it is committed, with some tries; on all ranks. deadline: on the monotonic clock."""
        for attempt in range(LAST_TRIES):
            if attempt:
                time.sleep(LAST_PAUSE * attempt)  # a store that stumbles may answer again; after this there is no other
            if not self._wait_for(self.can_stage, deadline):
                return False
            self.stage(content, at_last=True)
            if self.settle(deadline):
                return True
        return False

    def settle(self, deadline: float) -> bool:
        """Wait until what was staged last is committed, on all ranks; False if it failed, or time ran out."""
        number = self._number
        self._wait_for(lambda: number not in self._in_flight, deadline)
        return self._committed >= number

    def _wait_for(self, done: Callable[[], bool], deadline: float) -> bool:
        """Exchange until it is done, which must be the same on all ranks; False: time ran out."""
        begun, silence = time.monotonic(), SILENCE
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
            self._take(self.client.wait(max(0.0, min(GLANCE, deadline - now))))

    def leave_behind(self, timeout_s: float) -> None:
        """The loop was broken off: give what is staged some time to be written."""
        self.join()
        if self._client is not None and self._in_flight:
            self._take(self._client.wait(timeout_s))


def _raise_fenced(reason: str) -> NoReturn:
    raise FencedError(reason)
