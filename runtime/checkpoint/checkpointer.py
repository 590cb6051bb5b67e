"""The Checkpointer: three lines in a training program. An interruption costs the steps since the last save.

    from cloudgpu.runtime import Checkpointer
    ckpt = Checkpointer(model=model, optimizer=opt, scheduler=sched, loader=loader)
    for batch in ckpt.batches(epochs=10):
        train_on(batch)

Asking for the next batch is the step boundary: there, what is due is saved, and a notice is obeyed.
See docs/checkpointing.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..jobdir import JobDirError
from . import random_state
from . import state as state_format
from .data_position import DataPosition, length
from .errors import (
    EXIT_FENCED,
    EXIT_NONE,
    EXIT_OLDER,
    EXIT_SAVED,
    EXIT_STORE,
    CheckpointError,
    FencedError,
    leave,
    logger,
)
from .interruption import Interruption
from .progress import ProgressFile
from .ranks import Ranks
from .schedule import Schedule
from .settings import find_store, from_environment, seconds_or_auto
from .names import Name
from .store import read_newest

LAST_TRIES = 3
"""Of the save at the end or upon a notice, after which there is no other."""
LAST_PAUSE = 0.5
"""Seconds before the second try, doubled before the third."""
_END = object()


class Checkpointer:
    """Saves and restores named objects, random state and the place in the data.

    loader     what `batches()` goes through: a DataLoader, or anything that can be iterated once per epoch
    folder     path or URL of the checkpoints; default: the job's own, or ./checkpoints outside a job
    every      steps (500), a duration ("30s", 30.0) or "auto"; default: the job file's, or "auto"
    keep       how many checkpoints to keep; default: the job file's, or 3
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
        **objects: Any,  # noqa: ANN401 - anything with a state_dict
    ) -> None:
        _require_torch()
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
        self._position = DataPosition()
        self._random: dict[str, Any] | None = None
        self._goal = 0
        """Epochs or steps that the loop was asked for when it finished."""
        self._saves, self._failures = 0, 0
        """Tries to save in this process; of those, how many in a row have failed now."""
        self._asked = False
        self._running = False
        """Between begin() and end()."""
        self._rows: list[dict[str, Any]] = []
        """What log() was given since the last save."""
        self._last: Name | None = None
        """The newest checkpoint of this run, or the one it was restored from."""
        self._saved_state: tuple[int, bool] | None = None
        self._ranks = Ranks()
        self._keep = keep if keep is not None else from_environment("CLOUDGPU_CHECKPOINT_KEEP", int, 3)
        if self._keep < 1:
            raise CheckpointError(f"keep={self._keep}: at least one checkpoint must be kept")
        self._schedule = Schedule(
            every if every is not None else from_environment("CLOUDGPU_CHECKPOINT_EVERY", seconds_or_auto, "auto")
        )
        self._progress = ProgressFile.from_environment(self._ranks.local_rank)
        self._interruption = Interruption()
        self._store = find_store(folder, world=self._ranks.world)
        self._attempt = self._ranks.from_first(self._begin_attempt)
        self._restore()
        self._mark = time.monotonic()
        if not self.finished:
            self._interruption.listen()

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

    def log(self, **values: Any) -> None:  # noqa: ANN401 - numbers, or what has item()
        """Metrics of this step: they count once the step is saved, so that no step is there twice after a restart."""
        self._rows.append({"step": self.step, **values})

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
        self._mark = time.monotonic()
        self._schedule.count_from(self.step, self._mark)
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
        finally:
            self._running = False
            self._interruption.put_back_signals()
            self._interruption.stop_listening()

    # The step boundary

    def _is_over(self, goal: int) -> bool:
        return self.finished and goal <= self._goal

    def _boundary(self) -> None:
        """Between two steps: count, obey, save. One small all-reduce if there are several ranks."""
        now = self._count_time()
        reason = self._interruption.reason()
        # Clocks differ, so rank 0's decides; a step's number is everywhere the same.
        due = self._schedule.due(self.step, now) and (self._ranks.rank == 0 or self._schedule.interval is None)
        stop, save = self._agree(reason is not None, due or self._asked, finish=False)
        self._asked = False
        if stop:
            self._obey(reason or "another rank was told to stop")
        elif save and self._saved_state != (self.step, False):
            self._save()
        else:
            self._progress.write()

    def _agree(self, stop: bool, save: bool, *, finish: bool) -> tuple[bool, bool]:
        place = (finish, self.step, self._position.epoch)
        values = self._ranks.maximum([stop, save, *place, *(-int(part) for part in place)])
        if values[2:5] != [-value for value in values[5:8]]:
            raise CheckpointError(
                f"the ranks are at different steps (this one is at {self.step}): each must get the same number of "
                "batches, as torch.utils.data.DistributedSampler sees to"
            )
        return bool(values[0]), bool(values[1])

    def _count_step(self) -> None:
        self.step += 1
        self._position.batch += 1

    def _count_time(self) -> float:
        now = time.monotonic()
        self._progress.step = self.step
        self._progress.step_seconds += now - self._mark
        self._mark = now
        return now

    def _finish(self, goal: int | None) -> None:
        self._count_time()
        self._agree(stop=False, save=True, finish=True)
        self.finished = True
        self._goal = goal if goal is not None else 1 << 62
        if not self._save_at_last():
            stands = f"the newest checkpoint is {self._last}" if self._last else "there is no checkpoint"
            leave(EXIT_STORE, f"training is done, but its end could not be saved: {stands}")

    def _obey(self, reason: str) -> None:
        """Save and end the program."""
        if self._saved_state == (self.step, False) or self._save_at_last():
            leave(EXIT_SAVED, f"{reason}: stopped at step {self.step}, saved as {self._last}")
        if self._last is not None:
            leave(EXIT_OLDER, f"{reason}: stopped at step {self.step}, which could not be saved; {self._last} stands")
        leave(EXIT_NONE, f"{reason}: stopped at step {self.step}, which could not be saved; there is no checkpoint")

    # Saving

    def _save_at_last(self) -> bool:
        for attempt in range(LAST_TRIES):
            if attempt:
                time.sleep(LAST_PAUSE * attempt)  # a store that stumbles may answer again; after this there is no other
            if self._save():
                return True
        return False

    def _save(self) -> bool:
        """One checkpoint of all ranks; a failure is told and costs nothing but the time."""
        start = time.monotonic()
        try:
            error = self._publish(state_format.to_bytes(self._snapshot()))
        except FencedError as fenced:
            leave(EXIT_FENCED, f"{fenced}: stopping at step {self.step}")
        self._mark = time.monotonic()
        self._schedule.count_from(self.step, self._mark, blocked=self._mark - start)
        self._progress.blocked_seconds += self._mark - start
        if error is None:
            self._failures = 0
            self._saved_state = (self.step, self.finished)
            self._progress.saved_step = self.step
        else:
            self._failures += 1
            self._complain(error)
        self._progress.write(force=True)
        return error is None

    def _snapshot(self) -> dict[str, Any]:
        """Everything that makes up this moment, in memory of our own: later steps cannot change it any more."""
        return {
            "step": self.step,
            "goal": self._goal,
            "position": state_format.to_host(self._position.state_dict(), "the data position"),
            "random": random_state.capture(random_state.generators_of(self._loader)),
            "state": state_format.to_host(self.state, "ckpt.state"),
            "objects": {name: state_format.to_host(value.state_dict(), name) for name, value in self._objects.items()},
        }

    def _publish(self, data: bytes) -> str | None:
        """Write this rank's shard; the first rank commits when all are there. The error, the same on every rank."""
        ranks, store = self._ranks, self._store
        self._saves += 1
        name = ranks.from_first(lambda: Name.new(self.step, self._attempt, self._saves))
        shard, problem = _try(lambda: store.write_shard(name, ranks.rank, data))
        answers = ranks.gather((shard, problem))
        problem = next((problem for _, problem in answers if problem), None)
        if problem is None:
            shards = [shard for shard, _ in answers if shard is not None]
            problem = ranks.from_first(lambda: self._commit(name, shards))
        if ranks.rank == 0:  # what a failed save leaves would take the next one's room
            tidy = (lambda: store.retain(name, self._keep)) if problem is None else (lambda: store.discard(name))
            if (untidy := _try(tidy)[1]) and problem is None:
                logger().warning(f"old checkpoints could not be removed: {untidy}")
        if problem is None:
            self._last = name
        return problem

    def _commit(self, name: Name, shards: list[str]) -> str | None:
        try:
            return _try(lambda: self._store.commit(name, shards, finished=self.finished, time=time.time()))[1]
        except FencedError:
            _try(lambda: self._store.discard(name))
            raise

    def _complain(self, error: str) -> None:
        """The first failure of a row with its cause, then at every doubling: no line per step, no silence either."""
        if self._ranks.rank or self._failures & (self._failures - 1):
            return
        stands = f"the newest checkpoint is {self._last}" if self._last else "there is NO checkpoint"
        often = f"{self._failures} saves in a row have failed; " if self._failures > 1 else ""
        log = logger().error if self._failures > 1 else logger().warning
        log(f"step {self.step} could not be saved, training goes on; {often}{stands}: {error}")

    # Restoring

    def _restore(self) -> None:
        start = time.monotonic()
        try:
            found = read_newest(self._store, self._ranks)
        except JobDirError as error:
            raise CheckpointError(f"checkpoints cannot be read: {error}") from error
        if found is None:
            return
        self._last, commit, data = found
        try:
            self._load(state_format.from_bytes(data))
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self._store}: checkpoint {self._last} does not fit this program: {error}. Restore what it was saved "
                "with, or give another folder to begin anew"
            ) from error
        self.finished = commit.finished
        self._saved_state = (self.step, self.finished)
        progress = self._progress
        progress.restored_step = progress.saved_step = progress.step = self.step
        progress.restore_seconds = time.monotonic() - start
        progress.write(force=True)
        if self._ranks.rank == 0:
            what = "training was finished" if self.finished else "training goes on"
            logger().info(f"{what} at step {self.step}, restored from {self._store}/{self._last}")

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

    def _begin_attempt(self) -> int:
        """Fence off what may still run of older attempts, and remove what they left unfinished."""
        wanted = from_environment("CLOUDGPU_ATTEMPT", int, None)
        try:
            attempt = self._store.claim(wanted)
            self._store.clean(attempt)
            newest = self._store.newest_attempt()
        except JobDirError as error:
            logger().warning(f"{self._store} cannot be written, nothing may be saved: {error}")
            return wanted if wanted is not None else 1
        if newest > attempt:
            raise CheckpointError(f"attempt {newest} has taken over {self._store} from this attempt {attempt}")
        return attempt


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise CheckpointError("Checkpointer needs PyTorch: pip install 'cloudgpu[torch]'") from error


def _try(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """The call's result, and why it failed."""
    try:
        return call(), None
    except (JobDirError, OSError) as error:
        return None, str(error)
