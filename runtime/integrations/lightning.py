"""Lightning: make `Trainer(callbacks=[CheckpointCallback()])` resumable.

    from cloudgpu.runtime.integrations.lightning import CheckpointCallback

Resumes in mid-epoch: module, optimizers, schedulers, callbacks, loops, precision, random state and the position in the
data. Signals are handled between two batches, not in their handlers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..checkpoint.checkpointer import Checkpointer
from ..checkpoint.errors import CheckpointError
from .deferred import misfit
from .gradients import Gradients
from .loader_place import LoaderPosition
from .missing_framework import missing

try:
    import lightning.pytorch as pl
except ImportError as error:
    raise missing("lightning", "lightning>=2.5", error) from None

from .lightning_swa import clear_schedulers, resume_averaging

_SHARDED = ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy")
_NOT_STATE = tuple(
    getattr(owner, f"CHECKPOINT_HYPER_PARAMS_{part}")
    for owner in (pl.LightningModule, pl.LightningDataModule)
    for part in ("KEY", "NAME", "TYPE")
)
"""Keys of Lightning's checkpoints that are not saved: hyperparameters, which may be any Python objects; fit() does not
use them."""


class CheckpointCallback(pl.Callback):  # type: ignore[misc]
    """Callback that saves and restores one `fit`.

    folder, every, keep, on_damage  as for Checkpointer; `every` counts batches
    replay               restore the position in the data by reading, which repeats random augmentation in workers

    After a notice or SIGTERM, the state is saved before the next batch, and SystemExit(75) is raised. A finished `fit`
    does nothing when it is run again. Raises CheckpointError if the checkpoint is of another module.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        every: int | float | str | None = None,
        keep: int | None = None,
        on_damage: str | None = None,
        replay: bool = False,
    ) -> None:
        self._settings: dict[str, Any] = {"folder": folder, "every": every, "keep": keep, "on_damage": on_damage}
        self._place = LoaderPosition(replay=replay)
        self._checkpointer: Checkpointer | None = None
        self._loops: _Loops | None = None
        self._begun = False
        """True if this process has begun a batch."""

    # Hooks called by Lightning

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if type(trainer.strategy).__name__ in _SHARDED:
            raise CheckpointError(f"{type(trainer.strategy).__name__} shards its state itself: not supported")
        if self._checkpointer is not None:
            raise CheckpointError("this CheckpointCallback has been through a fit() already: each fit() needs its own")
        self._loops = loops = _Loops(trainer)
        self._checkpointer = Checkpointer(lightning=loops, place=self._place, **self._settings)
        loops.restore()
        # Without this, Lightning would train another batch before it stops.
        trainer.should_stop = self._checkpointer.finished and loops.stopped

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        # Lightning's own handlers would save inside of the signal handler, and end the program in mid-epoch.
        trainer._signal_connector.teardown()
        self._running.buckets.models = lambda: [trainer.strategy.model]
        self._running.begin()
        self._enter_data(trainer)
        if self._loops is not None:
            if self._loops.resumed and not self._loops.had_ended:
                resume_averaging(trainer)
            self._loops.gradients.load_state_dict(self._loops.accumulated)
            trainer._logger_connector._callback_metrics.update(self._loops.monitored)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if trainer.current_epoch > self._place.position.epoch:
            self._place.next_epoch()
        self._place.position.epoch = trainer.current_epoch
        self._enter_data(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        # Not at the end of the previous batch, which is followed by validation, schedulers and loggers.
        self._place.position.batch = batch_idx
        if self._begun:
            self._running.end_step()
        elif self._loops is not None and self._loops.resumed and not self._loops.had_ended:
            trainer.fit_loop.epoch_loop.batch_progress.total.ready -= 1  # already counted before the save
        self._begun = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._begun:
            # Without this, Lightning would omit the schedulers' step at the end of an interrupted epoch.
            trainer.fit_loop._restarting = False

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._loops is not None:
            self._loops.ended = True
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if progress.is_last_batch:
            self._place.next_epoch()
        else:
            self._place.position.batch = progress.current.completed
        self._running.end()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:  # noqa: ARG002
        if self._checkpointer is not None:
            self._checkpointer.end(finished=False)

    @property
    def _running(self) -> Checkpointer:
        if self._checkpointer is None:
            raise CheckpointError("a CheckpointCallback belongs into Trainer(callbacks=[...])")
        return self._checkpointer

    def _enter_data(self, trainer: Any) -> None:
        """Wrap the Trainer's loader by `_place`, to track the position. Raises CheckpointError for several loaders."""
        loop = trainer.fit_loop
        loaders = loop._combined_loader.flattened
        if len(loaders) != 1:
            raise CheckpointError(f"there are {len(loaders)} training dataloaders: only one can be resumed")
        if self._place.wraps(loaders[0]):
            return
        loop._combined_loader.flattened = [self._place.wrap(loaders[0])]
        iter(loop._data_fetcher)


class _Loops:
    """The Trainer's state, as in Lightning's checkpoints, adapted to a save between two batches."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loaded: dict[str, Any] = {}
        self.gradients = Gradients(lambda: [trainer.lightning_module], self._is_accumulating)
        self.accumulated: Mapping[str, Any] = {}
        self.monitored: Mapping[str, Any] = {}
        """Metrics of the last validation, which schedulers and callbacks monitor."""
        self.resumed = self.stopped = self.ended = self.had_ended = False

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        for name in _NOT_STATE:
            checkpoint.pop(name, None)
        fit_loop = checkpoint["loops"] = {"fit_loop": checkpoint["loops"]["fit_loop"]}
        fit_loop["fit_loop"]["state_dict"].pop("combined_loader", None)  # LoaderPosition saves the position instead
        epoch_loop = trainer.fit_loop.epoch_loop
        if not self.ended and not epoch_loop._should_accumulate():
            # Lightning expects saves at the end of a batch, so it counts the current batch as one that stepped.
            fit_loop["fit_loop"]["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        stopped = self.ended and bool(trainer.should_stop)
        return {
            "checkpoint": checkpoint,
            "gradients": self.gradients.state_dict(),
            "stopped": stopped,
            "ended": self.ended,
            "monitored": dict(trainer._logger_connector._callback_metrics),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded, self.accumulated = state["checkpoint"], state["gradients"]
        self.stopped, self.had_ended, self.monitored = state["stopped"], state["ended"], state["monitored"]

    def restore(self) -> None:
        """Restore module, data module and callbacks; Lightning restores loops and optimizers after this hook."""
        if not self._loaded:
            return
        connector = self._trainer._checkpoint_connector
        connector._loaded_checkpoint, self._loaded = self._loaded, {}
        try:
            connector.restore_model()
        except RuntimeError as error:
            raise misfit("module", " ".join(str(error).split())) from error
        connector.restore_datamodule()
        connector.restore_callbacks()
        clear_schedulers(self._trainer)
        self.resumed = True

    def _is_accumulating(self) -> bool:
        loop = self._trainer.fit_loop.epoch_loop
        if self.ended:
            return False
        return loop.batch_idx % self._trainer.accumulate_grad_batches != 0 or not (
            self._trainer.lightning_module.automatic_optimization
        )
