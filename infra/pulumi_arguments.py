"""Conversion from cloud APIs' wire format to arguments of Pulumi's classes, based on the classes' names and types.

A launch template's data, an instance's properties, a virtual machine's profile are built once, as dicts in the cloud
API's format (provisioners/<cloud>/machine/template.py); the components register the same dicts through keywords().
Pulumi's SDKs spell fields differently: `NetworkCardIndex` and `networkCardIndex` are `network_card_index`, booleans of
EC2's interfaces are the strings "true" and "false", 64-bit numbers of Google's JSON are ints. A field that a class
lacks raises an error and is never dropped silently.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import typing
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

_SCALARS = (str, bool, int, float)
_WRAPPERS = frozenset({"Output", "Awaitable"})


class WireError(ValueError):
    """Raised for a field that the class lacks, or a value of the wrong type; the message has the field's path."""


def keywords(args: type, wire: Mapping[str, Any], renames: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return keyword arguments for a resource, or one of its nested types, given its arguments class.

    `args`: e.g. `aws.ec2.LaunchTemplateArgs`. `renames`: path of a field in the wire format, without indexes -> its
    Python name in Pulumi, if that differs; "": the field's own fields move up to its parent
    (`{"NetworkInterfaces.Groups": "security_groups", "disks.initializeParams": ""}`). Outputs are passed through. Lists
    of `{"Key": …, "Value": …}`, AWS's format of tags (in lower case: Google's metadata), become maps where the class
    has a map.

    Raises WireError.
    """
    return _fields(args, wire, renames or {}, "")


def _fields(args: type, wire: Mapping[str, Any], renames: Mapping[str, str], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    properties = _properties(args)
    for key, value in wire.items():
        where = f"{path}.{key}" if path else key
        name = renames.get(where, properties.python(key))
        if name == "":
            merged = {**_fields_flat(args, value, renames, where)}
            _check_once(found, merged, where)
            found |= merged
            continue
        if name is None or name not in properties.types:
            raise WireError(f"{where}: {args.__name__} has no such field; it has {', '.join(sorted(properties.types))}")
        _check_once(found, (name,), where)
        found[name] = _value(properties.types[name], value, renames, where)
    return found


def _fields_flat(args: type, value: object, renames: Mapping[str, str], where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise WireError(f"{where}: an object is flattened into {args.__name__}, and this is {_kind(value)}")
    return _fields(args, value, renames, where)


def _check_once(found: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    twice = sorted(set(found) & set(names))
    if twice:
        raise WireError(f"{where}: {', '.join(twice)} is there twice")


def _value(hint: Any, value: Any, renames: Mapping[str, str], where: str) -> Any:  # any JSON value
    """Convert `value` to the hint's type."""
    if _is_output(value):
        return value
    wanted = _alternatives(hint)
    if Any in wanted:
        return value
    if isinstance(value, Mapping):
        return _object(wanted, value, renames, where)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _list(wanted, value, renames, where)
    return _scalar(wanted, value, where)


def _object(wanted: Sequence[Any], value: Mapping[str, Any], renames: Mapping[str, str], where: str) -> Any:
    import pulumi._types as pulumi_types

    for one in wanted:
        if isinstance(one, type) and pulumi_types.is_input_type(one):
            given = _fields(one, value, renames, where)
            try:
                return one(**given)
            except TypeError as error:  # a required argument is missing
                raise WireError(f"{where}: {error}") from error
        if typing.get_origin(one) is collections.abc.Mapping:
            of = typing.get_args(one)[1]
            return {key: _value(of, each, renames, where) for key, each in value.items()}
    raise WireError(f"{where}: {_names(wanted)} is wanted, and this is an object")


def _list(wanted: Sequence[Any], value: Sequence[Any], renames: Mapping[str, str], where: str) -> Any:
    for one in wanted:
        if typing.get_origin(one) is collections.abc.Sequence:
            (of,) = typing.get_args(one)
            return [_value(of, each, renames, where) for each in value]
        if typing.get_origin(one) is collections.abc.Mapping and all(_is_tag(each) for each in value):
            of = typing.get_args(one)[1]
            pairs = [(tag.get("Key", tag.get("key")), tag.get("Value", tag.get("value"))) for tag in value]
            return {key: _value(of, each, renames, where) for key, each in pairs}
    raise WireError(f"{where}: {_names(wanted)} is wanted, and this is a list")


def _scalar(wanted: Sequence[Any], value: Any, where: str) -> Any:
    """Return a scalar, converted if the class expects another type. Enum values are not checked, as clouds add new
    ones."""
    kinds = {one for one in wanted if one in _SCALARS}
    if type(value) in kinds or (type(value) is int and float in kinds):
        return value
    if str in kinds and isinstance(value, bool):
        return str(value).lower()
    if str in kinds and isinstance(value, int):
        return str(value)
    if int in kinds and isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if any(isinstance(one, type) and issubclass(one, enum.Enum) for one in wanted) and isinstance(value, str):
        return value
    raise WireError(f"{where}: {_names(wanted)} is wanted, and this is {_kind(value)}")


# --- introspection of Pulumi's classes
# ----------------------------------------------------------------------------------


class _Properties(typing.NamedTuple):
    types: Mapping[str, Any]
    """Python name -> type."""
    names: Mapping[str, str]
    """Pulumi name -> Python name."""

    def python(self, key: str) -> str | None:
        """Return the Python name of a wire-format field; None: unknown.

        The wire name equals Pulumi's name except for the case of the first letter or, in Google's SDK, the Python name.
        """
        return self.names.get(key) or self.names.get(key[:1].lower() + key[1:]) or (key if key in self.types else None)


@functools.cache
def _properties(args: type) -> _Properties:
    import pulumi._types as pulumi_types

    if not pulumi_types.is_input_type(args):
        raise TypeError(f"{args!r} is no class of Pulumi arguments: give that of the resource, e.g. LaunchTemplateArgs")
    names = {pulumi: python for python, pulumi in pulumi_types.input_type_py_to_pulumi_names(args).items()}
    types = pulumi_types.input_type_types(args)
    return _Properties({names[pulumi]: hint for pulumi, hint in types.items()}, names)


def _alternatives(hint: Any) -> list[Any]:  # a type hint's type is Any
    """Return the types in a hint, without None and Pulumi's wrappers (Output, Awaitable)."""
    if typing.get_origin(hint) is not None and not _is_container(hint):
        flat = [found for one in typing.get_args(hint) if not _is_wrapper(one) for found in _alternatives(one)]
        return list(dict.fromkeys(flat))
    return [] if hint is NoneType else [hint]


def _is_container(hint: Any) -> bool:
    return typing.get_origin(hint) in (collections.abc.Sequence, collections.abc.Mapping)


def _is_wrapper(hint: Any) -> bool:
    return getattr(typing.get_origin(hint), "__name__", "") in _WRAPPERS


def _is_output(value: object) -> bool:
    import pulumi

    return isinstance(value, pulumi.Output)


def _is_tag(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() in ({"Key", "Value"}, {"key", "value"})


def _names(wanted: Iterable[Any]) -> str:
    return " or ".join(getattr(one, "__name__", str(one)) for one in wanted) or "nothing"


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"
