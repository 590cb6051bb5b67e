"""Detect changes of library objects, whose state cannot be saved; read and set random number generators."""

from __future__ import annotations

import inspect
import io
import pickle
import random
import types
from typing import Any

import xxhash

_MOST = 16 << 20
"""Maximum pickled size in bytes of a library object that is checked for changes."""
_QUIET = (
    "torch._C",
    "torch._dynamo",
    "torch._ops",
    "torch.amp",
    "torch.autograd",
    "torch.backends",
    "torch.cuda",
    "torch.distributed",
    "torch.jit",
    "torch.profiler",
    "torch.utils.hooks",
    "torch.utils.tensorboard",
    "tqdm",
    "logging",
    "re",
    "_csv",
    "csv",
    "_io.BufferedRandom",
    "_io.BufferedReader",
    "_io.BufferedWriter",
    "_io.FileIO",
    "_io.TextIOWrapper",
    "_thread.lock",
    "_thread.RLock",
    "weakref.ReferenceType",
    "weakref.finalize",
    "contextlib",
    "typing",
    "argparse",
    "importlib",
    "traceback",
    "warnings",
    "time",
    "abc",
    __package__.partition(".")[0],
)
"""Modules whose objects are code, handles, displays or settings, without state of the training."""
_QUIET_TYPES = (
    BaseException,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.CodeType,
    types.FunctionType,
    types.FrameType,
    types.TracebackType,
    types.GetSetDescriptorType,
    types.GenericAlias,
    property,
    staticmethod,
    classmethod,
    type,
)


def is_quiet(value: object) -> bool:
    """Return whether changes of an object can be ignored, because it holds no state of the training."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}."
    if isinstance(value, types.GeneratorType):
        return value.gi_frame is None
    return (
        isinstance(value, _QUIET_TYPES)
        or kind is object
        or name.startswith(tuple(f"{one}." for one in _QUIET))
        or (callable(value) and not hasattr(value, "__dict__"))
    )


def examine(value: object) -> dict[str, Any]:
    """Return a record with an object's type and the digest of its pickle; None if it cannot be pickled or is too large.

    quiet      True if changes can be ignored; then there is no digest
    under_way  True for a suspended generator function, whose position cannot be saved
    """
    kind = type(value)
    found: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")}
    if isinstance(value, types.GeneratorType) and inspect.getgeneratorstate(value) == inspect.GEN_SUSPENDED:
        return {**found, "quiet": False, "digest": None, "under_way": True}
    if is_quiet(value):
        return {**found, "quiet": True}
    return {**found, "quiet": False, "digest": _digest(value)}


class _Bounded(io.RawIOBase):
    def __init__(self) -> None:
        self.hash, self.size = xxhash.xxh3_128(), 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > _MOST:
            raise OverflowError
        self.hash.update(data)
        return len(data)


def _digest(value: object) -> str | None:
    file = _Bounded()
    try:
        pickle.Pickler(file, 4).dump(value)
    except Exception:  # noqa: BLE001 - code of a library
        return None
    return file.hash.hexdigest()


def is_generator(value: object) -> bool:
    """Return whether an object is a random number generator with its own state."""
    kind = type(value)
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    return (kind.__module__, kind.__name__) in {
        ("numpy.random._generator", "Generator"),
        ("numpy.random.mtrand", "RandomState"),
        ("torch._C", "Generator"),
    }


def generator_state(value: Any) -> Any:
    """Return a generator's state for set_generator(), as plain data or a tensor."""
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return [version, list(words), gauss]
    if hasattr(value, "bit_generator"):
        return value.bit_generator.state
    return value.get_state(legacy=False) if type(value).__name__ == "RandomState" else value.get_state()


def set_generator(value: Any, state: Any) -> None:
    """Restore a state from generator_state()."""
    if isinstance(value, random.Random):
        version, words, gauss = state
        value.setstate((version, tuple(words), gauss))
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)
