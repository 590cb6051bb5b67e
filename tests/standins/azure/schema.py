"""Validation of bodies against the models of the installed SDK for Azure Resource Manager.

Checked are names, types, enumerations, read-only and required fields. The models have open enumerations where the
service may add values; here they are closed, except machine sizes, since the models know only old ones (the catalogue
has the others).
"""

from __future__ import annotations

import datetime
import enum
import functools
import importlib
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from . import models

_OPEN = frozenset({"VirtualMachineSizeTypes", "ExtendedLocationTypes"})
_PLAIN: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "long": int,
    "float": (int, float),
    "bool": bool,
    "object": object,
    "iso-8601": str,
    "duration": str,
}


def faults(model: str, body: object) -> list[str]:
    """Return the errors in a body; `model`: `compute.VirtualMachine`, a class of azure.mgmt.<package>.models."""
    package, _, name = model.rpartition(".")
    return list(_of_model(_class(package, name), body, ""))


def fields(model: str) -> Mapping[str, tuple[Any, bool, bool]]:
    """Return name on the wire -> (type, read-only, required); `model` as in faults()."""
    package, _, name = model.rpartition(".")
    return _fields(_class(package, name))


def shape(told: Any) -> tuple[str, Any]:
    """Return a field type's shape: `object` and its fields, `list` or `map` and the element type, `plain` and None."""
    if isinstance(told, tuple):
        return _shape_of_name(*told)
    origin = typing.get_origin(told)
    if origin is typing.Union:
        options = [one for one in typing.get_args(told) if one is not type(None)]
        return shape(next((one for one in options if typing.get_origin(one) or _is_model(one)), str))
    if origin in (list, dict):
        return ("list", typing.get_args(told)[0]) if origin is list else ("map", typing.get_args(told)[1])
    return ("object", _fields(told)) if _is_model(told) else ("plain", None)


def _shape_of_name(model: Any, told: Any) -> tuple[str, Any]:
    if not isinstance(told, str):
        return "object", _fields(told)
    if told[0] in "[{":
        return ("list" if told[0] == "[" else "map"), (model, told[1:-1])
    return ("plain", None) if told in _PLAIN else shape(_class(model.__module__.split(".")[2], told))


def _is_model(told: Any) -> bool:
    return isinstance(told, type) and told.__module__.startswith("azure.mgmt.") and not issubclass(told, enum.Enum)


@functools.cache
def _class(package: str, name: str) -> Any:
    if models.knows(package):
        return models.model(package, name)
    return getattr(importlib.import_module(f"azure.mgmt.{package}.models"), name)


def _of_model(model: Any, body: object, at: str) -> Iterator[str]:
    if not isinstance(body, Mapping):
        yield f"{at or 'the body'} is {type(body).__name__}, not an object"
        return
    known = _fields(model)
    for name, value in body.items():
        here = f"{at}.{name}" if at else str(name)
        if name not in known:
            yield f"Could not find member '{name}' on object of type '{model.__name__}' (at '{here}')"
        elif known[name][1]:
            yield f"'{here}' is read-only"
        elif value is not None:
            yield from _of_type(known[name][0], value, here)
    for name, (_, read_only, required) in known.items():
        if required and not read_only and body.get(name) is None:
            yield f"Required parameter '{f'{at}.{name}' if at else name}' is missing (null)."


@functools.cache
def _fields(model: Any) -> Mapping[str, tuple[Any, bool, bool]]:
    """Return name on the wire -> (type, read-only, required)."""
    return dict(_of_map(model) if hasattr(model, "_attribute_map") else _of_rest_fields(model))


def _of_rest_fields(model: Any) -> Iterator[tuple[str, tuple[Any, bool, bool]]]:
    """Yield the fields of a model generated from TypeSpec."""
    for owner in reversed(model.__mro__):
        if not owner.__module__.startswith("azure.mgmt."):
            continue
        root = importlib.import_module(owner.__module__.rpartition(".")[0])
        scope = {**vars(sys.modules[owner.__module__]), "_models": root}
        told_of = typing.get_type_hints(owner, scope)
        for name, field in vars(owner).items():
            if type(field).__name__ != "_RestField":
                continue
            result = told_of[name]
            required = type(None) not in typing.get_args(result)
            yield field._rest_name_input or name, (result, field._visibility == ["read"], required)


