"""Estimate the size of optimizer state before the first step, so that memory for it can be allocated early."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..format.manifest import ALIGN

_PER_PARAMETER: dict[str, Callable[[dict[str, Any]], int]] = {
    "Adadelta": lambda _group: 2,
    "Adagrad": lambda _group: 0,  # allocated by the constructor
    "Adam": lambda group: 2 + bool(group["amsgrad"]),
    "Adamax": lambda _group: 2,
    "AdamW": lambda group: 2 + bool(group["amsgrad"]),
    "NAdam": lambda _group: 2,
    "RAdam": lambda _group: 2,
    "RMSprop": lambda group: 1 + bool(group["momentum"]) + bool(group["centered"]),
    "SGD": lambda group: int(bool(group["momentum"])),
    "SparseAdam": lambda _group: 2,
}
"""Number of parameter-sized state tensors per parameter, as a function of a group's options, for torch.optim."""


def state_to_come(objects: Mapping[str, object]) -> int | None:
    """Return the bytes of state that optimizers will allocate in their first step; None if unknown for any of them."""
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
    """Return the bytes that state of `tensors` tensors per parameter takes in a slot.

    Two scalars per parameter, such as the step count, are included.
    """
    total = 0
    for parameter in parameters:
        if parameter.requires_grad:
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            total += tensors * -(-local.numel() * local.element_size() // ALIGN) * ALIGN + 2 * ALIGN
    return total
