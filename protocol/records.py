"""Typed records, parsed and validated from JSON objects of the job dir. Standard library and obstore only.

Any program with write access to a job dir may write arbitrary bytes there. A record's size is therefore checked before
it is read into memory. Its fields are validated against their annotations: types, finite and bounded numbers, lengths
of texts, depth of nesting.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NoReturn, Self

from ..storage.errors import RecordError
from ..storage.objects import JobDir

MOST_BYTES = 1 << 20
"""Maximum size of a record in bytes, unless its class overrides it."""
MOST_CHARACTERS = 64 << 10
"""Maximum length of a text, unless its class overrides it."""
MOST_DEPTH = 32
"""Maximum levels of lists and objects in a value that may be any JSON."""
MOST_INTEGER = 1 << 53
"""Maximum magnitude of integers: up to 2**53, every JSON reader represents them exactly."""
MOST_NUMBER = 6e10
"""Maximum magnitude of other numbers, all of which are times in seconds: calendars end 200,000,000,000 s from now."""
_SHOWN = 40
"""Maximum characters of an invalid value in a message."""

Check = Callable[[Any], Any]
"""Function that returns the value in the form that a field holds, or raises _MisfitError."""


class _MisfitError(Exception):
    """A value does not have the type of its field."""

    def __init__(self, needed: str, path: str = "") -> None:
        super().__init__(needed)
        self.needed, self.path = needed, path

    def within(self, key: str | int) -> _MisfitError:
        """Return the error with the key of the object, or index of the list, that holds the value."""
        return _MisfitError(self.needed, f"{key}.{self.path}" if self.path else str(key))


class Record:
    """A JSON object of the job dir. Fields that this version does not know are dropped when it is read."""

    MOST_BYTES: ClassVar[int] = MOST_BYTES
    MOST_CHARACTERS: ClassVar[int] = MOST_CHARACTERS
    IS_LENIENT: ClassVar[bool] = False
    """If true, invalid fields get their defaults; every field of such a class has a default."""

    @classmethod
    def read(cls, job_dir: JobDir, key: str) -> Self | None:
        """Return the record under a key; None: it does not exist. Raises JobDirError, RecordError if it is invalid."""
        data = job_dir.find(key, cls.MOST_BYTES)
        try:
            return None if data is None else cls.from_bytes(data)
        except RecordError as error:
            raise RecordError(f"{job_dir.url}/{key}: {error}") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a record. Raises RecordError if it is invalid."""
        if len(data) > cls.MOST_BYTES:
            raise RecordError(f"not a {cls.__name__}: it has {len(data)} bytes, {cls.MOST_BYTES} at most are allowed")
        return cls.from_value(read_json(data, f"not a {cls.__name__}"))

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Validate a parsed JSON value and return its record. Raises RecordError if it is invalid."""
        try:
            return cls(**_fields(cls, value))
        except _MisfitError as error:
            where = f"{error.path}: " if error.path else ""
            raise RecordError(f"not a {cls.__name__}: {where}{error.needed}") from error

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Hook for subclasses: replace words that only a newer version knows by words of this one."""
        return value

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":")).encode()  # type: ignore[call-overload]


def read_json(data: bytes, what: str) -> Any:  # any JSON value
    """Parse JSON. Raises RecordError, whose message begins with `what`."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise RecordError(f"{what}: its values are nested too deeply") from None
    except ValueError as error:  # invalid JSON or UTF-8, or a number with thousands of digits
        raise RecordError(f"{what}: {error}") from error


def fits(kind: type[Record], name: str, value: object) -> bool:
    """Return whether a value is valid for a record's field."""
    check = _shape(kind).checks.get(name)
    if check is None:
        return False
    try:
        check(value)
    except _MisfitError:
        return False
    return True


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _fields(kind: type[Record], value: object) -> dict[str, Any]:
    """Return the known fields of an object after validation. Raises _MisfitError."""
    if not isinstance(value, dict):
        raise _wrong("an object", value)
    found, given, shape = {}, kind.adapt(value), _shape(kind)
    for name, check in shape.checks.items():
        if name not in given:
            continue
        try:
            found[name] = check(given[name])
        except _MisfitError as error:
            if not kind.IS_LENIENT:
                raise error.within(name) from None
    for name in shape.required:
        if name not in found:
            raise _MisfitError("it is missing", name)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """Fields of a record class."""

    checks: Mapping[str, Check]
    """Field -> check."""
    required: tuple[str, ...]
    """Fields without a default."""


_shapes: dict[type[Record], _Shape] = {}
"""Cache: annotations are evaluated once for each class."""


