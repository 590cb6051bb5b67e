"""The Checkpointer: three lines in a training program. An interruption costs the steps since the last save.

    from cloudgpu.runtime import Checkpointer
    ckpt = Checkpointer(model=model, optimizer=opt, scheduler=sched, loader=loader)
    for batch in ckpt.batches(epochs=10):
        train_on(batch)

Asking for the next batch is the step boundary: there, what is due is saved, and a notice is obeyed.
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
    """Saves and restores named objects, random state and the place in the data.

    loader     what `batches()` goes through: a DataLoader, or anything that can be iterated once per epoch
    folder     path or URL of the checkpoints; default: the job's own, or ./checkpoints outside a job
    every      steps (500), a duration ("30s", 30.0) or "auto"; default: the job file's, or "auto"
    keep       how many checkpoints to keep; default: the job file's, or 3
    on_damage  what to do when every checkpoint is damaged: "stop", or "restart" from the beginning; default: the job
               file's, or "stop"
    replay     find the place in the data by reading up to it: for augmentation drawn at random inside of loader workers
    overlap    copy parameters and optimizer state while the next forward and backward pass runs: True, False, or
               "auto", where some saves of each kind show that it costs less
               (docs/guides/checkpointing.md, "What it costs")
    **objects  whatever has state_dict() and load_state_dict(): model, optimizer, scheduler, ema ...

    Making one restores the newest checkpoint that verifies, if there is any. With several ranks make it on each, after
    init_process_group(), hvd.init() or the import of mpi4py.MPI. Raises CheckpointError if there are checkpoints that
    do not fit, or if this process has trained in that folder already.
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
        """Yield the numbers 0 to n - 1, those done before an interruption left out.

        Raises CheckpointError if there is a loader, whose place would not be saved.
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
        with self._told():
            self._saver.settle(math.inf)

    def log(self, **values: Any) -> None:  # numbers, or tensors of one
        """Metrics of this step, by name: numbers. Each step is kept exactly once, however often it was interrupted."""
        if self._ranks.rank == 0:
            self._rows.log(self.step, values)

    def open_epoch(self, loader: object = None) -> Iterator[Any]:  # any iterable
        """What is left of this epoch of the loader (default: the one given to Checkpointer())."""
        start, resumed = time.monotonic(), self._position.batch > 0
        source = self._position.open_epoch(self._loader if loader is None else loader)
        if resumed:  # finding the place in it again is part of the restore
            taken = time.monotonic() - start
            self._progress.restore_seconds += taken
            self._mark += taken
        return source

    def _is_over(self, goal: int) -> bool:
        """Return whether nothing is left to do; then what follows the loop finds the random state of the end."""
        over = self.finished and goal <= self._goal
        if over:
            self._restore_random()
        return over
