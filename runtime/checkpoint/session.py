"""Session: the part of a Checkpointer that counts steps, saves when due, and handles notices."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from ...protocol.checkpoint_names import Name
from .data import random_state
from .data.data_position import DataPosition
from .disk_space import check_room
from .errors import (
    EXIT_DONE,
    EXIT_FENCED,
    EXIT_NOTHING_SAVED,
    EXIT_SAVED,
    EXIT_STALE,
    EXIT_STORE,
    CheckpointError,
    logger,
)
from .folder_lock import FolderLock
from .format.strides import StateAlignment
from .metrics import MetricRows
from .outcome import Outcome, OutcomeRecord
from .progress import ProgressFile
from .ranks import Ranks
from .resume import Attempt, begin_attempt, restore_objects, starts_since
from .save.accumulation import Accumulation
from .save.buckets import BucketOrders
from .save.saver import Content, Saver
from .save.state_size import state_to_come
from .schedule.interruption import Interruption, Notice
from .settings import Policy, check_objects, find_store, start_retry_timeout_s
from .store import CheckpointStore
from .writer.client import WriterClient

ABORT_TIMEOUT_S = 10.0
"""Maximum seconds to wait for staged saves when the program leaves its loop early; the writer process continues after
that."""
_ANY_GOAL = 1 << 62


class Session:
    """Base class of Checkpointer: everything but the loops. Integrations call begin(), end_step(), end()."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        *,
        loader: object,  # any iterable
        folder: str | os.PathLike[str] | None,
        every: int | float | str | None,
        keep: int | None,
        on_damage: str | None,
        replay: bool,
        overlap: bool | str,
    ) -> None:
        self.state: dict[str, Any] = {}
        """Plain values of the program, saved and restored with the rest."""
        self.step = 0
        """Number of completed steps; in the loop's body, the number of the current step, from 0."""
        self.finished = False
        """True if the training has reached its end."""
        self._objects, self._loader = objects, loader
        self._position = DataPosition(replay=replay, objects=objects)
        self._random: dict[str, Any] | None = None
        self._goal = 0
        """Number of epochs or steps that the finished loop was to run; _ANY_GOAL after finish()."""
        self._running = False
        """True between begin() and end()."""
        self._save_requested = False
        self._prepared = ""
        """State for which slot memory has been allocated: "" (none), "parameters" or "all"."""
        self._rows = MetricRows()
        self._accumulation = Accumulation(objects)
        self._alignment = StateAlignment()
        self.buckets = BucketOrders(objects.values)
        """Bucket orders of DDP models; the objects are read at each use, because frameworks wrap models later."""
        self._ranks = Ranks()
        self._record = OutcomeRecord(_training(folder), self._ranks.rank, self._ranks.world)
        try:
            self._set_up(folder, lambda: Policy.of(every, keep, overlap, on_damage))
        except CheckpointError as error:
            if error.code is not None:
                self._record.write(Outcome(error.code, 0, None, None, str(error)))
            raise
        if not self.finished:
            self._record.announce()
            self._interruption.listen()

    def _set_up(self, folder: str | os.PathLike[str] | None, make_policy: Callable[[], Policy]) -> None:
        ranks = self._ranks
        with ranks.raise_on_all():
            check_objects(self._objects)
            policy = self._policy = make_policy()
            store = self._store = find_store(folder, world=ranks.world)
            self._folder_lock = FolderLock(store)
        self._schedule = policy.schedule
        self._progress = ProgressFile.from_environment(ranks.local_rank, self._schedule)
        self._interruption = Interruption()
        self._shared = folder is not None
        with store.job_dir.retrying(start_retry_timeout_s(), logger().warning):
            self._take_up(store)
        self._last_time = time.monotonic()

    def _take_up(self, store: CheckpointStore) -> None:
        """Begin an attempt and restore the newest checkpoint."""
        ranks, policy = self._ranks, self._policy
        attempt = begin_attempt(store, ranks, shared=self._shared)
        self._unwritable = attempt.unwritable
        self._saver = Saver(
            lambda: WriterClient.connect(store, ranks.rank, ranks.world, attempt.number),
            ranks,
            self._objects,
            attempt=attempt.number,
            run=attempt.run,
            keep=policy.keep,
            overlap=policy.overlap,
        )
        self._saver.on_commit, self._saver.on_fenced = self._committed, self._stop_as_fenced
        try:
            self._restore(attempt)
        except BaseException:
            self._saver.close()  # the exception may keep this object alive: do not keep the writer waiting for it
            raise

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """Record an error that ends the program in the outcome file."""
        try:
            yield
        except CheckpointError as error:
            if error.code is not None:
                self.report(error.code, str(error))
            raise

    # Begin and end of the loop

    def begin(self) -> None:
        """Begin training: restore random state, and start to handle notices and signals. Idempotent. Collective.

        Raises SystemExit if a notice to stop has already arrived, CheckpointError if nothing can be saved.
        """
        if self._running:
            return
        self._running = True
        self.finished = False
        try:
            self._check_folder()
            self.buckets.restore()
            self._restore_random()
            self._record.begin()
            self._interruption.listen()
            self._interruption.handle_signals()
            self._saver.attach()
            self._alignment.attach()
            self._accumulation.attach()
            self._last_time = time.monotonic()
            self._schedule.count_from(self.step, self._last_time)
            self._explain(self._last_time)
            self._boundary()
        except BaseException:  # the loop does not start, so it will not call end()
            self.end(finished=False)
            raise

    def end_step(self, epoch_ended: bool = False) -> None:
        """Count a completed step, save if due, and handle a notice. Collective.

        epoch_ended  True if the step was the last of its epoch

        Raises SystemExit, after a save, for a notice to stop.
        """
        self._count_step()
        if epoch_ended:
            self._position.next_epoch()
        self._boundary()

    def end(self, finished: bool = True, *, goal: int | None = None) -> None:
        """End training, and stop handling notices and signals. Idempotent.

        finished  True: save the end of the training, and raise SystemExit if that fails; False: the loop ended early
        goal      number of epochs or steps that are done: a later run with a larger goal continues the training; None:
                  no later run continues it
        """
        if not self._running:
            if not finished:  # training may never have begun: agent and writer must not wait for it
                self._interruption.stop_listening()
                self._saver.close()
            return
        try:
            if finished:
                self._finish(goal)
            else:
                self._saver.leave_behind(ABORT_TIMEOUT_S)
        finally:
            self._running = False
            self._interruption.restore_signals()
            self._interruption.stop_listening()
            self._alignment.detach()
            self._accumulation.detach()
            self._saver.close()

    def release(self) -> None:
        """Release the folder, so that another Checkpointer of this process can continue the training.

        Calls end(finished=False), which ends a loop in progress.
        """
        self.end(finished=False)
        self._folder_lock.release()

    def _check_folder(self) -> None:
        """Raise CheckpointError if this training cannot save in its folder. Collective."""
        with self.report_errors(), self._ranks.raise_on_all():
            self._folder_lock.use()
            if self._unwritable is not None:
                raise self._unwritable

    # The step boundary

    def _boundary(self) -> None:
        """Handle notices and due saves between two steps. Collective: a small all-reduce if there are several ranks."""
        self._folder_lock.use()
        now = self._count_time()
        notice = self._interruption.poll()
        if notice is not None and not notice.stop:
            logger().info(f"{notice.reason}: saving now, and more often; training goes on")
            self._schedule.hurry(now + (notice.left or 0.0))
            self._save_requested = True
        # If the interval is a time, rank 0 alone decides, because clocks differ; step numbers are equal on all ranks.
        due = self._schedule.due(self.step, now) and (self._ranks.rank == 0 or self._schedule.interval is None)
        with self.report_errors():
            stop, save = self._agree(notice is not None and notice.stop, due or self._save_requested)
            self.buckets.note()
            if stop:
                self._save_and_stop(notice)
            self._save_or_prepare(save and self._saver.staged != (self.step, False))

    def _restore_random(self) -> None:
        """Restore random state, once and as late as possible, so that draws before the training do not change it."""
        if self._random is not None:
            random_state.restore(self._random, random_state.generators_of(self._loader))
            self._random = None

    def _save_or_prepare(self, save: bool) -> None:
        free = save and self._saver.can_stage()
        self._save_requested = save and not free  # earlier saves are still being written: retry at a later boundary
        if free:
            self._save()
        else:
            self._prepare()
            self._progress.write()

    def _agree(self, stop: bool, save: bool, *, finish: bool = False) -> tuple[bool, bool]:
        """Return whether any rank wants to stop, and whether any wants to save. Collective.

        Raises CheckpointError if the ranks are at different steps.
        """
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
        self._progress.saved_step = self.saved_step
        return values

    def _count_step(self) -> None:
        self.step += 1
        self._position.batch += 1
        self._accumulation.count_step()

    def _count_time(self) -> float:
        now = time.monotonic()
        self._progress.step = self.step
        self._progress.step_seconds += now - self._last_time
        self._last_time = now
        return now

    # Saving

    def _prepare(self) -> None:
        """Allocate the slots' memory before the first save, and check the disk space. Collective.

        Memory is allocated before the first step, for the expected size, and again after that step, when the actual
        size of the optimizers' state is known.
        """
        more = 0 if self.step else state_to_come(self._objects)
        if self._running and more is not None and self._prepared != (known := "all" if self.step else "parameters"):
            first, self._prepared = not self._prepared, known
            size = self._saver.prepare(self._content, more)
            if first:
                check_room(self._store, self._ranks, size, self._policy.keep)

    def _content(self) -> Content:
        snapshot = {
            "step": self.step,
            "goal": self._goal,
            "position": self._position.state_dict(),
            "random": random_state.capture(random_state.generators_of(self._loader)),
            "state": self.state,
            "history": self._schedule.history(time.monotonic()),
            "objects": {name: value.state_dict() for name, value in self._objects.items()},
            "gradients": self._accumulation.state_dict(),
            "buckets": self.buckets.state_dict(),
        }
        return Content(self.step, self.finished, snapshot, self._rows.take)

    def _save(self) -> None:
        """Stage the state for the writer, which writes it while training continues."""
        start = time.monotonic()
        self._saver.stage(self._content)
        self._progress.staged()
        self._last_time = time.monotonic()
        self._count_blocked(start, self._last_time)
        self._progress.write(force=True)

    def _count_blocked(self, start: float, end: float) -> None:
        self._schedule.count_from(self.step, end, blocked=end - start)
        self._progress.blocked_seconds += end - start
        self._explain(end)

    def _explain(self, now: float) -> None:
        """Log the interval between saves and its reason, at first and when it changes."""
        if self._ranks.rank == 0 and (line := self._schedule.explanation(now)):
            logger().info(line)

    def _committed(self, name: Name, seconds: float) -> None:
        """Update schedule and metrics after a commit; called on rank 0."""
        self._schedule.written(seconds)
        self._rows.committed(str(name))

    def _save_at_last(self, left: float | None = None) -> bool:
        """Save and wait until the save is committed; return whether it was. `left`: timeout in seconds. Collective."""
        start = time.monotonic()
        deadline = start + left if left is not None else math.inf
        self._progress.staged()
        if self._saver.staged == (self.step, self.finished):
            saved = self._saver.settle(deadline) or self._saver.save_at_last(self._content, deadline)
        else:
            saved = self._saver.save_at_last(self._content, deadline)
        self._last_time = time.monotonic()
        self._progress.blocked_seconds += self._last_time - start
        self._progress.saved_step = self.saved_step
        self._progress.write(force=True)
        return saved

    # The end

    def _finish(self, goal: int | None) -> None:
        self._count_time()
        with self.report_errors():
            self._agree(stop=False, save=True, finish=True)
            self.finished = True
            self._goal = goal if goal is not None else _ANY_GOAL
            saved = self._save_at_last()
        if not saved:
            stands = self._saver.describe_newest()
            self.leave(EXIT_STORE, f"training is done, but its end could not be saved: {stands}")
        self.report(EXIT_DONE, f"training is done: {self.step} steps")

    def _save_and_stop(self, notice: Notice | None) -> NoReturn:
        """Save the state and end the program."""
        reason = notice.reason if notice is not None else "another rank received a notice to stop"
        if self._save_at_last(notice.left if notice is not None else None):
            self.leave(EXIT_SAVED, f"{reason}: stopped at step {self.step}, saved as {self._saver.last}")
        code = EXIT_STALE if self._saver.last is not None else EXIT_NOTHING_SAVED
        unsaved = f"{reason}: stopped at step {self.step}, which could not be saved"
        self.leave(code, f"{unsaved}; {self._saver.describe_newest()}")

    def _stop_as_fenced(self, reason: str) -> NoReturn:
        self.leave(EXIT_FENCED, f"{reason}: stopping at step {self.step}")

    def _outcome(self, code: int, reason: str) -> Outcome:
        last = self._saver.last
        return Outcome(code, self.step, self.saved_step, str(last) if last else None, reason)

    def report(self, code: int, reason: str) -> None:
        """Write the outcome of this training to the outcome file; `code` is a key of outcome.OUTCOMES."""
        self._record.write(self._outcome(code, reason))

    def leave(self, code: int, reason: str) -> NoReturn:
        """End the program with an outcome and its exit code."""
        self._saver.close()
        self._record.leave(self._outcome(code, reason))

    def poll_notice(self) -> Notice | None:
        """Return a notice to save or to stop; None if there is none. A notice to save is returned once."""
        return self._interruption.poll()

    @property
    def saved_step(self) -> int | None:
        """Number of completed steps in the newest checkpoint known to be committed."""
        return self._saver.last.step if self._saver.last else None

    # Restoring

    def _restore(self, attempt: Attempt) -> None:
        start, ranks = time.monotonic(), self._ranks
        found = restore_objects(
            self._store, ranks, attempt, self._saver.client, self._objects, on_damage=self._policy.on_damage
        )
        if found is None:
            return
        self._folder_lock.use()
        with ranks.raise_on_all():
            self._load(found.snapshot)
            if ranks.rank == 0:
                self._rows.resume(self._store.find_metrics, str(found.name))
        self.finished = found.commit.finished
        self._saver.last, self._saver.staged = found.name, (self.step, self.finished)
        starts = 0 if self.finished else starts_since(found.name, attempt.number, shared=self._shared)
        self._schedule.resumed(found.snapshot.get("history"), starts=starts)
        self._report_restore(found.name, time.monotonic() - start)

    def _load(self, snapshot: dict[str, Any]) -> None:
        """Load the snapshot, except for the states of the objects."""
        self.state = snapshot["state"]
        self.step, self._goal = snapshot["step"], snapshot["goal"]
        self._position.load_state_dict(snapshot["position"])
        self._random = snapshot["random"]
        self._accumulation.load_state_dict(snapshot.get("gradients", {}))
        self._alignment.restored = True
        self.buckets.load_state_dict(snapshot.get("buckets", {}))

    def _report_restore(self, name: Name, seconds: float) -> None:
        progress = self._progress
        progress.restored_step = progress.saved_step = progress.step = self.step
        progress.restore_seconds = seconds
        progress.write(force=True)
        if self._ranks.rank == 0:
            what = "training was finished" if self.finished else "training goes on"
            logger().info(f"{what} at step {self.step}, restored from {self._store}/{name}")


def _training(folder: str | os.PathLike[str] | None) -> str:
    """Return the identifier of a training in the outcome file: its folder, or "" for the job's folder."""
    text = "" if folder is None else os.fspath(folder)
    return text if not text or "://" in text else os.path.abspath(text)  # noqa: PTH100 - does not resolve links
