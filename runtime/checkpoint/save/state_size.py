"""How much state an optimizer will have once it has stepped: known beforehand, memory for it can be made beforehand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..format.manifest import ALIGN

_PER_PARAMETER: dict[str, Callable[[dict[str, Any]], int]] = {
    "Adadelta": lambda _group: 2,
    "Adagrad": lambda _group: 0,  # has it from the start
    "Adam": lambda group: 2 + bool(group["amsgrad"]),
    "Adamax": lambda _group: 2,
    "AdamW": lambda group: 2 + bool(group["amsgrad"]),
    "NAdam": lambda _group: 2,
    "RAdam": lambda _group: 2,
    "RMSprop": lambda group: 1 + bool(group["momentum"]) + bool(group["centered"]),
    "SGD": lambda group: int(bool(group["momentum"])),
    "SparseAdam": lambda _group: 2,
}
"""Tensors of a parameter's size that torch.optim's optimizers keep of it, from a parameter group's options."""


def state_to_come(objects: Mapping[str, object]) -> int | None:
    """Bytes of state that optimizers do not have yet; None if there is one of which that is not known."""
    torch: Any = sys.modules.get("torch")
    optimizers = [value for value in objects.values() if torch and isinstance(value, torch.optim.Optimizer)]
    total = 0
    for optimizer in optimizers:
        kind = type(optimizer)
        if optimizer.state:
            continue
        if not kind.__module__.startswith("torch.optim.") or kind.__name__ not in _PER_PARAMETER:
            return None
        for group in optimizer.param_groups:
            total += _size(group["params"], _PER_PARAMETER[kind.__name__](group))
    return total


def _size(parameters: Iterable[Any], tensors: int) -> int:
    """In a slot; with the one or two numbers, as the count of steps, which most keep for each parameter."""
    total = 0
    for parameter in parameters:
        if parameter.requires_grad:
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            total += tensors * -(-local.numel() * local.element_size() // ALIGN) * ALIGN + 2 * ALIGN
    return total
