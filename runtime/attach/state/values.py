"""Serialize immutable values as plain data. Objects with an identity are saved as references instead (graph.py).

A value of a basic type is stored as it is; any other value becomes a dict with one key, its kind. Loading executes no
code.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any

EXACT = frozenset((type(None), bool, int, float, complex, str, bytes))
CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_TEXT: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.timedelta: (
        "timedelta",
        lambda v: str(v // datetime.timedelta(microseconds=1)),
        lambda t: datetime.timedelta(microseconds=int(t)),
    ),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    fractions.Fraction: ("fraction", str, fractions.Fraction),
    uuid.UUID: ("uuid", str, uuid.UUID),
    type(pathlib.Path()): ("path", str, pathlib.Path),
}
_FROM_TEXT = {name: back for name, _, back in _TEXT.values()}
Name = Callable[[Any], Any]


class NotInlineError(Exception):
    """The value has no plain form: it must be saved as an object with a path."""


def encode(value: Any, name: Name) -> Any:  # noqa: PLR0911 - one return per kind
    """Return a value as plain data; `name` encodes its items. Raises NotInlineError if it has no plain form."""
    kind = type(value)
    if kind in EXACT:
        return value
    if kind is tuple:
        return {"tuple": [name(item) for item in value]}
    if kind is frozenset:
        return {"frozenset": [name(item) for item in value]}
    if kind in _TEXT:
        tag, text, _ = _TEXT[kind]
        return {tag: text(value)}
    if kind in {range, slice}:
        return {kind.__name__: [value.start, value.stop, value.step]}
    if isinstance(value, enum.Enum):
        return {"enum": [name(kind), value.name]}
    if isinstance(value, tuple):
        return {"named": [name(kind), [name(item) for item in value]]}
    if isinstance(value, CODE) and (path := code_path(value)) is not None:
        return {"code": path}
    return _encode_array_kinds(value, kind)


def _encode_array_kinds(value: object, kind: type) -> Any:
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if torch is not None:
        if kind in {torch.dtype, torch.layout, torch.memory_format}:
            return {"torch.dtype": str(value)[6:]}
        if kind is torch.device:
            return {"torch.device": str(value)}
    if (
        numpy is not None
        and isinstance(value, numpy.dtype | numpy.generic)
        and not getattr(value, "dtype", value).hasobject
    ):
        if isinstance(value, numpy.dtype):
            return {"numpy.dtype": value.str}
        return {"numpy": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    raise NotInlineError


def decode(value: object, find: Callable[[str], object]) -> Any:
    """Return the value that encode() was given; `find` returns the object with a path."""
    if not isinstance(value, dict):
        return value
    ((tag, data),) = value.items()
    if tag == "ref":
        return find(data)
    if tag in _FROM_TEXT:
        return _FROM_TEXT[tag](data)
    return _DECODE[tag](data, functools.partial(decode, find=find))


def _torch(name: str) -> Any:
    return getattr(sys.modules["torch"], name)


def _tuple_of(data: Any, back: Callable[[Any], Any]) -> Any:
    kind = back(data[0])
    items = [back(item) for item in data[1]]
    if hasattr(kind, "_fields"):
        return kind(*items)
    new: Any = tuple.__new__ if isinstance(kind.__new__, types.FunctionType) else kind.__new__
    return new(kind, items)


def _scalar(data: Any, _back: object) -> Any:
    import numpy as np

    return np.frombuffer(base64.b64decode(data[1]), dtype=np.dtype(data[0]))[0]


_DECODE: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "tuple": lambda data, back: tuple(map(back, data)),
    "frozenset": lambda data, back: frozenset(map(back, data)),
    "range": lambda data, _: range(*data),
    "slice": lambda data, _: slice(*data),
    "enum": lambda data, back: back(data[0])[data[1]],
    "named": _tuple_of,
    "code": lambda data, _: find_code(data),
    "torch.dtype": lambda data, _: _torch(data),
    "torch.device": lambda data, _: _torch("device")(data),
    "numpy.dtype": lambda data, _: sys.modules["numpy"].dtype(data),
    "numpy": _scalar,
}


def code_path(value: object) -> str | None:
    """Return "module:name" of a class or function, or a module's name; None if find_code() would not find it."""
    if isinstance(value, types.ModuleType):
        return value.__name__ if sys.modules.get(value.__name__) is value else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    path = f"{module}:{name}"
    return path if isinstance(module, str) and find_code(path) is value else None


def find_code(path: str) -> Any:
    """Return the object that code_path() named, or None. Searches only modules that are already imported."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part, None)
    return found
