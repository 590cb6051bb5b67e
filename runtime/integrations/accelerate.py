"""Accelerate: a hand-written loop that goes on after an interruption where it was.

    from cloudgpu.runtime.integrations.accelerate import AcceleratorCheckpointer

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ckpt = AcceleratorCheckpointer(accelerator, loader)
    for batch in ckpt.batches(epochs=10):
        with accelerator.accumulate(model): ...

Everything that was prepared, or registered with accelerator.register_for_checkpointing(), is saved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..checkpoint.checkpointer import STEPS_WITH_LOADER, Checkpointer
from ..checkpoint.data.data_position import length
from ..checkpoint.errors import CheckpointError
from .deferred import Late
from .gradients import Gradients
from .loader_place import LoaderPlace
from .missing_framework import missing

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise missing("accelerate", "accelerate>=1.2", error) from None

_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM")


class AcceleratorCheckpointer(Checkpointer):
    """A Checkpointer of all that this accelerator has prepared.

    loader               the prepared DataLoader that `batches()` goes through
    replay               find the place in the data by reading it: for augmentation drawn at random inside of workers
    folder, every, keep, on_damage  as for Checkpointer
    **objects            more to save: whatever has state_dict() and load_state_dict()

    With gradient accumulation every batch counts as a step; gradients not used yet are saved too. Raises
    CheckpointError if the checkpoint is of other objects, and for DeepSpeed, FSDP and Megatron.
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
            raise CheckpointError(
                f"{accelerator.distributed_type.value} keeps its state in ways of its own: use its own"
            )
        self._prepared_loader = loader
        self._place = LoaderPlace(replay=replay)
        found = _objects_of(accelerator)
        self._gradients: Late = found["gradients"]
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
        self._gradients.apply()  # not before: many programs set gradients to zero until then
        super().begin()

    def steps(self, n: int) -> Iterator[int]:
        """Yield the numbers of steps, as Checkpointer.steps(). Raises CheckpointError if there is a loader."""
        if self._prepared_loader is not None:
            raise CheckpointError(STEPS_WITH_LOADER)
        return super().steps(n)

    def batches(self, *, epochs: int) -> Iterator[Any]:
        """The batches of so many epochs in all, those done before an interruption left out."""
        place, loader = self._place, self._prepared_loader
        if loader is None:
            raise CheckpointError("batches() needs AcceleratorCheckpointer(accelerator, loader)")
        if self._is_over(epochs):
            return
        self.begin()
        try:
            while place.position.epoch < epochs:
                loader.iteration = place.position.epoch  # of an empty epoch Accelerate does not count it
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
    """What Accelerate itself would save in save_state(), and what it would lose."""
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
    return {**found, "gradients": Late("gradients", lambda: gradients), "accelerator": _Counters(accelerator)}


class _Counters:
    """Accelerate's own: how many batches have been accumulated, how many of its checkpoints were written."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._accelerator.step, "saves": self._accelerator.save_iteration}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._accelerator.step = state["step"]
        self._accelerator.project_configuration.iteration = state["saves"]
