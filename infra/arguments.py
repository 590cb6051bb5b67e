"""Validation of components' arguments before any resource is registered: unknown or missing names, types, values.

Pulumi's own classes reject unknown arguments; a component's arguments are a TypedDict, which is not checked at run
time. Every message is one sentence that names the component and the argument.
"""

from __future__ import annotations

import contextlib
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import pulumi
from pydantic import ValidationError

from ..jobspecs.catalog.machines import machine_types
from ..jobspecs.fleets import FleetSpec
from ..jobspecs.suggest import did_you_mean
from ..provisioners.base import ProvisionError

OWNER_PREFIX = "cloudgpu-"
"""Required prefix of `owner`: reapers, and their permissions, are limited to resources whose owner starts with it."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_FLEET_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


class ArgumentError(pulumi.RunError, ValueError):
    """Raised for an invalid argument of a component. Pulumi prints the message without a traceback."""


def check_arguments(component: str, name: str, args: Mapping[str, Any], known: type) -> None:
    """Raise ArgumentError unless `args` match the component's arguments TypedDict, `known`."""
    what = f"{component} {name!r}"
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{what}: the name must be letters, digits, - and _, beginning with a letter, at most 63")
    hints: dict[str, Any] = known.__annotations__
    optional: frozenset[str] = known.__optional_keys__  # type: ignore[attr-defined]  # all TypedDicts have it
    for key, value in args.items():
        if key not in hints:
            raise ArgumentError(f"{what}: unknown argument {key!r}{_suggestion(key, hints)}")
        if value is None and key in optional:  # None for an optional argument means omitted
            continue
        if not _fits(value, hints[key]):
            raise ArgumentError(f"{what}: {key}: expected {_wanted(hints[key])}, not {_shown(value)}")
    missing = sorted(hints.keys() - optional - {key for key, value in args.items() if value is not None})
    if missing:
        raise ArgumentError(f"{what}: {', '.join(missing)} missing")
    _check_tags(what, args)
    owner = args.get("owner")
    if owner is not None and not owner.startswith(OWNER_PREFIX):
        raise ArgumentError(
            f"{what}: owner: {owner!r} must begin with {OWNER_PREFIX}, or no reaper ends what has expired: "
            f"write {OWNER_PREFIX}{owner}"
        )


def _check_tags(what: str, args: Mapping[str, Any]) -> None:
    for key in ("tags", "labels"):
        for tag in args.get(key) or ():
            if tag.lower().startswith(OWNER_PREFIX):
                hint = "; set owner and expires instead" if key in args else ""
                raise ArgumentError(f"{what}: {key}: {tag} is cloudgpu's own{hint}")


def fleet_spec(name: str, values: Mapping[str, Any], check: Callable[[FleetSpec], None]) -> FleetSpec:
    """Return the fleet that `values` describe. Raises ArgumentError if they are invalid or `check` rejects the
    fleet."""
    with translate_provision_errors(name):
        try:
            fleet = FleetSpec.model_validate(dict(values))
        except ValidationError as error:
            raise ArgumentError(f"GpuFleet {name!r}: {'; '.join(_problem(one) for one in error.errors())}") from None
        _check_machine_type(name, fleet)
        check(fleet)
    return fleet


def check_secrets(name: str, secrets: Iterable[str], pattern: re.Pattern[str], form: str) -> None:
    """Raise ArgumentError for a secret of MachineRole that does not match. `form`: what the message expects."""
    for secret in secrets:
        if not pattern.fullmatch(secret):
            raise ArgumentError(f"MachineRole {name!r}: secrets: {_shown(secret)}: expected {form}")


@contextlib.contextmanager
def translate_provision_errors(name: str) -> Iterator[None]:
    """Translate ProvisionError (a fleet that its cloud does not support) to ArgumentError."""
    try:
        yield
    except ProvisionError as error:
        raise ArgumentError(f"GpuFleet {name!r}: {error}") from error


def check_fleet_name(name: str, fleet_name: str) -> None:
    """Raise ArgumentError for a fleet name that cannot be part of a machine's name."""
    if not _FLEET_NAME.fullmatch(fleet_name):
        raise ArgumentError(
            f"GpuFleet {name!r}: fleet_name: {fleet_name!r} must be lower-case letters, digits and hyphens, beginning "
            "with a letter, at most 63; omitted, it is the component's name"
        )


