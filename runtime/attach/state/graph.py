"""Graph of the objects reachable from the program's variables, by path, with their content.

An object's path begins with the first variable through which the object is reached, and names the attributes from there
on: "__main__.main().trainer.history". The object's content is a record, in which immutable values are plain data
(values.py) and other objects are references to their paths. So two variables that refer to one object still do so after
a resume.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..program.frame_inspection import Code, set_local
from . import values
from .opaque_objects import examine, generator_state, is_generator

Record = dict[str, Any]
_OPEN = (
    "torch.utils.data",
    "torch.distributions",
    "torchvision.transforms",
    "argparse.Namespace",
    "types.SimpleNamespace",
)
"""Prefixes of library modules and types whose objects hold the program's data in attributes."""
_NOT_STATE = {
    "DataLoader": frozenset({"worker_init_fn", "_iterator", "multiprocessing_context"}),
}
"""Attributes that are specific to a process and not saved, by class."""


@dataclass(frozen=True, slots=True)
class Space:
    """Namespace of a module, a function call or an object."""

    path: str
    values: Mapping[str, Any]
    assign: Callable[[str, Any], None]

    def only(self, names: Collection[str]) -> Space:
        """Return the namespace restricted to some variables."""
        return Space(self.path, {name: self.values[name] for name in self.values if name in names}, self.assign)


class Graph:
    """All objects reachable from some starting points, by path.

    starts   namespaces or other objects, by path
    roots    models, optimizers and other objects with a state_dict(), by name; visited first
    known    names of variables, by namespace, that are visited before all others, so that the paths of their objects
             do not change when other variables are assigned
    """

    def __init__(
        self,
        code: Code,
        starts: Mapping[str, Any],
        roots: Mapping[str, Any] | None = None,
        known: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._code, self._roots = code, roots or {}
        self._paths: dict[int, str] = {}
        self.values: dict[str, Any] = {}
        self.records: dict[str, Record] = {}
        self._owned = _saved_tensors(self._roots)
        self._queue: deque[str] = deque()
        self._walk(self._roots)
        # A module of the program may have the same name as a root.
        starts = {f"{path}'" if path in self.values else path: one for path, one in starts.items()}
        if known is not None:
            first = {path: one.only(known.get(path, ())) for path, one in starts.items()}
            self._walk(first)
            for path in first:
                self._paths.pop(id(self.values.pop(path)))
        self._walk(starts)

    def _walk(self, starts: Mapping[str, object]) -> None:
        for path, value in starts.items():
            self._add(value, path)
        while self._queue:
            path = self._queue.popleft()
            self.records[path] = self._record(self.values[path], path)

    def path_of(self, value: object) -> str | None:
        return self._paths.get(id(value))

    def _add(self, value: object, path: str) -> str:
        known = self._paths.get(id(value))
        if known is not None:
            return known
        while path in self.values:
            path += "'"
        self._paths[id(value)] = path
        self.values[path] = value
        self._queue.append(path)
        return path

    def _name(self, value: object, path: str) -> Any:
        """Return a value as plain data, or add it to the graph as an object and return a reference to it."""
        if isinstance(value, types.FunctionType | type) and self._is_own_code(value):
            self._add(value, path)
        try:
            return values.encode(value, lambda item: self._name(item, f"{path}[]"))
        except values.NotInlineError:
            return {"ref": self._add(value, path)}

    def _is_own_code(self, value: Any) -> bool:
        if isinstance(value, type):
            return self._code.owns_module(value.__module__)
        return self._code.owns(value.__code__.co_filename)

    # Records

    def _record(self, value: object, path: str) -> Record:
        record: Record = {}
        if is_generator(value):
            return {"kind": "generator", "state": generator_state(value)}
        if is_array(value):
            return self._array(value)
        if path in self._roots and not _is_module(value):
            names = _own_attributes_of_state(value) if self._is_open(value) else {}
            return {"kind": "state", "names": self._names(names, path)}
        kind = container_kind(value)
        if kind is not None and (type(value) in CONTAINERS or self._is_open(value)):
            record = {"kind": kind, **self._content(kind, value, path)}
        attributes = None if type(value) in CONTAINERS else self._attributes(value)
        if attributes is not None:
            record.setdefault("kind", "object")
            record["names"] = self._names(attributes, path)
        if not isinstance(value, Space | types.FunctionType | type):
            record["class"] = values.code_path(type(value))
        return record if "kind" in record else {"kind": "opaque", **examine(value)}

    def _names(self, attributes: Mapping[str, object], path: str) -> dict[str, Any]:
        return {name: self._name(value, f"{path}.{name}") for name, value in attributes.items()}

    def _content(self, kind: str, value: Any, path: str) -> Record:
        if kind == "bytearray":
            return {"items": bytes(value)}
        if kind == "dict":
            pairs = [
                [self._name(key, f"{path}.key"), self._name(item, f"{path}[{_short(key)}]")]
                for key, item in list(dict_type(value).items(value))
            ]
            factory = getattr(value, "default_factory", None)
            return {"items": pairs, "factory": self._name(factory, f"{path}.default_factory")}
        items = list(value)
        if set(map(type, items)) <= values.EXACT:
            return {"items": items, "most": getattr(value, "maxlen", None)}
        items = [self._name(item, f"{path}[{number}]") for number, item in enumerate(items)]
        return {"items": items, "most": getattr(value, "maxlen", None)}

    def _array(self, value: Any) -> Record:
        if not hasattr(value, "detach"):
            return {"kind": "array", "value": value}
        record: Record = {"requires_grad": bool(value.requires_grad and value.is_leaf)}
        if id(value) in self._owned:
            return {"kind": "owned", **record}
        torch: Any = sys.modules["torch"]
        kind = {"parameter": isinstance(value, torch.nn.Parameter), "device": str(value.device)}
        return {"kind": "tensor", "value": value.detach(), **kind, **record}

    # Attributes

    def _is_open(self, value: object) -> bool:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return self._code.owns_module(kind.__module__) or name.startswith(_OPEN) or _is_module(value)

    def _attributes(self, value: object) -> dict[str, Any] | None:
        if isinstance(value, Space):
            return dict(value.values)
        if isinstance(value, types.FunctionType):
            return _of_function(value) if self._is_own_code(value) else None
        if isinstance(value, type):
            data = {name: item for name, item in vars(value).items() if is_class_state(name, item)}
            return data if self._is_own_code(value) else None
        if isinstance(value, types.MethodType):
            return {"__func__": value.__func__, "__self__": value.__self__}
        if type(value) is functools.partial:
            return {"func": value.func, "args": value.args, "keywords": value.keywords}
        return attributes_of(value) if self._is_open(value) else None


CONTAINERS = {list: "list", dict: "dict", set: "set", deque: "deque", bytearray: "bytearray"}
CONTAINERS |= {OrderedDict: "dict", defaultdict: "dict", __import__("collections").Counter: "dict"}


def container_kind(value: object) -> str | None:
    bases = (list, dict, set, deque, bytearray)
    return next((CONTAINERS[base] for base in bases if isinstance(value, base)), None)


def dict_type(value: object) -> Any:
    """Return dict or OrderedDict, whose methods are called instead of those that a dict subclass overrides."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def is_array(value: object) -> bool:
    """Return whether a value is a tensor, or a NumPy array without Python objects."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return True
    return numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes in an object's __dict__ and slots, without torch's internal attributes."""
    found = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(value, name):
                found[name] = getattr(value, name)
    aside = _module_internals() if _is_module(value) else _NOT_STATE.get(type(value).__name__, frozenset())
    return {name: item for name, item in found.items() if name not in aside}


@functools.cache
def _module_internals() -> frozenset[str]:
    """Return the names of torch.nn.Module's own attributes, except those with state (parameters, buffers, children)."""
    torch: Any = sys.modules["torch"]
    return frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}


