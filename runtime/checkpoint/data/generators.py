"""Find, save and restore the random generators that belong to a loader.

Samplers, batch samplers, datasets, transforms and collators may hold a `torch.Generator`, a NumPy `Generator` or
`RandomState`, or a `random.Random`. The search follows attributes, lists and dicts, functions with their closures, and
global variables that methods use. Each generator is identified by its path from the loader: `sampler.rng`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
import types
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import CheckpointError, logger

_OBJECTS = 2000
"""Maximum number of objects to search, in breadth-first order from the loader."""
_ENTRIES = 256
"""Maximum number of entries to search in a list or dict."""
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType)
"""Types whose objects are not searched."""
_SKIPPED = frozenset(("_iterator",))
"""Skipped attributes. A DataLoader's iterator holds its running workers, which share the loader's generators."""
_FIRST_FORMAT = tuple(
    f"{batches}{sampler}generator"
    for batches in ("", "batch_sampler.", "batch_sampler.batch_sampler.")
    for sampler in ("", "sampler.")
)
"""Paths searched by the first version of the format, which saved a list of the generators' states."""


class Generators:
    """Random generators of one loader, by path."""

    def __init__(self, loader: object) -> None:  # anything that can be iterated
        self._loader = loader
        self._objects: dict[str, Any] = {}
        """All objects searched, by path."""
        self._found: dict[str, Any] = {}
        self._search()

    def capture(self) -> dict[str, Any]:
        """Return the state of each generator, as plain values, arrays and tensors."""
        return {path: {"kind": (kind := _kind(one)), "state": _read(kind, one)} for path, one in self._found.items()}

    def restore(self, saved: Mapping[str, Any] | Sequence[Any]) -> None:
        """Restore the state of each saved generator; others keep their state.

        If a generator was an attribute that is None or missing now, it is created, since its owner would create it on
        first use. Raises CheckpointError for any other missing generator.
        """
        if not isinstance(saved, Mapping):
            self._restore_first_format(saved)
            return
        for path, one in saved.items():
            generator = self._found.get(path)
            if generator is None:
                generator = self._found[path] = self._make(path, one)
            elif (kind := _kind(generator)) != one["kind"]:
                raise _misfit(f"{path} was a {one['kind']} when it was saved, now it is a {kind}")
            try:
                _write(one["kind"], generator, one["state"])
            except (TypeError, ValueError, KeyError, RuntimeError) as error:
                raise _misfit(f"{path} does not take back its state ({error})") from error

    def _make(self, path: str, saved: Mapping[str, Any]) -> Any:
        parent, _, name = path.rpartition(".")
        owner = self._objects.get(parent)
        # An attribute of torch's classes is never filled on first use, so a missing generator there is an error.
        if owner is None or "<" in name or _is_of_torch(owner) or getattr(owner, name, None) is not None:
            raise _misfit(f"{path} ({saved['kind']}) was there when it was saved, now it is not")
        made = _new(saved["kind"], saved["state"])
        setattr(owner, name, made)
        return made

    def _restore_first_format(self, states: Sequence[object]) -> None:
        known: list[Any] = []
        for path in _FIRST_FORMAT:
            one = functools.reduce(lambda owner, name: getattr(owner, name, None), path.split("."), self._loader)
            if hasattr(one, "get_state") and not any(one is other for other in known):
                known.append(one)
        if len(known) != len(states):
            raise _misfit(f"there were {len(states)} torch.Generator objects when it was saved, now {len(known)}")
        for one, state in zip(known, states, strict=True):
            one.set_state(state)
        if new := [path for path, one in self._found.items() if not any(one is other for other in known)]:
            logger().warning(
                f"the checkpoint is from a version that did not save generators other than torch's: {', '.join(new)} "
                "of the loader goes on from where the program has it now"
            )

    def _search(self) -> None:
        """Search breadth first, so that each path is the shortest."""
        waiting: deque[tuple[str, Any]] = deque([("", self._loader)])
        seen: set[int] = set()
        while waiting and len(self._objects) < _OBJECTS:
            path, value = waiting.popleft()
            if isinstance(value, _LEAVES) or hasattr(type(value), "dtype") or id(value) in seen:
                continue
            seen.add(id(value))
            if _kind(value):
                self._found[path] = value
                continue
            self._objects[path] = value
            waiting.extend((f"{path}{step}".removeprefix("."), child) for step, child in _children(value))


