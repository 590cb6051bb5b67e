"""The Checkpointer: saves and restores the state of a training loop.

    from cloudgpu.runtime import Checkpointer

    ckpt = Checkpointer(model=model, optimizer=opt, scheduler=sched, loader=loader)
    for batch in ckpt.batches(epochs=10):
        train_on(batch)

Each request for the next batch is a step boundary: a save that is due is made there, and a preemption notice is
handled. After an interruption the program is started again and resumes from the newest checkpoint.
See docs/guides/checkpointing.md.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any

from .data.data_position import length
from .errors import CheckpointError
from .session import Session

STEPS_WITH_LOADER = (
    "steps() does not go through the loader, so its place in the data would not be saved: use batches(epochs=...), or "
    "make the Checkpointer without a loader"
)
_END = object()


class Checkpointer(Session):
    """Checkpoints of a training loop: named objects, random generators and the position in the data.

    loader     iterated by `batches()`: a DataLoader, or any object that can be iterated once per epoch
    folder     path or URL of the checkpoints; default: the job's; outside a job, $CLOUDGPU_CHECKPOINTS or ./checkpoints
    every      interval between saves: steps (500), a duration ("30s", 30.0 seconds) or "auto"; default: the job
               file's, or "auto"
    keep       number of checkpoints to keep, at least 1; default: the job file's, or 3
    on_damage  action if every checkpoint is damaged: "stop", or "restart" from the beginning; default: the job file's,
               or "stop"
    replay     restore the position in the data by reading and dropping the batches before it, which also repeats random
               augmentation inside of loader workers
    overlap    copy parameters and optimizer state while the next forward and backward pass runs: True, False, or
               "auto", which measures some saves of each kind (docs/guides/checkpointing.md, "What it costs")
    **objects  objects with state_dict() and load_state_dict(): model, optimizer, scheduler, ema ...

    The constructor restores the newest checkpoint that verifies, if any. With several ranks, construct it on each,
    after init_process_group(), hvd.init() or the import of mpi4py.MPI. It raises CheckpointError if an argument is
    invalid, if there are checkpoints but none can be restored into the objects, or if another Checkpointer of this
    process has trained in the same folder.

    Attributes: `step` and `epoch` (number completed), `state` (a dict for plain values of the program, saved with the
    rest), `finished` (training has reached its end), `saved_step` (steps in the newest committed checkpoint).

    On a preemption notice, `batches()` and `steps()` end the program with SystemExit between two steps: with exit code
    75 (errors.EXIT_SAVED) if all steps are saved. errors.py lists the other codes. Methods are not thread-safe.
    """

    def __init__(
        self,
        *,
        loader: object = None,  # any iterable
        folder: str | os.PathLike[str] | None = None,
        every: int | float | str | None = None,
        keep: int | None = None,
        on_damage: str | None = None,
        replay: bool = False,
        overlap: bool | str = "auto",
        **objects: Any,  # anything with a state_dict
    ) -> None:
        super().__init__(
            objects,
            loader=loader,
            folder=folder,
            every=every,
            keep=keep,
            on_damage=on_damage,
            replay=replay,
            overlap=overlap,
        )

    # The loop

    @property
    def epoch(self) -> int:
        """Number of completed epochs; in the loop's body, the number of the current epoch, from 0."""
        return self._position.epoch

    @property
    def end_of_epoch(self) -> bool:
        """True if the current batch is the last of its epoch.

        Call it in the loop's body. Raises CheckpointError if the loader has no length.
        """
        batches = length(self._loader)
        if batches is None:
            raise CheckpointError("end_of_epoch: the loader has no length, so its last batch is not known beforehand")
        return self._position.batch + 1 >= batches

    def batches(self, *, epochs: int) -> Iterator[Any]:
        """Yield the batches of `epochs` epochs in total, without those that were completed before an interruption.

            for batch in ckpt.batches(epochs=10):
                train_on(batch)

        Raises CheckpointError if there is no loader, if its data is not that of the checkpoint, if nothing can be saved
        in the folder, or if the ranks are at different steps.
        """
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
        """Yield the step numbers 0 to n - 1, without those that were completed before an interruption.

            for step in ckpt.steps(10_000):
                train_on(next_batch(step))

        Raises CheckpointError if there is a loader (its position would not be saved), if nothing can be saved in the
        folder, or if the ranks are at different steps.
        """
        if self._loader is not None:
            raise CheckpointError(STEPS_WITH_LOADER)
        if self._is_over(n):
            return
        self.begin()
        try:
            while self.step < n:
                yield self.step
                if self.finished:
                    return
                self._count_step()
                if self.step < n:  # end() below saves the last step
                    self._boundary()
            self.end(goal=n)
        finally:
            self.end(finished=False)

    def finish(self) -> None:
        """End the training with this step (early stopping); call it in the loop's body, on all ranks.

        The state is saved as finished, and the loop ends. If the program is started again, its loop yields nothing.
        Raises SystemExit if the state cannot be saved.
        """
        self._count_step()
        self.end()

    def save(self) -> None:
        """Save at the end of this step, in addition to the schedule; call it in the loop's body."""
        self._save_requested = True

    def wait(self) -> None:
        """Block until the last save is committed or has failed; call it in the loop's body, on all ranks.

        Raises CheckpointError if other ranks make a different call.
        """
        with self.report_errors():
            self._saver.settle(math.inf)

    def log(self, **values: Any) -> None:  # numbers, or tensors of one
        """Record metrics of this step, by name; only rank 0's are kept.

        Values are numbers, or tensors and arrays of one element. The job's metrics have one row for each step, also
        after interruptions. Raises CheckpointError for any other value, and for the names `step` and `time`.

            ckpt.log(loss=loss, accuracy=accuracy)
        """
        if self._ranks.rank == 0:
            self._rows.log(self.step, values)

    def open_epoch(self, loader: object = None) -> Iterator[Any]:  # any iterable
        """Return an iterator over the rest of this epoch.

        loader  default: the loader passed to Checkpointer()

        Raises CheckpointError if the data is not that of the checkpoint.
        """
        start, resumed = time.monotonic(), self._position.batch > 0
        source = self._position.open_epoch(self._loader if loader is None else loader)
        if resumed:  # finding the position in the loader is part of the restore
            taken = time.monotonic() - start
            self._progress.restore_seconds += taken
            self._last_time += taken
        return source

    def _is_over(self, goal: int) -> bool:
        """Return whether the restored training had reached `goal`; if so, restore the random state of its end."""
        over = self.finished and goal <= self._goal
        if over:
            self._restore_random()
        return over
