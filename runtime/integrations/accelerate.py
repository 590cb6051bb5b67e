"""Accelerate: make a hand-written training loop resumable.

    from cloudgpu.runtime.integrations.accelerate import AcceleratorCheckpointer

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ckpt = AcceleratorCheckpointer(accelerator, loader)
    for batch in ckpt.batches(epochs=10):
        with accelerator.accumulate(model): ...

All objects that were prepared, or registered with accelerator.register_for_checkpointing(), are saved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..checkpoint.checkpointer import STEPS_WITH_LOADER, Checkpointer
from ..checkpoint.data.data_position import length
from ..checkpoint.errors import CheckpointError
from .deferred import DeferredState
from .gradients import Gradients
from .loader_place import LoaderPosition
from .missing_framework import missing

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise missing("accelerate", "accelerate>=1.2", error) from None

_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM")


class AcceleratorCheckpointer(Checkpointer):
    """Checkpointer of all objects that an accelerator has prepared.

    loader               the prepared DataLoader that `batches()` iterates
    replay               restore the position in the data by reading, which repeats random augmentation in workers
    folder, every, keep, on_damage  as for Checkpointer
    **objects            additional objects with state_dict() and load_state_dict()

    With gradient accumulation every batch counts as a step, and accumulated gradients are saved too. Raises
    CheckpointError if the checkpoint does not fit the objects, and for DeepSpeed, FSDP and Megatron.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        loader: Any = None,  # accelerate's DataLoaderShard or DataLoaderDispatcher
        *,
        replay: bool = False,
        folder: str | os.PathLike[str] | None = None,
        every: int | float | str | None = None,
        keep: int | None = None,
        on_damage: str | None = None,
        **objects: Any,
    ) -> None:
        if accelerator.distributed_type in [getattr(DistributedType, name) for name in _SHARDED]:
            raise CheckpointError(f"{accelerator.distributed_type.value} shards its state itself: use its own")
        self._prepared_loader = loader
        self._place = LoaderPosition(replay=replay)
        found = _objects_of(accelerator)
        self._gradients: DeferredState = found["gradients"]
        super().__init__(
            folder=folder, every=every, keep=keep, on_damage=on_damage, place=self._place, **found, **objects
        )
        if loader is not None:
            self._place.attach(loader)

    @property
    def epoch(self) -> int:
        return self._place.position.epoch

    @property
    def end_of_epoch(self) -> bool:
        batches = length(self._prepared_loader)
        if batches is None:
            raise CheckpointError("end_of_epoch: the loader has no length, so its last batch is not known beforehand")
        return self._place.position.batch >= batches

    def begin(self) -> None:
        self._gradients.apply()  # not earlier: many programs zero the gradients before the loop
        super().begin()

    def steps(self, n: int) -> Iterator[int]:
        """Yield step numbers as Checkpointer.steps() does. Raises CheckpointError if there is a loader."""
        if self._prepared_loader is not None:
            raise CheckpointError(STEPS_WITH_LOADER)
        return super().steps(n)

    def batches(self, *, epochs: int) -> Iterator[Any]:
        """Yield the batches of `epochs` epochs in total, without those that were completed before an interruption.

        Raises CheckpointError if there is no loader.
        """
        place, loader = self._place, self._prepared_loader
        if loader is None:
            raise CheckpointError("batches() needs AcceleratorCheckpointer(accelerator, loader)")
        if self._is_over(epochs):
            return
        self.begin()
        try:
            while place.position.epoch < epochs:
                loader.iteration = place.position.epoch  # Accelerate does not count an empty epoch
                for batch in loader:
                    place.position.batch += 1
                    yield batch
                    if self.finished:
                        return
                    self.end_step()
                place.next_epoch()
            self.end(goal=epochs)
        finally:
            self.end(finished=False)


def _objects_of(accelerator: Accelerator) -> dict[str, Any]:
    """Return the objects that Accelerate's save_state() saves, and two that it omits (gradients, counters), by name."""
    models = [accelerator.unwrap_model(model) for model in accelerator._models]
    kinds = {
        "model": models,
        "optimizer": accelerator._optimizers,
        "scheduler": accelerator._schedulers,
        "custom": accelerator._custom_objects,
        "scaler": [accelerator.scaler] if accelerator.scaler is not None else [],
    }
    found = {f"{kind}_{i}" if i else kind: one for kind, several in kinds.items() for i, one in enumerate(several)}
    gradients = Gradients(lambda: models, lambda: not accelerator.sync_gradients)
    return {**found, "gradients": DeferredState("gradients", lambda: gradients), "accelerator": _Counters(accelerator)}


class _Counters:
    """Accelerate's counters, of accumulated batches and of Accelerate's checkpoints, as an object with a state."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._accelerator.step, "saves": self._accelerator.save_iteration}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._accelerator.step = state["step"]
        self._accelerator.project_configuration.iteration = state["saves"]
