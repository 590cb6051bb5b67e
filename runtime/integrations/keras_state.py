"""State of a Keras model in training, as named arrays, for all backends.

Keras keeps all state of training in variables: weights, seed generators, normalisation, the optimizer's slots and
counters, and the metrics of the current epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checkpoint.data import random_state
from ..checkpoint.errors import CheckpointError


class Variables:
    """A group of a model's variables as an object with a state: "model", "optimizer" or "metrics".

    Loaded state is kept until `apply()`, because with TensorFlow a model may create its variables with the first batch.
    """

    def __init__(self, what: str, variables: Callable[[], Sequence[Any]], before_reading: Callable[[], None]) -> None:
        self._what, self._variables, self._before_reading = what, variables, before_reading
        self._loaded: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None:
            return dict(self._loaded)  # not applied yet, so still unchanged
        self._before_reading()
        return {_key(i, variable): _array(variable) for i, variable in enumerate(self._variables())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state

    @property
    def loaded(self) -> bool:
        """True if loaded state has not been applied yet."""
        return self._loaded is not None

    def forget(self) -> None:
        self._loaded = None

    @property
    def fits(self) -> bool:
        """True if the model has as many variables as the loaded state, or if no state is loaded."""
        return self._loaded is None or len(self._loaded) == len(self._variables())

    def apply(self) -> None:
        """Assign the loaded state to the variables. Raises CheckpointError, and changes nothing, if it does not fit."""
        if self._loaded is None:
            return
        variables = list(self._variables())
        saved = list(self._loaded.items())
        if len(saved) != len(variables):
            raise self._misfit(f"{len(saved)} variables were saved, now there are {len(variables)}")
        for i, ((key, array), variable) in enumerate(zip(saved, variables, strict=True)):
            path, was, now = _path(key), tuple(array.shape), tuple(variable.shape)
            if (was, _name(path)) != (now, _name(variable.path)):
                raise self._misfit(f"variable {i} was {path} of shape {was}, now it is {variable.path} of shape {now}")
        for (_, array), variable in zip(saved, variables, strict=True):
            variable.assign(array)
        self._loaded = None

    def _misfit(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint does not fit the {self._what}: {how}. Use the model it was saved with, or give another "
            "folder to start over"
        )


def _key(index: int, variable: Any) -> str:  # a Keras variable
    """Return a unique key: the index and the path. Paths alone may be ambiguous or differ between two processes, since
    Keras numbers layers in order of creation."""
    return f"{index:05d}:{variable.path}"


def _path(key: str) -> str:
    return key.partition(":")[2]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _array(variable: Any) -> Any:
    import keras

    return variable.value.detach() if _backend() == "torch" else keras.ops.convert_to_numpy(variable.value)


def _backend() -> str:
    import keras

    name: str = keras.backend.backend()
    return name


def processes(model: Any) -> int:  # a Keras model
    """Return the number of processes that train the model, as its backend reports it."""
    name = _backend()
    if name == "torch":
        import torch

        distributed = torch.distributed
        return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if name == "jax":
        import jax

        return int(jax.process_count())
    if name == "tensorflow":
        resolver = model.distribute_strategy.cluster_resolver  # of multi-worker strategies
        tasks = resolver.cluster_spec().as_dict() if resolver is not None else {}
        return max(1, sum(len(addresses) for addresses in tasks.values()))
    return 1


def random_of_backend() -> dict[str, Any]:
    """Return the state of Python's, NumPy's, torch's and TensorFlow's global generators.

    Keras' own generators are variables of the model.
    """
    state: dict[str, Any] = {"host": random_state.capture()}
    if _backend() == "tensorflow":
        import tensorflow as tf

        state["tensorflow"] = tf.random.get_global_generator().state.numpy()
    return state


def restore_random(state: dict[str, Any]) -> None:
    random_state.restore(state["host"])
    if "tensorflow" in state and _backend() == "tensorflow":
        import tensorflow as tf

        tf.random.get_global_generator().reset(state["tensorflow"])


class Position:
    """Position in the data: epoch, number of its steps that are done, and the random state at its start and now."""

    def __init__(self) -> None:
        self.epoch, self.batch = 0, 0
        self.steps: int | None = None
        """Number of batches in an epoch; None if unknown."""
        self.at_epoch: dict[str, Any] = {}
        """Random state at the epoch's start, from which the order of the data is drawn."""
        self.now: dict[str, Any] = {}
        """Random state at the save; only set by a restore."""
        self.goal: int | None = None
        """Number of epochs that the finished training was to run; None: no later run continues it."""

    def begin_epoch(self, epoch: int, steps: int | None) -> None:
        self.epoch, self.batch, self.steps = epoch, 0, steps
        self.at_epoch = random_of_backend()

    def end_epoch(self) -> None:
        self.epoch, self.batch, self.at_epoch = self.epoch + 1, 0, {}

    def check(self, steps: int | None) -> None:
        """Raise CheckpointError if the number of batches per epoch differs from the saved one."""
        if None not in (steps, self.steps) and steps != self.steps:
            raise CheckpointError(
                f"the checkpoint stands in an epoch of {self.steps} batches, now it has {steps}: the data or the batch "
                "size changed. Use what it was saved with, or use another folder to start over"
            )

    def state_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in _PLACE}, "now": random_of_backend()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in (*_PLACE, "now"):
            setattr(self, name, state[name])


_PLACE = ("epoch", "batch", "steps", "at_epoch", "goal")