def _shape(kind: type[Record]) -> _Shape:
    found = _shapes.get(kind)
    if found is None:
        hints, missing = typing.get_type_hints(kind, include_extras=True), dataclasses.MISSING
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # every Record is a dataclass
        checks = {one.name: _check_of(hints[one.name], kind.MOST_CHARACTERS) for one in fields}
        required = [one.name for one in fields if one.default is missing and one.default_factory is missing]
        found = _shapes[kind] = _Shape(checks, tuple(required))
    return found


def _check_of(hint: object, most: int) -> Check:  # hint: an annotation
    """Return the check of an annotation; `most`: maximum characters of a text."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple
    if hint is str:
        return functools.partial(_text, most)
    return _compound_check(hint, origin, arguments, most)


def _compound_check(hint: object, origin: object, arguments: tuple[Any, ...], most: int) -> Check:
    """Return the check of an annotation that is composed of others."""
    if origin is Literal:
        return functools.partial(_word, arguments)
    if origin is typing.Annotated:  # the JSON of another record, or a narrower range
        return _annotated(arguments[1])
    if origin in (typing.Union, types.UnionType):
        some = [_check_of(one, most) for one in arguments if one is not types.NoneType]
        check = some[0] if len(some) == 1 else functools.partial(_either, some)
        return functools.partial(_or_null, check) if types.NoneType in arguments else check
    if origin is list:
        return functools.partial(_list, _check_of(arguments[0], most))
    if origin is dict and arguments[0] is str:
        return functools.partial(_object, _check_of(arguments[1], most), most)
    raise TypeError(f"a record cannot have a field of type {hint}")


def _annotated(more: object) -> Check:
    if isinstance(more, range):
        return functools.partial(_within, more)
    if isinstance(more, type) and issubclass(more, Record):
        return functools.partial(_fields, more)
    raise TypeError(f"a record cannot have a field that is annotated with {more}")


def _wrong(needed: str, value: object) -> _MisfitError:
    if isinstance(value, str):
        shown = repr(value[:_SHOWN])
    elif isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else "a list"
    else:
        shown = json.dumps(value)[:_SHOWN]
    return _MisfitError(f"{needed} is needed, and {shown} is there")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong("true or false", value)
    return value


def _whole(value: object) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) <= MOST_INTEGER:
        return int(value)  # some programs write 12 as 12.0
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong("a whole number", value)
    if abs(value) > MOST_INTEGER:
        raise _MisfitError(f"a whole number up to {MOST_INTEGER} is needed, and a larger one is there")
    return value


def _within(allowed: range, value: object) -> int:
    found = _whole(value)
    if found not in allowed:
        raise _wrong(f"a whole number from {allowed.start} to {allowed.stop - 1}", value)
    return found


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("a number", value)
    if not abs(value) <= MOST_NUMBER:  # also true for NaN
        raise _MisfitError(f"a number up to {MOST_NUMBER:.0f} is needed, and a larger one, or none, is there")
    return value


def _text(most: int, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong("a text", value)
    if len(value) > most:
        raise _MisfitError(f"a text of at most {most} characters is needed, and one of {len(value)} is there")
    return value


def _word(words: tuple[str, ...], value: object) -> str:
    if not isinstance(value, str) or value not in words:
        raise _wrong(" or ".join(words), value)
    return value


def _or_null(check: Check, value: object) -> object:
    return None if value is None else check(value)


def _either(checks: list[Check], value: object) -> object:
    needed = []
    for check in checks:
        try:
            return check(value)
        except _MisfitError as error:
            needed.append(error)
    # Raise the most specific error: that of the type that matched deepest into the value.
    raise max(needed, key=lambda error: len(error.path))


def _list(check: Check, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong("a list", value)
    found = []
    for index, one in enumerate(value):
        try:
            found.append(check(one))
        except _MisfitError as error:
            raise error.within(index) from None
    return found


def _object(check: Check, most: int, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("an object", value)
    found = {}
    for name, one in value.items():
        try:
            found[_text(most, name)] = check(one)
        except _MisfitError as error:
            raise error.within(name[:_SHOWN]) from None
    return found


def _any_json(value: object) -> object:
    """Return the value after checking that it is not nested too deeply and has only finite numbers."""
    level = [value]
    for _ in range(MOST_DEPTH):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, float) and not math.isfinite(one):
                raise _wrong("a finite number", one)
        if not inner:
            return value
        level = inner
    raise _MisfitError(f"at most {MOST_DEPTH} levels are needed, and more are there")


_SIMPLE: dict[Any, Check] = {
    bool: _flag,
    int: _whole,
    float: _number,
    Any: _any_json,
}
