"""Objects of libraries: what can be found out of a change in them, and random generators."""

from __future__ import annotations

import inspect
import io
import pickle
import random
import types
from typing import Any

import xxhash

_MOST = 16 << 20
"""Bytes of a library's object that are compared."""
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
"""Modules whose objects are code, handles, displays or settings: they hold no state of the training."""
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
    """Return whether the program can lose a change of it without a difference."""
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
    """Return its type and a digest of it; no digest if it cannot be had."""
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
    except Exception:  # noqa: BLE001 - any code of a library's
        return None
    return file.hash.hexdigest()


def is_generator(value: object) -> bool:
    """Return whether it is a random number generator with a state of its own."""
    kind = type(value)
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    return (kind.__module__, kind.__name__) in {
        ("numpy.random._generator", "Generator"),
        ("numpy.random.mtrand", "RandomState"),
        ("torch._C", "Generator"),
    }


def generator_state(value: Any) -> Any:
    """Return what set_generator() takes: plain, or a tensor."""
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return [version, list(words), gauss]
    if hasattr(value, "bit_generator"):
        return value.bit_generator.state
    return value.get_state(legacy=False) if type(value).__name__ == "RandomState" else value.get_state()


def set_generator(value: Any, state: Any) -> None:
    """Put a state of generator_state() back."""
    if isinstance(value, random.Random):
        version, words, gauss = state
        value.setstate((version, tuple(words), gauss))
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)