def check_size(argument: str, text: str, limit: int) -> str:
    """Return `text` unchanged. Raises ArgumentError if it is longer than `limit` bytes in UTF-8."""
    size = len(text.encode())
    if size > limit:
        raise ArgumentError(f"{argument}: {size:,} bytes, of which a machine can have {limit:,} at most")
    return text


def _check_machine_type(name: str, fleet: FleetSpec) -> None:
    """Raise ArgumentError for an unknown size of a known machine family. Unknown families pass: the table may be
    older."""
    known = machine_types(fleet.cloud)
    if fleet.machine_type in known:
        return
    family = _family(fleet.machine_type)
    if any(_family(one) == family for one in known):
        suggestion = _suggestion(fleet.machine_type, known)
        message = f"{fleet.cloud} has no {fleet.machine_type}{suggestion}"
        raise ArgumentError(f"GpuFleet {name!r}: machine_type: {message}")


def _family(machine_type: str) -> str:
    """Return `g6` of `g6.xlarge`, `g2` of `g2-standard-8`, `Standard_NC` of `Standard_NC24ads_A100_v4`."""
    found = re.match(r"Standard_[A-Z]+|[^.-]+", machine_type)
    return found[0] if found else machine_type


def _problem(error: Mapping[str, Any]) -> str:
    """Format a pydantic error: `market: 'spott': input should be …; did you mean spot?`."""
    where = ".".join(str(part) for part in error["loc"])
    text = f"{where}: {_shown(error['input'])}: {error['msg'][:1].lower()}{error['msg'][1:]}"
    options = re.findall(r"'([^']+)'", str((error.get("ctx") or {}).get("expected", "")))
    return f"{text}{_suggestion(str(error['input']), options)}"


def _suggestion(text: str, options: Iterable[str]) -> str:
    found = did_you_mean(text, options)
    return f"; {found}" if found else ""


# --- types ------------------------------------------------------------------------------------------------------------


def _fits(value: object, hint: Any) -> bool:  # a type hint's type is Any
    """Return True if `value` matches a type hint of Pulumi's arguments. An Output matches where an input is
    accepted."""
    alternatives = _alternatives(hint)
    if isinstance(value, pulumi.Output | Awaitable):
        return any(_is_wrapper(one) for one in alternatives)
    return any(_fits_plain(value, one) for one in alternatives if not _is_wrapper(one))


def _fits_plain(value: object, hint: Any) -> bool:
    if hint in (Any, NoneType):
        return hint is Any or value is None
    origin = typing.get_origin(hint)
    if origin in (list, Sequence):
        (of,) = typing.get_args(hint)
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(one, of) for one in value)
    if origin in (dict, Mapping):
        of = typing.get_args(hint)[1]
        return isinstance(value, Mapping) and all(isinstance(k, str) and _fits(one, of) for k, one in value.items())
    if hint in (int, float):  # programs in other languages pass whole numbers as floats
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (hint is float or float(value).is_integer())
        )
    return isinstance(hint, type) and isinstance(value, hint)


def _alternatives(hint: Any) -> list[Any]:
    """Return the members of a union such as `pulumi.Input`; for any other hint, a list of only that hint."""
    if typing.get_origin(hint) is typing.Union:
        return [found for one in typing.get_args(hint) for found in _alternatives(one)]
    if typing.get_origin(hint) is typing.NotRequired:
        return _alternatives(typing.get_args(hint)[0])
    return [hint]


def _is_wrapper(hint: Any) -> bool:
    """Return True for the members of `pulumi.Input` that are not plain values: an Output (a forward reference) or an
    awaitable."""
    return isinstance(hint, typing.ForwardRef) or typing.get_origin(hint) in (pulumi.Output, Awaitable)


def _wanted(hint: Any) -> str:
    plain = [one for one in _alternatives(hint) if not _is_wrapper(one)]
    named = [_TYPE_NAMES.get(one) or _container_name(one) for one in plain]
    only_plain = "" if any(_is_wrapper(one) for one in _alternatives(hint)) else ", known before the program runs"
    return " or ".join(dict.fromkeys(named)) + only_plain


def _container_name(hint: Any) -> str:
    return {list: "a list", dict: "a map"}.get(typing.get_origin(hint), str(hint))


def _shown(value: object) -> str:
    return "an output" if isinstance(value, pulumi.Output | Awaitable) else repr(value)[:60]
