"""Skip batches that were trained before an interruption: `fit` reads them again, but does not train with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from .keras_state import Variables


class Skipping:
    """Replacement of `model.train_function` while there are batches to skip.

    `fit` reads this attribute for every batch, and calls it with the arguments of the backend's function. So other
    callbacks get the correct batch numbers, and the metrics of the checkpoint.
    """

    def __init__(self, model: Any, batches: int, groups: Sequence[Variables]) -> None:  # keras.Model
        self.left = batches
        self._model, self._groups, self._train = model, groups, model.train_function
        self._logs: Any = None
        if not self._waiting():
            self._logs = model.get_metrics_result()
        model.train_function = self

    def __call__(self, *arguments: Any) -> Any:
        """Skip a step; return its metrics, with JAX (metrics, state).

        Arguments: (data,) with torch, (iterator,) with TensorFlow, (state, iterator) with JAX.
        """
        backend = keras.backend.backend()
        if self._waiting():
            # TensorFlow creates variables with the first batch. apply() undoes the effect of this step on them.
            self._train(*arguments)
            for group in self._groups:
                group.apply()
            self._logs = self._model.get_metrics_result()
        elif backend != "torch":
            _draw(arguments[-1], self._model.steps_per_execution)
        return (self._logs, arguments[0]) if backend == "jax" else self._logs

    def count(self) -> bool:
        """Count a skipped batch; if it was the last to skip, restore `model.train_function` and return True."""
        self.left -= 1
        if self.left:
            return False
        self._model.train_function = self._train
        return True

    def _waiting(self) -> bool:
        return any(group.loaded for group in self._groups)


def _draw(iterator: Iterator[object], count: int) -> None:
    """Read the batches of one step, fewer at the end of the data. Raises StopIteration if there are none."""
    next(iterator)
    for _ in range(count - 1):
        next(iterator, None)
