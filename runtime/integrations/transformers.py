"""Hugging Face Transformers: make a Trainer resumable by changing one import.

    from cloudgpu.runtime.integrations.transformers import Trainer     # instead of: from transformers import Trainer

For another Trainer class: `class MyTrainer(Resumable, SFTTrainer): ...`. A callback would not suffice, because the
Trainer decides with which epoch and batch to begin before it calls any callback.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..checkpoint.checkpointer import Checkpointer
from ..checkpoint.data.data_position import length
from ..checkpoint.errors import CheckpointError
from .deferred import DeferredState
from .loader_place import LoaderPosition
from .missing_framework import missing

try:
    import transformers
except ImportError as error:
    raise missing("transformers", "transformers[torch]>=5", error) from None

_COUNTERS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""Counters that the Trainer keeps outside of TrainerState; without them, the first loss logged after a resume would be
wrong."""


class Resumable:
    """Mixin that makes a transformers.Trainer resumable; it must come first among the base classes.

    checkpoints  arguments of the Checkpointer: {"folder": …, "every": …, "keep": …}; `every` counts optimizer steps.
                 {"replay": True} restores the position in the data by reading, which repeats random augmentation inside
                 of workers

    `train()` resumes automatically. After a notice or SIGTERM, the state is saved before the next step, and
    SystemExit(75) is raised. The Trainer's own checkpoints (save_strategy) are written as usual, but not used for this.
    """

    def __init__(self, *args: Any, checkpoints: Mapping[str, object] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resume = _Resume(self, dict(checkpoints or {}))

    def train(self, resume_from_checkpoint: object = None, **kwargs: Any) -> Any:
        """Train as transformers.Trainer does; `resume_from_checkpoint` is used only without a cloudgpu checkpoint."""
        with tempfile.TemporaryDirectory(prefix="cloudgpu-") as folder:
            found = self._resume.open(Path(folder))
            try:
                return super().train(resume_from_checkpoint=found or resume_from_checkpoint, **kwargs)  # type: ignore[misc]
            except BaseException:
                self._resume.break_off()
                raise

    # The Trainer's methods that load a checkpoint: for `_Resume.folder`, they apply the state restored by cloudgpu

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: object = None) -> None:
        if resume_from_checkpoint == self._resume.folder:
            self._resume.model.apply()
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and checkpoint == self._resume.folder:
            self._resume.optimizer.apply()
            self._resume.scheduler.apply()
        else:
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and checkpoint == self._resume.folder:
            self._resume.scaler.apply()
        else:
            super()._load_scaler(checkpoint)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None or checkpoint != self._resume.folder:  # LoaderPosition restores the random state
            super()._load_rng_state(checkpoint)  # type: ignore[misc]

    def get_batch_samples(self, epoch_iterator: Iterator[object], num_batches: int, device: object) -> Any:
        source = self._resume.before_batches(epoch_iterator)
        samples = super().get_batch_samples(source, num_batches, device)  # type: ignore[misc]
        self._resume.handed += len(samples[0])
        return samples


