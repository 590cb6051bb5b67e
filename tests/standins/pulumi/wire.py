"""Values of Pulumi's protocol as Python's own: secrets, unknown values, outputs, assets, references to resources.

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
    """What is known only once something has been created. There is one: UNKNOWN."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Secret:
    """A value that may be shown to nobody."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(…)"


@dataclass(frozen=True)
class Output:
    """A value with the resources that it comes from."""

    value: Any
    secret: bool = False
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signed:
    """An asset, an archive or a reference to a resource: signature and fields, as they are."""

    signature: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def from_struct(struct: Struct) -> Props:
    """All of it, with Secret, Output, Signed and UNKNOWN in their places."""
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
    """Raises TypeError for what the protocol has no word for."""
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
    (bool, lambda value: Value(bool_value=value)),  # before the numbers, of which it is one
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
    """With every Secret, Output, Signed and UNKNOWN in it changed so; what that gives is not looked into again."""
    if isinstance(value, Secret | Output | Signed | Unknown):
        return change(value)
    if isinstance(value, Mapping):
        return {key: rewritten(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rewritten(one, change) for one in value]
    return value


def plain(value: Any) -> Any:
    """Without Secret and Output; UNKNOWN and Signed stay."""

    def unwrap(special: Any) -> Any:
        return plain(special.value) if isinstance(special, Secret | Output) else special

    return rewritten(value, unwrap)


def without_outputs(value: Any) -> Any:
    """Output as Secret, or as the value itself: what is written to state, and sent to who does not take outputs."""

    def unwrap(special: Any) -> Any:
        if isinstance(special, Output):
            inner = without_outputs(special.value)
            return Secret(plain(inner)) if special.secret else inner
        return Secret(plain(special.value)) if isinstance(special, Secret) else special

    return rewritten(value, unwrap)


def specials(value: Any) -> Iterator[Any]:
    """Every Secret, Output, Signed and UNKNOWN in it, at any depth."""
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
    """These properties are secret."""
    hidden = set(keys)
    return {
        key: Secret(plain(value)) if key in hidden and not isinstance(value, Secret) else value
        for key, value in properties.items()
    }
