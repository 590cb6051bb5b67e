"""Conversion of Pulumi's protocol values to Python: secrets, unknown values, outputs, assets, references to resources.

A google.protobuf.Struct holds them as objects with a signature. Source of the constants: pulumi.runtime.rpc of the
installed SDK; numbers are doubles on the wire, so whole ones become `int` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

Props = dict[str, Any]

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
ASSET = "c44067f5952c0a294b673a41bacd8c17"
ARCHIVE = "0def7320c3a5731c473e5ecbe6d01bc7"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


class Unknown:
    """A value that is known only after creation. The only instance is UNKNOWN."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Secret:
    """A value that must not be displayed."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(…)"


@dataclass(frozen=True)
class Output:
    """A value with the URNs of the resources that it depends on."""

    value: Any
    secret: bool = False
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signed:
    """An asset, an archive or a reference to a resource: signature and fields, unconverted."""

    signature: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def from_struct(struct: Struct) -> Props:
    """Convert a Struct, with special values as Secret, Output, Signed and UNKNOWN."""
    return {key: from_value(value) for key, value in struct.fields.items()}


def from_value(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _typed(from_struct(value.struct_value))
    if kind == "list_value":
        return [from_value(one) for one in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "string_value":
        return UNKNOWN if value.string_value == UNKNOWN_TEXT else value.string_value
    return value.bool_value if kind == "bool_value" else None


def _typed(fields: Props) -> Any:
    signature = fields.get(SIGNATURE)
    if signature is None:
        return fields
    if signature == SECRET:
        return Secret(fields.get("value"))
    if signature == OUTPUT:
        known = fields.get("value", UNKNOWN)
        return Output(known, bool(fields.get("secret")), tuple(fields.get("dependencies") or ()))
    if signature in (ASSET, ARCHIVE, RESOURCE):
        return Signed(signature, {key: value for key, value in fields.items() if key != SIGNATURE})
    raise ValueError(f"the signature {signature} is not modelled")


def to_struct(properties: Mapping[str, Any]) -> Struct:
    return Struct(fields={key: to_value(value) for key, value in properties.items() if value is not None})


def to_value(value: Any) -> Value:
    """Convert a Python value. Raises TypeError for a value that the protocol cannot represent."""
    for kinds, wrap in _WRAPPERS:
        if isinstance(value, kinds):
            return wrap(value)
    raise TypeError(f"{type(value).__name__} cannot be sent: {value!r}")


def _of_struct(properties: Mapping[str, Any]) -> Value:
    return Value(struct_value=to_struct(properties))


def _of_output(value: Output) -> Value:
    fields: Props = {SIGNATURE: OUTPUT, "secret": value.secret, "dependencies": list(value.dependencies)}
    if not isinstance(value.value, Unknown):
        fields["value"] = value.value
    return _of_struct(fields)


_WRAPPERS: tuple[tuple[Any, Callable[[Any], Value]], ...] = (
    (type(None), lambda _none: Value(null_value=NULL_VALUE)),
    (bool, lambda value: Value(bool_value=value)),  # before the numbers: bool is a subclass of int
    ((int, float), lambda value: Value(number_value=value)),
    (str, lambda value: Value(string_value=value)),
    (Unknown, lambda _unknown: Value(string_value=UNKNOWN_TEXT)),
    (Secret, lambda value: _of_struct({SIGNATURE: SECRET, "value": value.value})),
    (Output, _of_output),
    (Signed, lambda value: _of_struct({SIGNATURE: value.signature, **value.fields})),
    (Mapping, _of_struct),
    ((list, tuple), lambda value: Value(list_value=ListValue(values=[to_value(one) for one in value]))),
)


def rewritten(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with every Secret, Output, Signed and UNKNOWN replaced by `change`, without recursing into its
    results."""
    if isinstance(value, Secret | Output | Signed | Unknown):
        return change(value)
    if isinstance(value, Mapping):
        return {key: rewritten(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rewritten(one, change) for one in value]
    return value


def plain(value: Any) -> Any:
    """Return the value with Secret and Output unwrapped; UNKNOWN and Signed are kept."""

    def unwrap(special: Any) -> Any:
        return plain(special.value) if isinstance(special, Secret | Output) else special

    return rewritten(value, unwrap)


def without_outputs(value: Any) -> Any:
    """Return the value with each Output as a Secret or a plain value, for the state and for receivers without output
    support."""

    def unwrap(special: Any) -> Any:
        if isinstance(special, Output):
            inner = without_outputs(special.value)
            return Secret(plain(inner)) if special.secret else inner
        return Secret(plain(special.value)) if isinstance(special, Secret) else special

    return rewritten(value, unwrap)


def specials(value: Any) -> Iterator[Any]:
    """Yield every Secret, Output, Signed and UNKNOWN in a value, at any depth."""
    if isinstance(value, Secret | Output):
        yield value
        yield from specials(value.value)
    elif isinstance(value, Signed | Unknown):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from specials(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from specials(one)


def has_unknown(value: Any) -> bool:
    return any(isinstance(one, Unknown) for one in specials(value))


def has_secret(value: Any) -> bool:
    return any(isinstance(one, Secret) or (isinstance(one, Output) and one.secret) for one in specials(value))


def secret_keys(properties: Mapping[str, Any]) -> set[str]:
    return {key for key, value in properties.items() if has_secret(value)}


def with_secrets(properties: Mapping[str, Any], keys: Iterable[str]) -> Props:
    """Return the properties with these keys wrapped as secrets."""
    hidden = set(keys)
    return {
        key: Secret(plain(value)) if key in hidden and not isinstance(value, Secret) else value
        for key, value in properties.items()
    }
