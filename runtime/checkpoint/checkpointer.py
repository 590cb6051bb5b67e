"""The Checkpointer: three lines in a training program. An interruption costs the steps since the last save.

    from cloudgpu.runtime import Checkpointer
    ckpt = Checkpointer(model=model, optimizer=opt, scheduler=sched, loader=loader)
    for batch in ckpt.batches(epochs=10):
        train_on(batch)

Asking for the next batch is the step boundary: there, what is due is saved, and a notice is obeyed.
See docs/checkpointing.md.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from ..jobdir import JobDirError
from . import random_state
from .data_position import DataPosition, length
from .errors import (
    EXIT_DONE,
    EXIT_FENCED,
    EXIT_NONE,
    EXIT_OLDER,
    EXIT_SAVED,
    EXIT_STORE,
    EXIT_USER,
    CheckpointError,
    logger,
)
from .interruption import Interruption, Notice
from .metrics import MetricRows
from .names import Name, run_nonce
from .outcome import Outcome
from .progress import ProgressFile
from .ranks import Ranks
from .restore import restore
from .saver import Content, Saver
from .schedule import Schedule
from .settings import find_store, from_environment, seconds_or_auto
from .writer_client import WriterClient, finish_earlier

DRAIN = 60.0
"""Seconds that a new process waits for what an earlier one has staged."""
PATIENCE = 10.0
"""Seconds that a loop which was broken off waits for what is staged: an orphaned writer goes on after that."""
_FOREVER = 1 << 62
_END = object()


class Checkpointer:
    """Saves and restores named objects, random state and the place in the data.

    loader     what `batches()` goes through: a DataLoader, or anything that can be iterated once per epoch
    folder     path or URL of the checkpoints; default: the job's own, or ./checkpoints outside a job
    every      steps (500), a duration ("30s", 30.0) or "auto"; default: the job file's, or "auto"
    keep       how many checkpoints to keep; default: the job file's, or 3
    replay     find the place in the data by reading up to it: for augmentation drawn at random inside of loader workers
    overlap    copy parameters and optimizer state while the next forward and backward pass runs: True, False or "auto"
    **objects  whatever has state_dict() and load_state_dict(): model, optimizer, scheduler, ema ...

    Making one restores the newest checkpoint that verifies, if there is any. With torch.distributed, make it on every
    rank, after init_process_group(). Raises CheckpointError if there are checkpoints that do not fit.
    """

    def __init__(
        self,
        *,
        loader: Any = None,  # noqa: ANN401 - any iterable
        folder: str | os.PathLike[str] | None = None,
        every: int | float | str | None = None,
        keep: int | None = None,
        replay: bool = False,
        overlap: bool | str = False,
        **objects: Any,  # noqa: ANN401 - anything with a state_dict
    ) -> None:
        for name, value in objects.items():
            if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
                raise CheckpointError(f"{name}= has no state_dict() and load_state_dict(): put it into ckpt.state")
        self.state: dict[str, Any] = {}
        """Plain values of your own, saved and restored with the rest."""
        self.step = 0
        """Steps done; in the loop's body the number of this step, from 0."""
        self.finished = False
        """The training has reached its end."""
        self._objects, self._loader = objects, loader
        self._position = DataPosition(replay=replay)
        self._random: dict[str, Any] | None = None
        self._goal = 0
        """Epochs or steps that the loop was asked for when it finished."""
        self._running = False
        """Between begin() and end()."""
        self._asked = False
        self._prepared = False
        self._rows = MetricRows()
        self._ranks = Ranks()
        try:
            self._set_up(folder, every, keep, overlap)
        except CheckpointError as error:
            Outcome(EXIT_USER, 0, None, None, str(error)).write()
            raise
        if not self.finished:
            self._interruption.listen()

    def _set_up(
        self,
        folder: str | os.PathLike[str] | None,
        every: int | float | str | None,
        keep: int | None,
        overlap: bool | str,
    ) -> None:
        keep = keep if keep is not None else from_environment("CLOUDGPU_CHECKPOINT_KEEP", int, 3)
        if overlap not in {True, False, "auto"}:
            raise CheckpointError(f'overlap={overlap!r}: expected True, False or "auto"')
        if keep < 1:
            raise CheckpointError(f"keep={keep}: at least one checkpoint must be kept")
        self._schedule = Schedule(
            every if every is not None else from_environment("CLOUDGPU_CHECKPOINT_EVERY", seconds_or_auto, "auto"),
            market=os.environ.get("CLOUDGPU_MARKET", ""),
            nodes=from_environment("CLOUDGPU_NODES", int, 1),
        )
        self._progress = ProgressFile.from_environment(self._ranks.local_rank, self._schedule)
        self._interruption = Interruption()
        self._store = find_store(folder, world=self._ranks.world)
        # Before this attempt is claimed, which fences off what is still being written of the one before.
        self._ranks.gather(finish_earlier(self._store, self._ranks.rank, DRAIN))
        attempt, run = self._ranks.from_first(self._begin_attempt)
        self._store.job_dir.make = False  # it is there now; should it be deleted while we train, it stays so
        ranks, store = self._ranks, self._store
        connect = lambda: WriterClient.connect(store, ranks.rank, ranks.world, attempt)  # noqa: E731
        self._saver = Saver(connect, ranks, self._objects, attempt=attempt, run=run, keep=keep, overlap=overlap)
        self._saver.on_commit, self._saver.on_fenced = self._committed, self._stop_as_fenced
        self._restore()
        self._mark = time.monotonic()

    # The loop

    @property
    def epoch(self) -> int:
        """Epochs done; in the loop's body the number of this epoch, from 0."""
        return self._position.epoch

    @property
    def end_of_epoch(self) -> bool:
        """In the loop's body: this batch is the epoch's last. The loader must have a length."""
        batches = length(self._loader)
        if batches is None:
            raise CheckpointError("end_of_epoch: the loader has no length, so its last batch is not known beforehand")
        return self._position.batch + 1 >= batches

    def batches(self, *, epochs: int) -> Iterator[Any]:
        """The batches of so many epochs in all, those done before an interruption left out."""
        if self._loader is None:
            raise CheckpointError("batches() needs Checkpointer(loader=...); without a loader use steps()")
        if self._is_over(epochs):
            return
        self.begin()
        try:
            while self._position.epoch < epochs:
                source = self.open_epoch()
                while (batch := next(source, _END)) is not _END:
                    yield batch
                    if self.finished:
                        return
                    self.end_step()
                self._position.next_epoch()
            self.end(goal=epochs)
        finally:
            self.end(finished=False)

    def steps(self, n: int) -> Iterator[int]:
        """The numbers 0 to n - 1, those done before an interruption left out."""
        if self._is_over(n):
            return
        self.begin()
        try:
            while self.step < n:
                yield self.step
                if self.finished:
                    return
                self._count_step()
                if self.step < n:  # the last step is saved as the end
                    self._boundary()
            self.end(goal=n)
        finally:
            self.end(finished=False)

    def finish(self) -> None:
        """In the loop's body: training ends with this step, before the loop's own end (early stopping).

        The state is saved as it is now, the loop ends, and a program started again finds nothing left to do.
        """
        self._count_step()
        self.end()

    def save(self) -> None:
        """In the loop's body: save when this step is done, whatever the schedule says."""
        self._asked = True

    def wait(self) -> None:
        """In the loop's body, on all ranks: until what was saved so far is a checkpoint, or has failed."""
        self._saver.settle(math.inf)

    def log(self, **values: Any) -> None:  # noqa: ANN401 - numbers, or tensors of one
        """Metrics of this step, by name: numbers. Each step is kept exactly once, however often it was interrupted."""
        if self._ranks.rank == 0:
            self._rows.log(self.step, values)

    # For loops that the Checkpointer does not own: batches() and steps() are made of these

    def begin(self) -> None:
        """Before the first step: random state is restored, notices are listened to. Once more changes nothing.

        A notice that is there already is obeyed: raises SystemExit.
        """
        if self._running:
            return
        self._running = True
        self.finished = False
        if self._random is not None:
            random_state.restore(self._random, random_state.generators_of(self._loader))
            self._random = None
        self._interruption.listen()
        self._interruption.handle_signals()
        self._saver.attach()
        self._mark = time.monotonic()
        self._schedule.count_from(self.step, self._mark)
        self._explain(self._mark)
        self._boundary()

    def open_epoch(self, loader: Any = None) -> Iterator[Any]:  # noqa: ANN401 - any iterable
        """What is left of this epoch of the loader (default: the one given to Checkpointer())."""
        start, resumed = time.monotonic(), self._position.batch > 0
        source = self._position.open_epoch(self._loader if loader is None else loader)
        if resumed:  # finding the place in it again is part of the restore
            taken = time.monotonic() - start
            self._progress.restore_seconds += taken
            self._mark += taken
        return source

    def end_step(self, epoch_ended: bool = False) -> None:
        """A step is done: it is counted, what is due is saved, a notice is obeyed (saved, then SystemExit).

        epoch_ended: it was the epoch's last, and the next one begins with the first batch.
        """
        self._count_step()
        if epoch_ended:
            self._position.next_epoch()
        self._boundary()

    def end(self, finished: bool = True, *, goal: int | None = None) -> None:
        """After the loop: notices are no longer listened to. Once more changes nothing.

        finished  training has reached its end: that is saved; raises SystemExit if it cannot be. False: broken off
        goal      the epochs or steps asked for: asked for more, training goes on. None: finished, whatever is asked for
        """
        if not self._running:
            return
        try:
            if finished:
                self._finish(goal)
            else:
                self._saver.leave_behind(PATIENCE)
        finally:
            self._running = False
            self._interruption.put_back_signals()
            self._interruption.stop_listening()
            self._saver.close()

    # The step boundary

    def _is_over(self, goal: int) -> bool:
        return self.finished and goal <= self._goal

    def _boundary(self) -> None:
        """Between two steps: count, obey, save. One small all-reduce if there are several ranks."""
        now = self._count_time()
        notice = self._interruption.look()
        if notice is not None and not notice.stop:
            logger().info(f"{notice.reason}: saving now, and more often; training goes on")
            self._schedule.hurry(now + (notice.left or 0.0))
            self._asked = True
        # Clocks differ, so rank 0's decides; a step's number is everywhere the same.
        due = self._schedule.due(self.step, now) and (self._ranks.rank == 0 or self._schedule.interval is None)
        stop, save = self._agree(notice is not None and notice.stop, due or self._asked)
        if stop:
            self._obey(notice)
        save = save and self._saver.staged != (self.step, False)
        free = save and self._saver.can_stage()
        self._asked = save and not free  # the store is slower than the schedule: at a later boundary, then
        if free:
            self._save()
        else:
            self._prepare()
            self._progress.write()

    def _agree(self, stop: bool, save: bool, *, finish: bool = False) -> tuple[bool, bool]:
        """Whether any rank wants to stop, or to save."""
        place = (finish, self.step, self._position.epoch)
        values = self._exchange(stop, save, *place, *(-int(part) for part in place))
        if values[2:5] != [-value for value in values[5:8]]:
            raise CheckpointError(
                f"the ranks are at different steps (this one is at {self.step}): each must get the same number of "
                "batches, as torch.utils.data.DistributedSampler sees to"
            )
        return bool(values[0]), bool(values[1])

    def _exchange(self, *own: int) -> list[int]:
        values = self._saver.exchange(*own)
        self._progress.saved_step = self._saver.last.step if self._saver.last else None
        return values

    def _count_step(self) -> None:
        self.step += 1
        self._position.batch += 1

    def _count_time(self) -> float:
        now = time.monotonic()
        self._progress.step = self.step
        self._progress.step_seconds += now - self._mark
        self._mark = now
        return now

    # Saving

    def _prepare(self) -> None:
        """Once, after the first step, when optimizers have all their state: the slots' memory is made meanwhile."""
        if not self._prepared and self._running and self.step:
            self._prepared = True
            self._saver.prepare(self._content().snapshot)

    def _content(self) -> Content:
        snapshot = {
            "step": self.step,
            "goal": self._goal,
            "position": self._position.state_dict(),
            "random": random_state.capture(random_state.generators_of(self._loader)),
            "state": self.state,
            "history": self._schedule.history(time.monotonic()),
            "objects": {name: value.state_dict() for name, value in self._objects.items()},
        }
        return Content(self.step, self.finished, snapshot, self._rows.take)

    def _save(self) -> None:
        """Stage what is to be saved; training goes on while it is written."""
        start = time.monotonic()
        self._saver.stage(self._content())
        self._progress.staged()
        self._mark = time.monotonic()
        self._count_blocked(start, self._mark)
        self._progress.write(force=True)

    def _count_blocked(self, start: float, end: float) -> None:
        self._schedule.count_from(self.step, end, blocked=end - start)
        self._progress.blocked_seconds += end - start
        self._explain(end)

    def _explain(self, now: float) -> None:
        """How often is saved and why, at first and when that changes."""
        if self._ranks.rank == 0 and (line := self._schedule.explanation(now)):
            logger().info(line)

    def _committed(self, name: Name, seconds: float) -> None:
        """On rank 0, for each commit."""
        self._schedule.written(seconds)
        self._rows.committed(str(name))

    def _save_at_last(self, left: float | None = None) -> bool:
        """Save and wait until it is committed; `left`: seconds there are for it."""
        start = time.monotonic()
        deadline = start + left if left is not None else math.inf
        self._progress.staged()
        if self._saver.staged == (self.step, self.finished):
            saved = self._saver.settle(deadline) or self._saver.save_at_last(self._content, deadline)
        else:
            saved = self._saver.save_at_last(self._content, deadline)
        self._mark = time.monotonic()
        self._progress.blocked_seconds += self._mark - start
        self._progress.saved_step = self._saver.last.step if self._saver.last else None
        self._progress.write(force=True)
        return saved

    # The end

    def _finish(self, goal: int | None) -> None:
        self._count_time()
        self._agree(stop=False, save=True, finish=True)
        self.finished = True
        self._goal = goal if goal is not None else _FOREVER
        if not self._save_at_last():
            stands = self._saver.standing()
            self._leave(EXIT_STORE, f"training is done, but its end could not be saved: {stands}")
        self._outcome(EXIT_DONE, f"training is done: {self.step} steps").write()

    def _obey(self, notice: Notice | None) -> NoReturn:
        """Save and end the program."""
        reason = notice.reason if notice is not None else "another rank was told to stop"
        if self._save_at_last(notice.left if notice is not None else None):
            self._leave(EXIT_SAVED, f"{reason}: stopped at step {self.step}, saved as {self._saver.last}")
        code = EXIT_OLDER if self._saver.last is not None else EXIT_NONE
        unsaved = f"{reason}: stopped at step {self.step}, which could not be saved"
        self._leave(code, f"{unsaved}; {self._saver.standing()}")

    def _stop_as_fenced(self, reason: str) -> NoReturn:
        self._leave(EXIT_FENCED, f"{reason}: stopping at step {self.step}")

    def _outcome(self, code: int, reason: str) -> Outcome:
        last = self._saver.last
        return Outcome(code, self.step, last.step if last else None, str(last) if last else None, reason)

    def _leave(self, code: int, reason: str) -> NoReturn:
        self._saver.close()
        self._outcome(code, reason).leave()

    # Restoring

    def _restore(self) -> None:
        start = time.monotonic()
        client = self._saver.client
        if not client.drain(DRAIN) and time.monotonic() - start > DRAIN:
            logger().warning("an earlier process's writer has not come to an end: what it still writes may be lost")
        self._ranks.gather(None)  # all have: only now what is not committed is nobody's any more
        if self._ranks.rank == 0:
            self._clean()
        found = restore(self._store, self._ranks, objects=self._objects, cached=client.cached)
        if found is None:
            return
        self._saver.last = found.name
        try:
            self._load(found.snapshot)
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
            raise CheckpointError(
                f"{self._store}: checkpoint {found.name} does not fit this program: {error}. Restore what it was "
                "saved with, or give another folder to begin anew"
            ) from error
        self.finished = found.commit.finished
        self._saver.staged = self.step, self.finished
        self._schedule.resumed(found.snapshot.get("history"), interrupted=not self.finished)
        if self._ranks.rank == 0:
            self._rows.resume(self._store.find_rows, str(found.name))
        self._tell_of_restore(found.name, time.monotonic() - start)

    def _tell_of_restore(self, name: Name, seconds: float) -> None:
        progress = self._progress
        progress.restored_step = progress.saved_step = progress.step = self.step
        progress.restore_seconds = seconds
        progress.write(force=True)
        if self._ranks.rank == 0:
            what = "training was finished" if self.finished else "training goes on"
            logger().info(f"{what} at step {self.step}, restored from {self._store}/{name}")

    def _load(self, snapshot: dict[str, Any]) -> None:
        missing = sorted(self._objects.keys() - snapshot["objects"].keys())
        if missing:
            raise ValueError(f"it has no state of {', '.join(missing)}")
        for name in sorted(snapshot["objects"].keys() - self._objects.keys()):
            logger().warning(f"the checkpoint's state of {name!r} is not used: Checkpointer() was given no {name}=")
        for name, value in self._objects.items():
            value.load_state_dict(snapshot["objects"][name])
        self.state = snapshot["state"]
        self.step, self._goal = snapshot["step"], snapshot["goal"]
        self._position.load_state_dict(snapshot["position"])
        self._random = snapshot["random"]

    def _begin_attempt(self) -> tuple[int, str]:
        """Fence off what may still run of older attempts; the attempt's number, and the run's nonce."""
        wanted = from_environment("CLOUDGPU_ATTEMPT", int, None)
        try:
            attempt = self._store.claim(wanted)
            newest = self._store.newest_attempt()
        except JobDirError as error:
            logger().warning(f"{self._store} cannot be written, nothing may be saved: {error}")
            return wanted if wanted is not None else 1, run_nonce()
        if newest > attempt:
            raise CheckpointError(f"attempt {newest} has taken over {self._store} from this attempt {attempt}")
        return attempt, run_nonce()

    def _clean(self) -> None:
        """Remove what dead writers left unfinished; only now that no earlier process of ours writes any more."""
        try:
            self._store.clean(self._saver.attempt)
        except JobDirError as error:
            logger().warning(f"{self._store} could not be cleaned of unfinished checkpoints: {error}")
