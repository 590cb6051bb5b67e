"""Batches that were trained on before an interruption: `fit` draws them from the data again, and drops them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from .keras_state import Variables


class Skipping:
    """Stands in for `model.train_function` while there are batches to skip.

    `fit` looks that attribute up for every batch and hands it all that the backend's own function gets, so that the
    numbers of batches stay true for other callbacks; those see the metrics as they stood when this was saved.
    """

    def __init__(self, model: Any, batches: int, groups: Sequence[Variables]) -> None:  # keras.Model
        self.left = batches
        self._model, self._groups, self._train = model, groups, model.train_function
        self._logs: Any = None
        if not self._waiting():
            self._logs = model.get_metrics_result()
        model.train_function = self

    def __call__(self, *arguments: Any) -> Any:
        """The arguments are the backend's: (data,) under torch, (iterator,) TensorFlow, (state, iterator) JAX."""
        backend = keras.backend.backend()
        if self._waiting():
            # TensorFlow makes variables when it first sees a batch. What this step does to them is then undone.
            self._train(*arguments)
            for group in self._groups:
                group.apply()
            self._logs = self._model.get_metrics_result()
        elif backend != "torch":
            _draw(arguments[-1], self._model.steps_per_execution)
        return (self._logs, arguments[0]) if backend == "jax" else self._logs

    def count(self) -> bool:
        """One batch fewer; True: that was the last, and training goes on."""
        self.left -= 1
        if self.left:
            return False
        self._model.train_function = self._train
        return True

    def _waiting(self) -> bool:
        return any(group.loaded for group in self._groups)


def _draw(iterator: Iterator[object], count: int) -> None:
    """As many batches as one step takes, fewer at the data's end; raises StopIteration if there is none left."""
    next(iterator)
    for _ in range(count - 1):
        next(iterator, None)