def _own_attributes_of_state(value: object) -> dict[str, Any]:
    """Return the attributes that the program's optimizer or scheduler class adds; state_dict() may not contain them."""
    standard = {"state", "param_groups", "defaults", "step", "optimizer"}
    return {n: item for n, item in attributes_of(value).items() if n not in standard and not n.startswith("_")}


def _of_function(function: types.FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[f"cell {name}"] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found.update({f"default {number}": value for number, value in enumerate(defaults)})
    return {**found, **{name: item for name, item in vars(function).items() if name != "__wrapped__"}}


def is_class_state(name: str, value: object) -> bool:
    """Return whether a class attribute is defined by the program, rather than created by Python."""
    made = types.MemberDescriptorType | types.GetSetDescriptorType | property
    return not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl" and not isinstance(value, made)


def _saved_tensors(roots: Mapping[str, Any]) -> set[int]:
    """Return the ids of parameters and buffers that are in the state_dict() of a model."""
    found: set[int] = set()
    for model in roots.values():
        if not _is_module(model):
            continue
        saved = {_place(value) for value in model.state_dict().values() if hasattr(value, "data_ptr")}
        own = [*model.parameters(), *model.buffers()]
        found.update(id(value) for value in own if _place(value) in saved)
    return found


def _place(tensor: Any) -> tuple[Any, ...]:
    return (
        (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) if type(tensor).__name__ != "DTensor" else (id(tensor),)
    )


def _short(key: object) -> str:
    return repr(key) if isinstance(key, str | int) else type(key).__name__


def spaces(code: Code, dead: frozenset[str] = frozenset()) -> dict[str, Space]:
    """Return the namespaces of the program's modules and its running functions, by path.

    dead  variables of the innermost frame to leave out: they will be assigned again before they are read
    """
    frames = code.frames()
    inner = frames[0] if frames else None
    found: dict[str, Space] = {}
    for name, variables in code.modules():
        aside = (
            dead if inner is not None and inner.f_globals is variables and inner.f_code.co_name == "<module>" else ()
        )
        own = {key: value for key, value in variables.items() if not key.startswith("__") and key not in aside}
        found[name] = Space(name, own, variables.__setitem__)
    seen: dict[str, int] = {}
    for frame in reversed(frames):
        if frame.f_code.co_name.startswith("<"):  # a module or a comprehension
            continue
        path = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}()"
        seen[path] = seen.get(path, 0) + 1
        path = path if seen[path] == 1 else f"{path} #{seen[path]}"
        own = {key: value for key, value in frame.f_locals.items() if frame is not inner or key not in dead}
        found[path] = Space(path, own, functools.partial(set_local, frame))
    return found
