"""Validation of a resource's inputs against the type hints of the SDK's classes: names, types, enums, required inputs.

Both spellings are checked: the names on the wire (`sent`), and the Python names in the program (`given`), since the SDK
passes unknown names on unchanged.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import importlib
import inspect
import typing
from collections.abc import Collection, Iterator, Mapping
from types import NoneType
from typing import Any

import pulumi
from pulumi import _types as pulumi_types
from pulumi.runtime import rpc

from . import wire

OPEN_ENUMS = frozenset({"InstanceType", "Region", "VirtualMachineSizeTypes", "AvailabilityZone"})
"""Enums that clouds extend before SDKs do: any text is valid."""


@functools.cache
def classes(token: str) -> tuple[type | None, type | None]:
    """Return the resource's class and its arguments' class for a type token; None if no imported SDK has it."""
    package, module, _name = token.split(":")
    for known in rpc._RESOURCE_MODULES.get(f"{package}:{module}", []):
        result = typing.cast(Any, known).mod_info
        if name_there := result["classes"].get(token):
            home = importlib.import_module(result["fqn"])
            # A class is named …InitArgs where a nested type already has the name (azure-native's SubnetArgs).
            arguments = getattr(home, f"{name_there}InitArgs", None) or getattr(home, f"{name_there}Args")
            return getattr(home, name_there), arguments
    return None, None


def sent(arguments: type, inputs: Mapping[str, Any], open_enums: Collection[str] = OPEN_ENUMS) -> list[str]:
    """Return the errors in inputs as they are on the wire. Each begins with the path."""
    return list(_fields(arguments, inputs, "", frozenset(open_enums)))


def given(arguments: type, properties: Mapping[str, Any]) -> list[str]:
    """Return errors for keys that are not Python names of the arguments, such as `deviceIndex` for `device_index`."""
    return list(_names(arguments, properties, ""))


def _fields(arguments: type, value: Mapping[str, Any], path: str, open_enums: frozenset[str]) -> Iterator[str]:
    types = pulumi_types.input_type_types(arguments)
    for key, one in value.items():
        where = f"{path}.{key}".lstrip(".")
        if key not in types:
            yield f"{where}: {arguments.__name__} has no such field"
        elif one is not None:
            yield from _value(types[key], one, where, open_enums)
    there = {key for key, one in value.items() if one is not None}
    for missing in sorted(_required(arguments) - there):
        yield f"{path}.{missing}".lstrip(".") + f": missing; {arguments.__name__} requires it"


@functools.cache
def _required(arguments: type) -> frozenset[str]:
    names = pulumi_types.input_type_py_to_pulumi_names(arguments)
    parameters = inspect.signature(arguments).parameters.values()
    return frozenset(names[one.name] for one in parameters if one.default is inspect.Parameter.empty)


def _value(hint: Any, value: Any, where: str, open_enums: frozenset[str]) -> Iterator[str]:
    wanted = _alternatives(hint)
    if isinstance(value, wire.Unknown) or Any in wanted or object in wanted:
        return
    if isinstance(value, Mapping):
        yield from _object(wanted, value, where, open_enums)
    elif isinstance(value, list):
        element = next((typing.get_args(one)[0] for one in wanted if _is(one, collections.abc.Sequence)), None)
        if element is None:
            yield f"{where}: a list, where {_told(wanted)} is wanted"
            return
        for index, one in enumerate(value):
            yield from _value(element, one, f"{where}[{index}]", open_enums)
    elif isinstance(value, wire.Signed):
        if not any(isinstance(one, type) and issubclass(one, pulumi.Asset | pulumi.Archive) for one in wanted):
            yield f"{where}: an asset, an archive or a resource, where {_told(wanted)} is wanted"
    else:
        yield from _scalar(wanted, value, where, open_enums)


def _object(wanted: list[Any], value: Mapping[str, Any], where: str, open_enums: frozenset[str]) -> Iterator[str]:
    for one in wanted:
        if isinstance(one, type) and pulumi_types.is_input_type(one):
            yield from _fields(one, value, where, open_enums)
            return
        if _is(one, collections.abc.Mapping):
            element = typing.get_args(one)[1]
            for key, each in value.items():
                yield from _value(element, each, f'{where}["{key}"]', open_enums)
            return
    yield f"{where}: an object, where {_told(wanted)} is wanted"


def _scalar(wanted: list[Any], value: Any, where: str, open_enums: frozenset[str]) -> Iterator[str]:
    enums = [one for one in wanted if isinstance(one, type) and issubclass(one, enum.Enum)]
    if isinstance(value, str) and enums:
        members = {member.value for one in enums for member in one}
        if value not in members and not any(one.__name__ in open_enums for one in enums):
            yield f"{where}: {value!r} is not of {_told(enums)}: {', '.join(sorted(map(str, members)))[:200]}"
        return
    exact = type(value) in wanted or (type(value) is int and float in wanted)
    if not exact:
        yield f"{where}: {type(value).__name__} {value!r}, where {_told(wanted)} is wanted"


def _names(arguments: type, value: Mapping[str, Any], path: str) -> Iterator[str]:
    names = pulumi_types.input_type_py_to_pulumi_names(arguments)
    types = pulumi_types.input_type_types(arguments)
    for key, one in value.items():
        where = f"{path}.{key}".lstrip(".")
        if key not in names:
            known = {pulumi_name: python for python, pulumi_name in names.items()}
            better = f"; it is {known[key]} in Python" if key in known else ""
            yield f"{where}: {arguments.__name__} has no such field{better}"
        else:
            yield from _nested_names(types[names[key]], one, where)


def _nested_names(hint: Any, value: Any, where: str) -> Iterator[str]:
    for one in _alternatives(hint):
        if isinstance(value, Mapping) and isinstance(one, type) and pulumi_types.is_input_type(one):
            yield from _names(one, value, where)
        elif isinstance(value, list | tuple) and _is(one, collections.abc.Sequence):
            for index, each in enumerate(value):
                yield from _nested_names(typing.get_args(one)[0], each, f"{where}[{index}]")


def _alternatives(hint: Any) -> list[Any]:
    """Return the types of a hint without None, Output and Awaitable."""
    if typing.get_origin(hint) is typing.Union:
        flat = [found for one in typing.get_args(hint) for found in _alternatives(one)]
        return list(dict.fromkeys(flat))
    if hint is NoneType or getattr(typing.get_origin(hint), "__name__", "") in ("Output", "Awaitable"):
        return []
    return [hint]


def _is(hint: Any, origin: Any) -> bool:
    return typing.get_origin(hint) is origin


def _told(wanted: Collection[Any]) -> str:
    return " or ".join(getattr(one, "__name__", str(one)) for one in wanted)