def generators_of(loader: object) -> Generators:  # anything that can be iterated
    """Return the generators that a loader, its samplers, its dataset and its collator draw from."""
    return Generators(loader)


def from_python(state: tuple[Any, ...]) -> list[Any]:
    """Convert a state of `random.getstate()` to plain values."""
    version, words, gauss = state
    return [version, array("Q", words).tobytes(), gauss]


def to_python(state: Sequence[Any]) -> tuple[Any, ...]:
    """Convert plain values to the argument of `random.setstate()`."""
    version, words, gauss = state
    return (version, tuple(array("Q", words)), gauss)


def _misfit(how: str) -> CheckpointError:
    return CheckpointError(
        f"the loader's random generators changed: {how}. Use the loader it was saved with, or give another folder to "
        "start over"
    )


# The search


def _children(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an object holds, each with its step in the path; run no code of the object."""
    if isinstance(value, list | tuple | deque):
        yield from ((f"[{i}]", one) for i, one in enumerate(itertools.islice(value, _ENTRIES)))
    elif isinstance(value, dict):
        entries = list(itertools.islice(value.items(), _ENTRIES))
        yield from ((f"[{key!r}]", one) for key, one in entries if isinstance(key, str | int))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, types.BuiltinMethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    yield from _attributes(value)
    kind: Any = type(value)
    yield from ((step, names[name]) for step, names, name in _of_class(kind) if name in names)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    own: dict[str, Any] = {}
    with contextlib.suppress(AttributeError):
        own.update(object.__getattribute__(value, "__dict__"))
    for name in (name for kind in type(value).__mro__ for name in _slots(kind)):
        with contextlib.suppress(AttributeError):  # a slot that is not set
            own[name] = object.__getattribute__(value, name)
    yield from ((f".{name}", one) for name, one in own.items() if name not in _SKIPPED)


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's default values, captured variables, and the generators among the global variables it names."""
    yield from ((".__defaults__", function.__defaults__), (".__kwdefaults__", function.__kwdefaults__))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f".<{name}>", cell.cell_contents
    names = function.__globals__
    yield from ((f".<{name}>", names[name]) for name in function.__code__.co_names if _kind(names.get(name)))


@functools.lru_cache(maxsize=1024)
def _of_class(kind: type) -> tuple[tuple[str, Mapping[str, Any], str], ...]:
    """Return the places of generators in a class: its attributes, and global variables that its methods name.

    Each place is a path step, a namespace, and the name in it.
    """
    found: list[tuple[str, Mapping[str, Any], str]] = []
    for base in kind.__mro__:
        for name, value in base.__dict__.items():
            if _kind(value):
                found.append((f".{name}", base.__dict__, name))
            elif isinstance(value, types.FunctionType):
                names = value.__globals__
                found += ((f".{name}.<{one}>", names, one) for one in value.__code__.co_names if _kind(names.get(one)))
    return tuple(found)


def _is_of_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


# The kinds


def _kind(value: object) -> str | None:
    """Return the kind of a generator; None if the value is not a generator."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else "random.Random"
    if (torch := sys.modules.get("torch")) and isinstance(value, torch.Generator):
        return "torch.Generator"
    if numpy := sys.modules.get("numpy.random"):
        for name in ("Generator", "RandomState", "BitGenerator"):
            if isinstance(value, getattr(numpy, name)):
                return f"numpy.random.{name}"
    return None


def _read(kind: str | None, generator: Any) -> Any:
    match kind:
        case "random.Random":
            return from_python(generator.getstate())
        case "torch.Generator":
            return generator.get_state()
        case "numpy.random.Generator":
            return generator.bit_generator.state
        case "numpy.random.RandomState":
            return generator.get_state(legacy=False)
        case _:
            return generator.state


def _write(kind: str, generator: Any, state: Any) -> None:
    match kind:
        case "random.Random":
            generator.setstate(to_python(state))
        case "numpy.random.Generator":
            generator.bit_generator.state = state
        case "numpy.random.BitGenerator":
            generator.state = state
        case _:
            generator.set_state(state)


def _new(kind: str, state: Any) -> Any:
    if kind == "random.Random":
        return random.Random()  # noqa: S311 - not for secrets
    if kind == "torch.Generator":
        import torch

        return torch.Generator()
    import numpy as np

    bits = getattr(np.random, state["bit_generator"])()
    return bits if kind == "numpy.random.BitGenerator" else getattr(np.random, kind.rpartition(".")[2])(bits)