class _Nested:
    """Nested object of an older model, which has no separate class."""

    _attribute_map: Mapping[str, Mapping[str, str]]
    _validation: Mapping[str, Mapping[str, Any]]


def _of_map(model: Any) -> Iterator[tuple[str, tuple[Any, bool, bool]]]:
    """Yield the fields of a model of the older generator, where `properties.x` is a field of a nested object."""
    inner: dict[str, dict[str, dict[str, Any]]] = {}
    for name, result in model._attribute_map.items():
        key, rule = str(result["key"]).replace("\\.", "\0"), model._validation.get(name, {})
        first, _, rest = key.partition(".")
        if rest:
            maps = inner.setdefault(first, {"map": {}, "rules": {}})
            maps["map"][name] = {"key": rest, "type": result["type"]}
            maps["rules"][name] = rule
        else:
            read_only = bool(rule.get("readonly"))
            yield first.replace("\0", "."), ((model, result["type"]), read_only, bool(rule.get("required")))
    for first, maps in inner.items():
        made = type(
            f"{model.__name__}.{first}",
            (_Nested,),
            {"_attribute_map": maps["map"], "_validation": maps["rules"], "__module__": model.__module__},
        )
        required = any(rule.get("required") for rule in maps["rules"].values())
        yield first, ((model, made), False, required)


def _of_type(told: Any, value: object, at: str) -> Iterator[str]:
    if isinstance(told, tuple):
        model, name = told
        yield from _of_name(model, name, value, at)
        return
    origin = typing.get_origin(told)
    if origin is typing.Union:
        options = [one for one in typing.get_args(told) if one is not type(None)]
        closed = next((one for one in options if isinstance(one, type) and issubclass(one, enum.Enum)), None)
        yield from _of_type(closed or options[0], value, at)
    elif origin is list:
        yield from _of_list(typing.get_args(told)[0], value, at)
    elif origin is dict:
        yield from _of_dict(typing.get_args(told)[1], value, at)
    elif isinstance(told, type):
        yield from _of_class(told, value, at)


def _of_class(told: type, value: object, at: str) -> Iterator[str]:
    if issubclass(told, enum.Enum):
        allowed = {str(one.value).lower() for one in told}
        if told.__name__ not in _OPEN and str(value).lower() not in allowed:
            yield f"'{value}' is not a value of '{at}'; known: {', '.join(str(one.value) for one in told)}"
    elif told.__module__.startswith("azure.mgmt."):
        yield from _of_model(told, value, at)
    elif told in (datetime.datetime, datetime.timedelta, bytes):
        yield from _of_plain(str, value, at)
    elif told in (str, bool, int, float):
        yield from _of_plain((int, float) if told is float else told, value, at)


def _of_name(model: Any, told: Any, value: object, at: str) -> Iterator[str]:
    """Check a type in the older models' notation: `[SubResource]`, `{str}`, `str`, a class's name."""
    if not isinstance(told, str):
        yield from _of_model(told, value, at)
    elif told.startswith("["):
        yield from _of_list((model, told[1:-1]), value, at)
    elif told.startswith("{"):
        yield from _of_dict((model, told[1:-1]), value, at)
    elif told in _PLAIN:
        yield from _of_plain(_PLAIN[told], value, at)
    else:
        package = model.__module__.split(".")[2]
        yield from _of_class(_class(package, told), value, at)


def _of_plain(told: type | tuple[type, ...], value: object, at: str) -> Iterator[str]:
    if told is not object and (not isinstance(value, told) or (isinstance(value, bool) and told is not bool)):
        names = told.__name__ if isinstance(told, type) else told[-1].__name__
        yield f"'{at}' is {type(value).__name__}, not {names}"


def _of_list(item: Any, value: object, at: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"'{at}' is {type(value).__name__}, not a list"
        return
    for number, one in enumerate(value):
        yield from _of_type(item, one, f"{at}[{number}]")


def _of_dict(item: Any, value: object, at: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"'{at}' is {type(value).__name__}, not an object"
        return
    for name, one in value.items():
        yield from _of_type(item, one, f"{at}.{name}")
