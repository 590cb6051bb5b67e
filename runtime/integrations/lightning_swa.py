"""Lightning's StochasticWeightAveraging, resumed in the middle of an epoch.

It sets itself up when an epoch begins; an epoch that was interrupted does not begin again. So it is set up here, and
what that does to the optimizer and to batch normalisation is undone: both have been restored already.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import StochasticWeightAveraging


def clear_schedulers(trainer: object) -> None:
    """Remove the scheduler that averaging had replaced when it was saved: the saved state is not its own."""
    for callback in _begun(trainer):
        callback._clear_schedulers(trainer)


def resume_averaging(trainer: Any) -> None:
    """Set up the averaging that was under way when training was saved."""
    module = trainer.lightning_module
    for callback in _begun(trainer):
        groups = [{**group} for group in trainer.optimizers[0].param_groups]
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        _set_up(callback, trainer)
        for group, before in zip(trainer.optimizers[0].param_groups, groups, strict=True):
            group.update(before)
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])


def _set_up(callback: Any, trainer: Any) -> None:
    epochs, updated = callback._max_epochs, callback._latest_update_epoch
    # With no last epoch, and this one averaged already, all that is left to it is to make its scheduler.
    callback._max_epochs, callback._latest_update_epoch = -1, trainer.current_epoch
    callback.on_train_epoch_start(trainer, trainer.lightning_module)
    callback._max_epochs, callback._latest_update_epoch = epochs, updated
    if trainer.current_epoch > callback.swa_end:  # the additional epoch, in which batch normalisation is measured anew
        callback.on_train_epoch_start(trainer, trainer.lightning_module)


def _begun(trainer: Any) -> list[Any]:
    averaging = [one for one in trainer.callbacks if isinstance(one, StochasticWeightAveraging)]
    return [one for one in averaging if one._scheduler_state is not None]
