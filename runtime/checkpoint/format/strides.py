"""Save and restore strides, the order of a tensor's elements in memory (channels_last, transposed).

Fused optimizers iterate over raw memory. A parameter's optimizer state and gradient must have the strides of the
parameter; otherwise elements would be applied to the wrong weights.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .manifest import is_dense
from .placement import is_dtensor
from .reshard import row_major


def strides_of(tensor: Any) -> tuple[int, ...] | None:
    """Return the strides to save for a tensor; None if it is row-major, or is saved so because it is not dense."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    return strides if strides != row_major(shape) and is_dense(shape, strides) else None


def flatten_memory(tensor: Any) -> Any:
    """Return the elements in one dimension: in memory order if the tensor is dense, else row-major."""
    tensor = tensor.detach()
    if tensor.numel() and is_dense(tensor.shape, tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.flatten()


def align(tensor: Any, parameter: Any) -> Any:
    """Return a tensor with the strides of the parameter if it has the parameter's shape; else return it unchanged."""
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
    """Hook that gives optimizer state the strides of its parameters before an optimizer's first step after a restore.

    This is not done while the state is loaded, because the program may set its model's memory format later. Strides
    differ if the model had another memory format at the save, or if the checkpoint's version did not save strides.
    """

    def __init__(self) -> None:
        self.restored = False
        """True if there is restored state to align."""
        self._hook: Any = None
        self._aligned: weakref.WeakSet[Any] = weakref.WeakSet()

    def attach(self) -> None:
        """Install a hook on the steps of all optimizers; detach() removes it."""
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
