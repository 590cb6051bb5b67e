"""The program's own variables: counters, best values, histories, and random generators that it keeps to itself.

Looked through are the globals of the program's modules, the local variables of its functions that are under way, and
the attributes of objects of its own classes that are found there. Saved is what is plain: numbers, text, containers of
them, small tensors and arrays. What has not changed since training began is not put back: it is the program's to set.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from ..checkpoint.errors import CheckpointError
from .frames import Code, set_local

ELEMENTS = 100_000
"""A container of more is not saved: it is data."""
SMALL = 65_536
"""Elements of a tensor or array that is saved as a variable."""
_DEPTH = 8
_LOOKED_INTO = 64
"""Items of a container that objects are looked for in."""
_EXACT = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, dict, OrderedDict, defaultdict, Counter, deque)
_STATELESS = ("torch", "torchvision", "argparse", "pathlib", "logging", "re", "enum", "typing", "numpy.dtype")
"""Of their objects nothing is said when they are not saved: they do not change, or are saved otherwise."""
_QUIET = ("module", "type", "function", "builtin_function_or_method", "method", "ABCMeta", "partial", "range")


@dataclass(frozen=True, slots=True)
class Space:
    """Variables that belong together: of a module, a call, an object."""

    path: str
    values: Mapping[str, Any]
    assign: Callable[[str, Any], None]


class Variables:
    """Of one program."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._before: dict[str, dict[str, Any]] | None = None
        """Copies of what was there when training began."""

    # Finding

    def spaces(self) -> list[Space]:
        """All there are now; to be called below the frames of the program."""
        return list(_Search(self._code).spaces())

    def generators(self) -> dict[str, Any]:
        """Random generators by where they are found, each once."""
        search = _Search(self._code)
        for _ in search.spaces():
            pass
        return search.generators

    def unsaved(self) -> list[str]:
        """What may change and cannot be saved, as "name (type)"."""
        found = []
        for space in self.spaces():
            for name, value in space.values.items():
                if not (is_plain(value) or _is_quiet(value) or self._is_own(value)):
                    found.append(f"{space.path}.{name} ({_kind(value)})")
        return sorted(found)

    def _is_own(self, value: Any) -> bool:  # noqa: ANN401
        return self._code.owns(getattr(sys.modules.get(type(value).__module__), "__file__", None))

    # Saving and restoring

    def begin(self) -> None:
        """Training begins: what is there now is the program's own setting. Once more changes nothing."""
        if self._before is None:
            self._before = {
                space.path: {name: copy.deepcopy(value) for name, value in _plain(space)} for space in self.spaces()
            }

    def state_dict(self) -> dict[str, Any]:
        """The plain variables that have changed since begin(), and the names of those that have not."""
        before = self._before or {}
        changed: dict[str, dict[str, Any]] = {}
        same: dict[str, list[str]] = {}
        for space in self.spaces():
            known = before.get(space.path, {})
            for name, value in _plain(space):
                if name in known and equal(known[name], value):
                    same.setdefault(space.path, []).append(name)
                else:
                    changed.setdefault(space.path, {})[name] = _savable(value)
        return {"changed": changed, "same": same}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError if the program is not where it was."""
        spaces = {space.path: space for space in self.spaces()}
        if missing := sorted(state["changed"].keys() - spaces.keys()):
            raise CheckpointError(
                f"the checkpoint has variables of {', '.join(missing)}, which the program has not reached by now: it "
                "is not the one that was saved. Use that one, or give another folder to begin anew"
            )
        for path, names in state["same"].items():
            for name in names:
                if path in spaces and name in (known := (self._before or {}).get(path, {})):
                    _put(spaces[path], name, copy.deepcopy(known[name]))
        for path, values in state["changed"].items():
            for name, value in values.items():
                _put(spaces[path], name, _restored(value))


class _Search:
    """One walk through all that the program's variables lead to."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._seen: set[int] = set()
        self.generators: dict[str, Any] = {}
        self._names = {name for name, _ in code.modules()}

    def spaces(self) -> Iterator[Space]:
        for name, variables in self._code.modules():
            own = {key: value for key, value in variables.items() if not key.startswith("__")}
            yield Space(name, own, variables.__setitem__)
            yield from self._below(name, own, _DEPTH)
        calls: Counter[str] = Counter()
        for frame in reversed(self._code.frames()):
            code = frame.f_code
            if code.co_name.startswith("<"):  # a module, or the loop of a comprehension
                continue
            path = f"{frame.f_globals.get('__name__')}.{code.co_qualname}()"
            calls[path] += 1
            path = path if calls[path] == 1 else f"{path} #{calls[path]}"
            own = dict(frame.f_locals)
            yield Space(path, own, lambda name, value, frame=frame: set_local(frame, name, value))  # type: ignore[misc]
            yield from self._below(path, own, _DEPTH)

    def _below(self, path: str, values: Mapping[str, Any], depth: int) -> Iterator[Space]:
        for name, value in values.items():
            yield from self._look(f"{path}.{name}", value, depth)

    def _look(self, path: str, value: Any, depth: int) -> Iterator[Space]:  # noqa: ANN401
        if isinstance(value, _EXACT) or depth <= 0 or id(value) in self._seen:
            return
        if is_generator(value):
            self._seen.add(id(value))
            self.generators[path] = value
        elif isinstance(value, list | tuple | dict) and len(value) <= _LOOKED_INTO:
            self._seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in list(items):
                yield from self._look(f"{path}[{key!r}]", item, depth - 1)
        elif (attributes := self._attributes(value)) is not None:
            self._seen.add(id(value))
            own = {name: item for name, item in attributes.items() if name not in _module_internals()}
            if type(value).__module__ in self._names:
                yield Space(path, own, attributes.__setitem__)
            yield from self._below(path, own, depth - 1)

    def _attributes(self, value: Any) -> MutableMapping[str, Any] | None:  # noqa: ANN401
        """Of an object of the program's own classes, or one that leads to its data."""
        module = type(value).__module__
        if module in self._names or module.startswith(("torch.utils.data", "torchvision.transforms")):
            found = getattr(value, "__dict__", None)
            return found if isinstance(found, dict) else None
        return None