class _Resume(transformers.TrainerCallback):  # type: ignore[misc]
    """State of a Resumable's training; a callback of its Trainer."""

    def __init__(self, trainer: Any, settings: dict[str, Any]) -> None:
        self.trainer, self.settings = trainer, settings
        self.folder: str | None = None
        """Folder that represents the restored checkpoint to the Trainer; None if nothing was restored."""
        self.model = DeferredState("model", lambda: trainer.model)
        self.optimizer = DeferredState("optimizer", lambda: trainer.optimizer)
        self.scheduler = DeferredState("learning rate scheduler", lambda: trainer.lr_scheduler)
        self.scaler = DeferredState("gradient scaler", lambda: trainer.accelerator.scaler)
        self.handed = 0
        """Number of batches of this epoch that the Trainer has received."""
        self._place = LoaderPosition(replay=self.settings.pop("replay", False))
        self._checkpointer: Checkpointer | None = None
        self._loader: Any = None
        self._opened: Iterator[Any] | None = None
        """Iterator that the Trainer reads in a resumed epoch, instead of its own iterator, which skips batches."""
        self._amid_epoch = False
        self._over = False
        """True if nothing is left to train; the Trainer itself would make one more step."""
        self._counters: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._goal: int | None = None
        self._step = 0
        """Number of optimizer steps that were passed to the Checkpointer."""
        trainer.add_callback(self)

    def open(self, folder: Path) -> str | None:
        """Restore the checkpoint; return `folder`, from which the Trainer then resumes; None if there is no checkpoint.

        Raises CheckpointError, also for DeepSpeed and FSDP.
        """
        trainer = self.trainer
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise CheckpointError("DeepSpeed and FSDP shard the state in ways of their own: not supported here")
        self._checkpointer = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            trainer=self,
            place=self._place,
            **self.settings,
        )
        if not self._state:
            return None
        (folder / "trainer_state.json").write_text(json.dumps(self._state))
        self.folder = str(folder)
        return self.folder

    # Checkpoint state of the Trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self.trainer
        counters = {name: getattr(trainer, name) for name in _COUNTERS if hasattr(trainer, name)}
        return {"state": _plain(trainer), "counters": counters, "goal": self._goal}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state, self._counters, self._goal = state["state"], state["counters"], state["goal"]

    # Hooks called by the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        checkpointer, trainer = self._running, self.trainer
        self._loader = kwargs["train_dataloader"]
        self._place.attach(self._loader)
        self._amid_epoch = self.folder is not None
        self._step = state.global_step
        over = checkpointer.finished and (self._goal is None or state.max_steps <= self._goal)
        for name, value in self._counters.items():
            # At the end of a training, the total loss includes _tr_loss already.
            setattr(trainer, name, value * 0 if over and name == "_tr_loss" else value)
        self._restore_callbacks()
        checkpointer.buckets.models = lambda: [trainer.model_wrapped]
        if not over:
            checkpointer.begin()
        self._over = over or state.global_step >= state.max_steps
        control.should_training_stop = self._over
        return control

    def _restore_callbacks(self) -> None:
        """Restore the attributes of exportable callbacks; their constructor arguments stay as the program set them."""
        callbacks = _exportable(self.trainer)
        for name, states in self._state.get("stateful_callbacks", {}).items():
            same = [callback for callback in callbacks if type(callback).__name__ == name]
            for callback, state in zip(same, states if isinstance(states, list) else [states], strict=False):
                for attribute, value in state.get("attributes", {}).items():
                    setattr(callback, attribute, value)

    def before_batches(self, source: Iterator[object]) -> Iterator[Any]:
        """Return the iterator from which the Trainer reads the batches of its next step."""
        if self._over:
            return iter(())
        if self._amid_epoch:
            self._amid_epoch = False
            self.handed = self._place.position.batch
            self._opened = iter(self._loader)
        self._place.position.batch = self.handed
        return self._opened or source

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        if not self._amid_epoch:
            self.handed = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        # Not at the end of the previous step, which is followed by logging and evaluation.
        if state.global_step > self._step:
            self._step = state.global_step
            self._running.end_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._opened = None
        if self._over:
            return
        batches = length(self._loader)
        if control.should_training_stop and (batches is None or self.handed < batches):
            self._place.position.batch = self.handed  # e.g. at max_steps: a run with more steps continues here
        else:
            self._place.next_epoch()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        if self._checkpointer is not None:
            self._checkpointer.log(**(logs or {}))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._goal = state.max_steps if state.global_step >= state.max_steps else None
        self._running.end()

    def break_off(self) -> None:
        """End the session after an exception in the Trainer, which the program may handle."""
        if self._checkpointer is not None:
            self._checkpointer.end(finished=False)

    @property
    def _running(self) -> Checkpointer:
        if self._checkpointer is None:
            raise CheckpointError("a Resumable Trainer is started by its own train()")
        return self._checkpointer


def _plain(trainer: Any) -> dict[str, Any]:
    """Return the TrainerState as JSON-serializable values, as in the Trainer's own checkpoints."""
    state = trainer.state
    callbacks: dict[str, Any] = {}
    for callback in _exportable(trainer):
        callbacks.setdefault(type(callback).__name__, []).append(callback.state())
    plain = {field.name: getattr(state, field.name) for field in fields(state)}
    return {**plain, "stateful_callbacks": {name: c[0] if len(c) == 1 else c for name, c in callbacks.items()}}


def _exportable(trainer: Any) -> list[Any]:
    candidates = (*trainer.callback_handler.callbacks, trainer.control)
    return [one for one in candidates if isinstance(one, transformers.trainer_callback.ExportableState)]


class Trainer(Resumable, transformers.Trainer):  # type: ignore[misc]
    """transformers.Trainer that is resumable; see Resumable for the argument `checkpoints`."""


__all__ = ["Resumable", "Trainer"]
