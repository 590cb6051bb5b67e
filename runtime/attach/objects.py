"""The models, optimizers, schedulers and scalers that a program makes, in the order in which it makes them.

Every object of these kinds goes through `__new__` of its base class, however it is made: called, copied or unpickled.
Only weak references are kept. The order is what they are known by in a checkpoint: "model", "model_1", "optimizer" …
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from ..checkpoint.errors import CheckpointError
from ..integrations.gradients import Gradients
from ..integrations.late import misfit


class Objects:
    """What was made since watch()."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {}
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have made a step."""
        self.zeroes = False
        """The program sets gradients to zero: what is left of them after a step is of no use."""
        self.gradients = Gradients(lambda: self.all("model").values(), self.pending)

    def watch(self, torch: Any) -> None:  # noqa: ANN401 - the module
        kinds = {
            "model": torch.nn.Module,
            "optimizer": torch.optim.Optimizer,
            "scheduler": torch.optim.lr_scheduler.LRScheduler,
            "scaler": torch.amp.GradScaler,
        }
        for kind, base in kinds.items():
            base.__new__ = self._registering(self._made.setdefault(kind, []), base.__new__)
        for base in (torch.nn.Module, torch.optim.Optimizer):
            base.zero_grad = self._seeing(base.zero_grad)

    def _registering(self, made: list[weakref.ref[Any]], before: Any) -> Any:  # noqa: ANN401 - a __new__
        def __new__(cls: type, *_arguments: Any, **_options: Any) -> Any:  # noqa: ANN401, N807
            new: Any = before(cls)
            made.append(weakref.ref(new))
            return new

        return __new__

    def _seeing(self, zero_grad: Any) -> Any:  # noqa: ANN401 - a method
        def seen(owner: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            self.zeroes = True
            return zero_grad(owner, *arguments, **options)

        return seen

    def all(self, kind: str) -> dict[str, Any]:
        """The objects of a kind by name; of modules, those that are no part of another and have a state."""
        made = self._made.get(kind, [])
        made[:] = [ref for ref in made if ref() is not None]
        living = [found for ref in made if (found := ref()) is not None]
        if kind == "model":
            parts = {id(child) for module in living for child in _children(module)}
            living = [module for module in living if id(module) not in parts and _has_state(module)]
        return {f"{kind}_{number}" if number else kind: one for number, one in enumerate(living)}

    def by_name(self) -> dict[str, Any]:
        """All of them."""
        gc.collect()  # what lives on only in cycles is not the program's any more
        return {name: one for kind in self._made for name, one in self.all(kind).items()}

    def pending(self) -> bool:
        """There may be gradients that are still to be used; asked at step boundaries."""
        return not self.zeroes

    def state_dict(self) -> dict[str, Any]:
        return {name: one.state_dict() for kind in self._made for name, one in self.all(kind).items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Raises CheckpointError if these are not the objects that were saved."""
        found = self.by_name()
        if found.keys() != states.keys():
            raise CheckpointError(
                f"the checkpoint is of {_listing(states)}, but by now the program has made {_listing(found)}: use the "
                "program it was saved with, or give another folder to begin anew"
            )
        for name, state in states.items():
            try:
                found[name].load_state_dict(state)
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise misfit(f"{name} ({type(found[name]).__name__})", " ".join(str(error).split())) from error
        for optimizer in self.all("optimizer").values():
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                parameter.grad = None

    def sharded(self) -> str | None:
        """The name of a model whose parameters are spread over ranks, if there is one."""
        for name, model in self.all("model").items():
            kinds = {type(parameter).__name__ for parameter in model.parameters()}
            if "DTensor" in kinds or type(model).__name__ in {"FullyShardedDataParallel", "DeepSpeedEngine"}:
                return name
        return None


def _children(module: Any) -> Iterator[Any]:  # noqa: ANN401
    return (child for child in module.__dict__.get("_modules", {}).values() if child is not None)


def _has_state(module: Any) -> bool:  # noqa: ANN401
    """Some modules are made, but not yet initialised."""
    if "_parameters" not in module.__dict__:
        return False
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _listing(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"
