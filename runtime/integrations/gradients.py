"""Accumulated gradients, which are state between two steps of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..checkpoint.format.strides import align
from .deferred import misfit


class Gradients:
    """Gradients of models as an object with a state; the state is empty if an optimizer has just used them.

    models    returns the models; a parameter's name consists of the model's number and torch's name
    pending   returns whether there are gradients that no optimizer has used yet
    """

    def __init__(self, models: Callable[[], Iterable[Any]], pending: Callable[[], bool]) -> None:
        self._models, self._pending = models, pending

    def state_dict(self) -> dict[str, Any]:
        if not self._pending():
            return {}
        return {name: p.grad for name, p in self._parameters().items() if p.grad is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parameters = self._parameters()
        for name, gradient in state.items():
            if name not in parameters:
                raise misfit("model", f"there is no parameter {name} any more")
            parameter = parameters[name]
            parameter.grad = align(gradient.to(device=parameter.device, dtype=parameter.dtype), parameter)

    def _parameters(self) -> dict[str, Any]:
        return {f"{i}.{name}": p for i, model in enumerate(self._models()) for name, p in model.named_parameters()}