def is_generator(value: Any) -> bool:  # noqa: ANN401
    """A random number generator with a state of its own."""
    kind = type(value)
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    return (kind.__module__, kind.__name__) in {
        ("numpy.random._generator", "Generator"),
        ("numpy.random.mtrand", "RandomState"),
        ("torch._C", "Generator"),
    }


def generator_state(value: Any) -> Any:  # noqa: ANN401
    """What set_generator() takes: plain, or a tensor."""
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return [version, list(words), gauss]
    if hasattr(value, "bit_generator"):
        return value.bit_generator.state
    return value.get_state(legacy=False) if type(value).__name__ == "RandomState" else value.get_state()


def set_generator(value: Any, state: Any) -> None:  # noqa: ANN401
    if isinstance(value, random.Random):
        version, words, gauss = state
        value.setstate((version, tuple(words), gauss))
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def is_plain(value: Any, left: int = ELEMENTS) -> bool:  # noqa: ANN401
    """It can be saved: see ..checkpoint.tree."""
    return _count(value, left) <= left


def _count(value: Any, left: int) -> int:  # noqa: ANN401
    """Elements; more than `left` if it is not plain, or too large."""
    kind = type(value)
    if kind in _EXACT:
        return 1
    if kind in _CONTAINERS:
        if len(value) > left or (
            kind is defaultdict and getattr(value.default_factory, "__module__", "") != "builtins"
        ):
            return left + 1
        total = 1
        for item in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
            total += _count(item, left - total)
            if total > left:
                return left + 1
        return total
    return 1 if _is_small_array(value) else left + 1


def _is_small_array(value: Any) -> bool:  # noqa: ANN401
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(value) is torch.Tensor:
        return bool(not value.requires_grad and value.layout is torch.strided and value.numel() <= SMALL)
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return bool(type(value).__module__ == "numpy" and not value.dtype.hasobject and value.size <= SMALL)
    return False


def equal(a: Any, b: Any) -> bool:  # noqa: ANN401
    """Of two plain values: the same kind and the same content."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, "dtype"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and (a == b).all())  # a NaN counts as a change
    return bool(a == b)


def _plain(space: Space) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in space.values.items() if is_plain(value))


def _savable(value: Any) -> Any:  # noqa: ANN401
    """The tree knows no deque."""
    return {"deque": list(value), "most": value.maxlen} if type(value) is deque else [value]


def _restored(value: Any) -> Any:  # noqa: ANN401
    return deque(value["deque"], value["most"]) if isinstance(value, dict) else value[0]


def _put(space: Space, name: str, value: Any) -> None:  # noqa: ANN401
    """Into the container that is there, if there is one: others may refer to it."""
    live: Any = space.values.get(name)
    if type(live) is type(value) and isinstance(live, list | deque):
        live.clear()
        live.extend(value)
    elif type(live) is type(value) and isinstance(live, dict | set):
        live.clear()
        live.update(value)
    elif hasattr(live, "device") and hasattr(value, "to"):
        space.assign(name, value.to(live.device))
    else:
        space.assign(name, value)


def _is_quiet(value: Any) -> bool:  # noqa: ANN401
    kind = type(value)
    return (
        kind.__name__ in _QUIET
        or callable(value)
        or is_generator(value)
        or f"{kind.__module__}.".startswith(tuple(f"{name}." for name in _STATELESS))
        or (
            isinstance(value, list | tuple | dict | set)
            and all(
                _is_quiet(item) or is_plain(item) for item in (value.values() if isinstance(value, dict) else value)
            )
        )
    )


def _kind(value: Any) -> str:  # noqa: ANN401
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _module_internals() -> frozenset[str]:
    """Attributes that torch.nn.Module has for itself."""
    torch = sys.modules.get("torch")
    return frozenset(vars(torch.nn.Module())) if torch is not None else frozenset()
