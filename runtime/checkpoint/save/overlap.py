"""Overlap a save's copy with the next forward and backward pass, for state that only an optimizer's step() changes.

This applies to the parameters and state of torch's optimizers. All other state (buffers, random state, data position,
other objects) is copied before training continues, since the next forward pass may change it (BatchNorm's statistics,
for example). Before any optimizer of the process steps, the training waits for the end of the copy.

If a program changes parameters elsewhere (clips weights between two steps, for example), the copy may be inconsistent.
In-place operations are detected by the tensors' version counters, changes through `.data` by comparing samples. After a
detected change, this save fails, and all later copies block training.

    overlap=True     overlap from the first save on
    overlap="auto"   measure: block if that takes less than 1 % of a step; else choose what costs training less
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ..format.strides import flatten_memory

SHARE = 0.01
"""Copies that block for less than this fraction of a step are not overlapped."""
SAVES, STEPS = 3, 5
"""Number of saves of each kind, and of steps, to measure before "auto" decides; a single step varies by more than the
cost of a copy."""
SAMPLES, ELEMENTS = 16, 32
"""Number of tensors, and of elements of each, to compare after an overlapped copy."""


class Overlap:
    """The copy in progress, if any, and the decision whether to overlap the next one."""

    def __init__(self, objects: Mapping[str, object], mode: bool | str) -> None:
        self._objects = objects
        self._decided: bool | None = None if mode == "auto" else bool(mode)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._sources: Sequence[Any] = ()
        self._versions: list[int] = []
        self._samples: list[tuple[Any, Any]] = []
        self._hook: Any = None
        self._blocking: list[float] = []
        """Durations of blocking copies, in seconds."""
        self._overlapped: list[float] = []
        """Seconds by which each step with an overlapped copy was longer than the median of steps without a save."""
        self._steps: deque[float] = deque(maxlen=32)
        self._last_step: float | None = None
        self._saved, self._was_overlapped = False, False
        """True if there was a save since the last step; True if that save's copy was overlapped."""

    # Decision whether to overlap

    def attach(self, join: Callable[[], None]) -> None:
        """Install a hook that calls `join` before any optimizer's step, unless no copy will be overlapped."""
        if self._decided is False or self._hook is not None or "torch" not in sys.modules:
            return
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def before_step(*_: object) -> None:
            join()
            self._count_step(time.monotonic())

        self._hook = register_optimizer_step_pre_hook(before_step)

    def detach(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._last_step = None

    def wanted(self) -> bool:
        """Return whether to overlap the next copy."""
        if self._hook is None:
            return False
        if self._decided is None:
            self._decide()
        if self._decided is not None:
            return self._decided
        return len(self._blocking) >= SAVES and len(self._steps) >= STEPS

    def _decide(self) -> None:
        if len(self._blocking) < SAVES or len(self._steps) < STEPS:
            return
        cost = min(self._blocking)
        if cost < SHARE * median(self._steps):
            self._decided = False
        elif len(self._overlapped) >= SAVES:
            self._decided = min(self._overlapped) < cost

    def count_blocking(self, seconds: float) -> None:
        """Record a copy that blocked training for this time."""
        self._saved = True
        self._blocking = [*self._blocking[-SAVES:], seconds]

    def _count_step(self, now: float) -> None:
        if self._last_step is not None:
            taken = now - self._last_step
            if self._was_overlapped and self._steps:
                self._overlapped.append(taken - median(self._steps))
            elif not self._saved:
                self._steps.append(taken)
        self._last_step, self._saved, self._was_overlapped = now, False, False

    # Choice of tensors

    def choose(self, sources: Sequence[object]) -> list[bool]:
        """Return for each source whether it may be copied during the next pass."""
        owned = set(self._owned_by_optimizers())
        return [hasattr(source, "data_ptr") and _extent(source) in owned for source in sources]

    def _owned_by_optimizers(self) -> Iterator[tuple[int, int]]:
        """Yield address and size in bytes of the tensors that only torch's optimizers change."""
        torch: Any = sys.modules["torch"]
        plain = (torch.Tensor, torch.nn.Parameter)
        for value in self._objects.values():
            if not (isinstance(value, torch.optim.Optimizer) and type(value).__module__.startswith("torch.optim.")):
                continue
            owned = [one for group in value.param_groups for one in group["params"] if one.requires_grad]
            for state in value.state.values():
                owned += state.values()
            yield from [_extent(one) for one in owned if type(one) in plain and one.numel() > 1]

    # The copy

    @property
    def under_way(self) -> bool:
        return self._thread is not None

    def start(self, copy: Callable[[], None], destinations: Sequence[Any], sources: Sequence[Any]) -> None:
        """Start a copy in a background thread; the sources must not change until join()."""
        self._saved = self._was_overlapped = True
        self._error = None
        self._sources, self._versions = sources, [source._version for source in sources]
        step = max(1, len(sources) // SAMPLES)
        pairs = zip(destinations[::step], sources[::step], strict=True)
        self._samples = [(destination, _sample(source)) for destination, source in pairs]

        def run() -> None:
            try:
                copy()
            except BaseException as error:  # noqa: BLE001 - reported by join()
                self._error = error

        self._thread = threading.Thread(target=run, name="cloudgpu-copy", daemon=True)
        self._thread.start()

    def join(self) -> str | None:
        """Wait for the copy; return None, or a message if it cannot be used. Then no later copy is overlapped."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        sources, samples, self._sources, self._samples = self._sources, self._samples, (), []
        if self._error is not None:
            self._decided = False
            return f"copying in the background failed: {self._error!r}"
        changed = [source._version for source in sources] != self._versions
        if changed or not all(_sample(copied).equal(sample) for copied, sample in samples):
            self._decided = False
            return (
                "parameters were changed outside of optimizer.step() while they were copied in the background "
                "(overlap=); from now on copies block training"
            )
        return None


def _extent(tensor: Any) -> tuple[int, int]:
    """Return address and size in bytes.

    Both are compared: a leaf that replaces several overlapping tensors begins at the address of one of them.
    """
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _sample(tensor: object) -> Any:
    """Return a copy of some elements as bytes, so that NaNs compare by their bits."""
    import torch

    flat = flatten_memory(tensor)
    return flat[:: max(1, flat.numel() // ELEMENTS)].clone().view(torch.uint8).cpu()
