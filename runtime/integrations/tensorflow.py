"""TensorFlow without Keras' fit: save variables with a Checkpointer.

    ckpt = Checkpointer(model=VariableState(module), optimizer=VariableState(optimizer))

The training loop is the same as for other frameworks: see docs/guides/checkpointing.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .deferred import misfit
from .missing_framework import missing

try:
    import tensorflow as tf
except ImportError as error:
    raise missing("tensorflow", "tensorflow>=2.16", error) from None


class VariableState:
    """The variables of `owner` as an object with a state.

    owner  a tf.Module, a Keras layer or optimizer, or an iterable of tf.Variable; it must have created its variables
           before the Checkpointer is constructed

    `load_state_dict` raises CheckpointError if the variables' shapes differ.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def state_dict(self) -> dict[str, Any]:
        return {f"{i:05d}": tf.convert_to_tensor(v).numpy() for i, v in enumerate(self._variables())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        variables, saved = list(self._variables()), list(state.values())
        was = [tuple(array.shape) for array in saved]
        now = [tuple(variable.shape) for variable in variables]
        if was != now:
            raise misfit("variables", f"shapes {was} were saved, now they are {now}")
        for variable, array in zip(variables, saved, strict=True):
            variable.assign(array)

    def _variables(self) -> Iterable[Any]:
        found = getattr(self._owner, "variables", self._owner)
        listed: Iterable[Any] = found() if callable(found) else found
        return listed
