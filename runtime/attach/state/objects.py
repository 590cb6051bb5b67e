"""Registry of the models, optimizers, schedulers and scalers that a program creates, in order of creation.

`__new__` of the base class is hooked, which is called whether an object is constructed, copied or unpickled. Only weak
references are kept. In a checkpoint, objects are named by kind and order: "model", "model_1", "optimizer" …
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...checkpoint.errors import CheckpointError
from ...integrations.deferred import misfit

if TYPE_CHECKING:
    from .graph import Graph


class Objects:
    """The objects created since watch()."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {}
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have made a step since zero_grad()."""
        self._zeroing: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers whose gradients have been reset by zero_grad()."""
        self._keeping: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that keep gradients from one step to the next, so that the gradients must be saved."""

    def watch(self, torch: Any) -> None:  # the module
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

    def _registering(self, made: list[weakref.ref[Any]], before: Any) -> Any:  # a __new__
        def __new__(cls: type, *_arguments: Any, **_options: Any) -> Any:  # noqa: N807
            new: Any = before(cls)
            made.append(weakref.ref(new))
            return new

        return __new__

    def _seeing(self, zero_grad: Any) -> Any:  # a method
        def seen(owner: Any, *arguments: Any, **options: Any) -> Any:
            optimizers = self.all("optimizer").values() if hasattr(owner, "_modules") else [owner]
            self._zeroing.update(optimizers)
            self._used.difference_update(optimizers)
            if options.get("set_to_none") is False or arguments[:1] == (False,):
                self._keeping.update(optimizers)
            return zero_grad(owner, *arguments, **options)

        return seen

    def all(self, kind: str) -> dict[str, Any]:
        """Return the objects of a kind by name; of modules, only those with state that are in no other module."""
        made = self._made.get(kind, [])
        made[:] = [ref for ref in made if ref() is not None]
        living = [found for ref in made if (found := ref()) is not None]
        if kind == "model":
            parts = {id(child) for module in living for child in _children(module)}
            living = [module for module in living if id(module) not in parts and _has_state(module)]
        return {f"{kind}_{number}" if number else kind: one for number, one in enumerate(living)}

    def by_name(self) -> dict[str, Any]:
        """Return the objects of all kinds by name."""
        return {name: one for kind in self._made for name, one in self.all(kind).items()}

    def kinds(self) -> list[Any]:
        """Return the name, class and parameter shapes of each object; a resumed program must have the same."""
        gc.collect()  # objects kept alive only by reference cycles do not count
        return [
            (name, type(one), [(key, tuple(value.shape)) for key, value in _named_tensors(one)])
            for name, one in self.by_name().items()
        ]

    def stepped(self, optimizer: object) -> None:
        """Record that an optimizer has made a step."""
        if optimizer in self._used:
            self._keeping.add(optimizer)
        self._used.add(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each object by name."""
        return {name: one.state_dict() for name, one in self.by_name().items()}

    def load_state_dict(self, states: Mapping[str, object], *, models: bool) -> None:
        """Restore the states of the models, or of all other objects. Raises CheckpointError if they do not fit."""
        gc.collect()
        found = self.by_name()
        if found.keys() != states.keys():
            raise CheckpointError(
                f"the checkpoint is of {_listing(states)}, but by now the program has made {_listing(found)}: use the "
                "program it was saved with, or use another folder to start over"
            )
        for name, state in states.items():
            if models != name.startswith("model"):
                continue
            try:
                found[name].load_state_dict(state)
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise misfit(f"{name} ({type(found[name]).__name__})", " ".join(str(error).split())) from error

    # Parameters and gradients

    def groups(self, graph: Graph) -> dict[str, list[list[str | None]]]:
        """Return the paths of the parameters of each optimizer's groups, by the optimizer's name."""
        return {
            name: [[graph.path_of(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
            for name, optimizer in self.all("optimizer").items()
        }

    def load_groups(self, groups: Mapping[str, Any], graph: Graph) -> None:
        """Restore each optimizer's parameter groups. Raises CheckpointError if a parameter is missing."""
        for name, optimizer in self.all("optimizer").items():
            paths = groups[name]
            if self.groups(graph)[name] == paths:
                continue
            live = optimizer.param_groups
            optimizer.param_groups = [
                {**live[min(number, len(live) - 1)], "params": [_parameter(graph, path) for path in group]}
                for number, group in enumerate(paths)
            ]

    def gradients(self, graph: Graph) -> dict[str, Any]:
        """Return the gradients that may still be used, by the path of their parameter."""
        clean = (self._used & self._zeroing) - self._keeping
        done = {id(p) for optimizer in clean for group in optimizer.param_groups for p in group["params"]}
        return {
            path: value.grad for path, value in _trainable(graph) if value.grad is not None and id(value) not in done
        }

    def load_gradients(self, state: Mapping[str, object], graph: Graph) -> None:
        """Restore gradients; those that were not saved are set to None."""
        import torch

        for path, parameter in _trainable(graph):
            saved = state.get(path)
            parameter.grad = None if saved is None else torch.empty_like(parameter).copy_(saved)

    def sharded(self) -> str | None:
        """Return the name of a model whose parameters are sharded over ranks; None if there is none."""
        for name, model in self.all("model").items():
            kinds = {type(parameter).__name__ for parameter in model.parameters()}
            if "DTensor" in kinds or type(model).__name__ in {"FullyShardedDataParallel", "DeepSpeedEngine"}:
                return name
        return None


def _named_tensors(one: object) -> Iterator[tuple[str, Any]]:
    return one.named_parameters() if hasattr(one, "named_parameters") else iter(())


def _trainable(graph: Graph) -> Iterator[tuple[str, Any]]:
    """Yield path and tensor of each leaf tensor (in autograd's sense), which may have a gradient."""
    for path, record in graph.records.items():
        if record["kind"] in {"tensor", "owned"} and graph.values[path].is_leaf:
            yield path, graph.values[path]


def _parameter(graph: Graph, path: str) -> Any:
    if path not in graph.values:
        raise misfit("optimizer", f"the program has no {path} by now")
    return graph.values[path]


def _children(module: object) -> Iterator[Any]:
    return (child for child in module.__dict__.get("_modules", {}).values() if child is not None)


def _has_state(module: Any) -> bool:
    """Return whether a module has parameters or buffers; False if it is not initialised yet."""
    if "_parameters" not in module.__dict__:
        return False
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _listing(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"
