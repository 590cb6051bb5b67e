"""Keras 3: make `model.fit(x, y, epochs=10, callbacks=[CheckpointCallback()])` resumable.

    from cloudgpu.runtime.integrations.keras import CheckpointCallback

Resumes in mid-epoch, on the torch, TensorFlow and JAX backends. A callback can set the epoch with which `fit` begins,
but not the batch. So the completed batches of that epoch are read again, in the same order, and dropped.
docs/guides/integrations.md says for which data this is exact.
"""

from __future__ import annotations

import os
from typing import Any

from ..checkpoint.checkpointer import Checkpointer
from ..checkpoint.errors import CheckpointError
from .missing_framework import missing

try:
    import keras
except ImportError as error:
    raise missing("keras", "keras>=3.8", error) from None

from .keras_skip import Skipping
from .keras_state import Position, Variables, processes, restore_random


class CheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that saves and restores one `fit`: model, optimizer, metrics, random state, epoch and batch.

    folder, every, keep, on_damage: as for Checkpointer; `every` counts batches.

    After a notice or SIGTERM, the state is saved at the end of the batch, and SystemExit(75) is raised. A finished
    `fit` does nothing when it is run again. Raises CheckpointError if the checkpoint is of another model, or if several
    processes train the model.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        every: int | float | str | None = None,
        keep: int | None = None,
        on_damage: str | None = None,
    ) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {"folder": folder, "every": every, "keep": keep, "on_damage": on_damage}
        self._checkpointer: Checkpointer | None = None
        self._place = Position()
        self._groups: list[Variables] = []
        self._amid_epoch = False
        """True if the checkpoint was saved within an epoch, until that epoch begins again."""
        self._skipping: Skipping | None = None

    # Hooks called by Keras

    def on_train_begin(self, logs: object = None) -> None:  # noqa: ARG002
        if self._checkpointer is not None:
            raise CheckpointError(
                "this CheckpointCallback has been through a fit() already: each fit() needs one of its own, with a "
                "folder of its own"
            )
        model, place = self.model, self._place
        if (together := processes(model)) > 1:
            raise CheckpointError(
                f"CheckpointCallback saves a fit() of one process, and {together} train this model together. Train in "
                "one process, or in a loop of your own with Checkpointer, which knows torch's ranks"
            )
        sync = getattr(model, "jax_state_sync", _nothing)  # with JAX, the state is not in the variables during an epoch
        weights = Variables("model", lambda: model.variables, sync)
        optimizer = Variables("optimizer", lambda: getattr(model.optimizer, "variables", ()), sync)
        metrics = Variables("metrics", lambda: model.metrics_variables, sync)
        self._groups = [weights, optimizer, metrics]
        self._checkpointer = Checkpointer(
            model=weights, optimizer=optimizer, metrics=metrics, place=place, **self._settings
        )
        epochs = self.params["epochs"]
        if self._checkpointer.finished and (place.goal is None or epochs <= place.goal):
            self._take_up_finished(weights, optimizer)
            model._initial_epoch = epochs  # read by fit(); set by keras.callbacks.BackupAndRestore, too
            return
        model._initial_epoch = place.epoch or None
        self._amid_epoch = place.batch > 0
        self._checkpointer.begin()

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
        self.model._initial_epoch = None  # fit() has read it; the next fit() must not
        # Not earlier: fit() has just reset the metrics; the restored ones include the completed batches of this epoch.
        if keras.backend.backend() != "tensorflow" or all(group.fits for group in self._groups):
            for group in self._groups:
                group.apply()
        if self._amid_epoch:
            self._amid_epoch = False
            self._place.check(self.params["steps"])
            restore_random(self._place.at_epoch)
            self._skipping = Skipping(self.model, self._place.batch, self._groups)
        else:
            weights, optimizer, metrics = self._groups
            if metrics.loaded or optimizer.loaded or weights.loaded:
                self._take_up_finished(weights, optimizer)
            metrics.forget()
            self.model.reset_metrics()  # the saved ones are of the previous epoch
            self._place.begin_epoch(epoch, self.params["steps"])

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        if self._skipping is not None and self._skipping.left:
            if self._skipping.count():
                restore_random(self._place.now)
            return
        self._place.batch += 1
        self._running.end_step()

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        if self._skipping is not None and self._skipping.left:
            raise CheckpointError(
                f"the checkpoint stands after step {self._place.batch} of an epoch, but the data ended "
                f"{self._skipping.left} steps before: it changed. Use what it was saved with, or give another folder"
            )
        self._running.log(epoch=epoch, **(logs or {}))
        self._place.end_epoch()

    def on_train_end(self, logs: object = None) -> None:  # noqa: ARG002
        self.model._initial_epoch = None  # if there was no epoch left to begin
        # Training that stopped early is finished, for any number of epochs.
        self._place.goal = None if self.model.stop_training else self.params["epochs"]
        self._running.end()

    @property
    def _running(self) -> Checkpointer:
        if self._checkpointer is None:
            raise CheckpointError("a CheckpointCallback belongs into model.fit(callbacks=[...])")
        return self._checkpointer

    def _take_up_finished(self, weights: Variables, optimizer: Variables) -> None:
        model = self.model
        if not model.built:
            _check_built(weights)
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        weights.apply()
        optimizer.apply()


def _check_built(*groups: Variables) -> None:
    if not all(group.fits for group in groups):
        raise CheckpointError(
            "an epoch is finished, but the model has no variables yet into which its weights could be put: build it "
            "before fit(), by keras.Input() as its first layer or by model.build(input_shape)"
        )


def _nothing() -> None:
    pass
