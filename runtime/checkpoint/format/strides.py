"""Strides: in which order the elements of a tensor lie in memory (channels_last, transposed).

Fused optimizers pass over raw memory: the state and the gradient of a parameter must lie in the order of the parameter,
or each number is applied to another weight than its own.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .manifest import is_dense
from .placement import is_dtensor
from .reshard import row_major


def strides_of(tensor: Any) -> tuple[int, ...] | None:
    """Return the strides with which a tensor is saved; None: row-major, as are tensors with gaps or overlaps."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    return strides if strides != row_major(shape) and is_dense(shape, strides) else None


def flatten_memory(tensor: Any) -> Any:
    """Return the elements in one dimension: in the order of memory if the tensor is dense, else row-major."""
    tensor = tensor.detach()
    if tensor.numel() and is_dense(tensor.shape, tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.flatten()


def align(tensor: Any, parameter: Any) -> Any:
    """Return a tensor of a parameter's shape in the strides of the parameter; any other tensor as it is."""
    import torch

    if is_dtensor(tensor) or is_dtensor(parameter) or tensor.shape != parameter.shape:
        return tensor
    if tensor.layout is not torch.strided or parameter.layout is not torch.strided:
        return tensor
    if tensor.stride() == parameter.stride() or not is_dense(parameter.shape, parameter.stride()):
        return tensor
    aligned = torch.empty_strided(parameter.shape, parameter.stride(), dtype=tensor.dtype, device=tensor.device)
    return aligned.copy_(tensor)


class StateAlignment:
    """Aligns the state of each optimizer with its parameters before the first step after a restore.

    Then, and not when the state is loaded: the program may set the memory format of its model later, and a checkpoint
    may have been saved with another one, or by a version that kept no strides.
    """

    def __init__(self) -> None:
        self.restored = False
        """There is restored state to be aligned."""
        self._hook: Any = None
        self._aligned: weakref.WeakSet[Any] = weakref.WeakSet()

    def attach(self) -> None:
        """Watch the steps of all optimizers; undone by detach()."""
        if self.restored and self._hook is None and "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self._align(optimizer))

    def detach(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _align(self, optimizer: Any) -> None:
        if optimizer in self._aligned:
            return
        self._aligned.add(optimizer)
        tensor: Any = sys.modules["torch"].Tensor
        for parameter, state in optimizer.state.items():
            if not isinstance(parameter, tensor) or not isinstance(state, dict):
                continue
            for key, value in state.items():
                if isinstance(value, tensor):
                    state[key] = align(value, parameter)
