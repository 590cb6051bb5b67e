"""Resume Lightning's StochasticWeightAveraging in mid-epoch.

The callback sets itself up in a hook at the start of an epoch, which is not called for a resumed epoch. Here the hook
is called, and its effects on the optimizer and on batch normalisation are undone, because both are restored already.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import StochasticWeightAveraging


def clear_schedulers(trainer: object) -> None:
    """Remove the program's scheduler, which averaging had replaced before the save: the saved state does not fit it."""
    for callback in _begun(trainer):
        callback._clear_schedulers(trainer)


def resume_averaging(trainer: Any) -> None:
    """Set up the averaging that was in progress at the save."""
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
    # With these values (no last epoch, current epoch already averaged), the hook only creates its scheduler.
    callback._max_epochs, callback._latest_update_epoch = -1, trainer.current_epoch
    callback.on_train_epoch_start(trainer, trainer.lightning_module)
    callback._max_epochs, callback._latest_update_epoch = epochs, updated
    if trainer.current_epoch > callback.swa_end:  # the extra epoch for batch normalisation
        callback.on_train_epoch_start(trainer, trainer.lightning_module)


def _begun(trainer: Any) -> list[Any]:
    averaging = [one for one in trainer.callbacks if isinstance(one, StochasticWeightAveraging)]
    return [one for one in averaging if one._scheduler_state is not None]
