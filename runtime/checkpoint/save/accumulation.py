"""Save and restore accumulated gradients, which are state between two steps of an optimizer.

At most step boundaries the optimizer has just used the gradients, so they are not needed. A gradient is saved only if
no optimizer has used it since the start of the training's last step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CheckpointError, logger
from ..format.strides import align


class Accumulation:
    """Accumulated gradients of the torch optimizers among the objects."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = objects
        self._hook: Any = None
        self._stepping: list[Any] = []
        """Optimizers that have stepped since the last count_step()."""
        self._stepped: list[Any] = []
        """Optimizers that stepped between the last two calls of count_step()."""
        self._warned = False
        self._restored: dict[str, Any] = {}

    def attach(self) -> None:
        """Restore the gradients, and start to observe the optimizers' steps.

        Call it at the loop's first step: many programs zero the gradients before the loop.
        """
        parameters, restored = dict(self._numbered()), self._restored
        self._restored = {}
        for key, gradient in restored.items():
            parameter = parameters[key]
            parameter.grad = align(gradient.to(device=parameter.device), parameter)
        if self._hook is None and "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._stepping.append(optimizer))

    def detach(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._stepping, self._stepped = [], []

    def count_step(self) -> None:
        """Count a step of the training: forget the optimizers that stepped before the previous call."""
        self._stepping, self._stepped = [], self._stepping

    def state_dict(self) -> dict[str, Any]:
        """Return the gradients that no optimizer has used yet, by the optimizer's name and the parameter's number."""
        if self._hook is None:
            return {}
        # Compare parameters, not optimizers: the object may be a wrapper of the optimizer that steps.
        stepped = [*self._stepped, *self._stepping]
        used = {id(parameter) for optimizer in stepped for parameter in _parameters(optimizer)}
        found: dict[str, Any] = {}
        for key, parameter in self._numbered():
            if parameter.grad is None or id(parameter) in used:
                continue
            if hasattr(parameter, "placements"):
                self._warn()
            else:
                found[key] = parameter.grad
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep gradients for attach(). Raises CheckpointError if a parameter is missing or has another shape."""
        parameters = dict(self._numbered())
        for key, gradient in state.items():
            if key not in parameters or parameters[key].shape != gradient.shape:
                raise CheckpointError(f"it was saved with a gradient of {key}, of which there is no such parameter now")
        self._restored = dict(state)

    def _numbered(self) -> Iterator[tuple[str, Any]]:
        torch: Any = sys.modules.get("torch")
        for name, value in self._objects.items() if torch else ():
            if isinstance(value, torch.optim.Optimizer):
                yield from ((f"{name} {number}", parameter) for number, parameter in enumerate(_parameters(value)))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger().warning(
                "gradients accumulated in sharded parameters are not saved: resumed from within an accumulation, those "
                "of the batches before are missing from one step of the optimizer"
            )


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]
