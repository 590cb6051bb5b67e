"""Save and restore the order of gradients in the buckets of DistributedDataParallel.

DDP rebuilds its buckets after the first step of a process, in the order in which gradients became ready. With three or
more ranks, the rounding of a sum (its last bit) depends on the position of a gradient in its bucket. So the order is
saved, and restored before the first step of the next process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


class BucketOrders:
    """Bucket order of each DDP model, by the model's number among the DDP models.

    models  returns the objects of the training; all but DDP models on three or more ranks are ignored
    """

    def __init__(self, models: Callable[[], Iterable[object]]) -> None:
        self.models = models
        self._orders: dict[str, list[int]] = {}
        self._unknown: dict[str, Any] = {}
        """Models whose order is not known yet, by number."""

    def restore(self) -> None:
        """Rebuild the buckets of each model in its saved order. Collective; call it before the first step."""
        saved, self._orders = self._orders, {}
        for number, model in enumerate(_data_parallel(self.models())):
            name = str(number)
            if (order := saved.get(name)) and _rebuild(model, order):
                self._orders[name] = order
            else:
                self._unknown[name] = model

    def note(self) -> None:
        """Read the orders of models that have stepped for the first time. Collective; call it between two steps."""
        for name, model in list(self._unknown.items()):
            if order := _read(model):
                self._orders[name] = order
                del self._unknown[name]

    def state_dict(self) -> dict[str, Any]:
        return dict(self._orders)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._orders = dict(state)


def _data_parallel(objects: Iterable[object]) -> list[Any]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    kind = torch.nn.parallel.DistributedDataParallel
    return [one for one in objects if isinstance(one, kind) and _is_ordinary(one)]


def _is_ordinary(model: Any) -> bool:  # a DistributedDataParallel
    """Return whether _rebuild() can run a backward pass through the model's reducer without other effects.

    False also for fewer than three ranks, where the order does not matter.
    """
    import torch

    parameters = list(model.parameters())
    return (
        torch.distributed.get_world_size(model.process_group) > 2
        and not model.find_unused_parameters
        and not model.static_graph
        and not getattr(model, "mixed_precision", None)
        and not getattr(model, "_comm_hooks", ())
        and not getattr(model, "_use_python_reducer", False)
        and len({one.device for one in parameters}) == 1
        and not any(one._backward_hooks or getattr(one, "_post_accumulate_grad_hooks", None) for one in parameters)
    )


def _read(model: Any) -> list[int]:
    """Return the order of parameters in the rebuilt buckets; empty before the first step."""
    with contextlib.suppress(RuntimeError):  # the program's next forward pass raises the same error
        model.reducer._rebuild_buckets()
        model.logger.set_runtime_stats_and_log()
    indices = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [int(index) for index in indices.replace(",", " ").split()]


def _rebuild(model: Any, order: Sequence[int]) -> bool:
    """Run a backward pass whose gradients become ready in this order, so that DDP rebuilds its buckets in this order.

    Gradients are unchanged. Return whether the buckets were rebuilt; False if the model has other parameters.
    """
    import torch

    parameters, sparse = model._build_params_for_reducer()
    if sorted(order) != list(range(len(parameters))) or any(sparse):
        return False
    gradients = [one.grad for one in parameters]
    for one in parameters:
        one.grad = None
    model.reducer.prepare_for_backward([])
    with torch.enable_grad():
        # Autograd differentiates the last computed term first.
        total = sum(parameters[index].sum().real.float() for index in reversed(order))
    total.backward()
    for one, gradient in zip(parameters, gradients, strict=True):
        one.grad = gradient
    return bool(model.reducer._rebuild_buckets())
