"""Shorthand values of the job file: `8`, `2..8`, `24GB..`, `12h`, `50 USD`, `5 USD/h`.

Each shorthand is a plain Python value with a Pydantic annotation that parses the user's text, checks bounds, serializes
the value to the shortest equivalent text, and has its JSON Schema. All parsers raise ValueError with a sentence that
says what is allowed. If the sentence begins with "expected", the loader appends the actual value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from .diagnostics import MistakesError, mistake
from .unit_text import AMOUNT, DURATION_SECONDS, MAX_DURATION_S, RATE, SIZE, format_duration, format_size

# Patterns are kept as text: most runs use none of them, and `re` compiles and caches each on first use.
_DURATION = r"(?a)(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m)?(?:(\d{1,9})s)?"
_SIZE_GB = {"MB": Decimal("0.001"), "GB": Decimal(1), "TB": Decimal(1000)}
_ENDLESS = frozenset(("never", "none", "unlimited", "infinite", "inf", "no"))
_COUNT = r"(?a)\d{1,5}|\d{1,3}/\d{1,3}|0\.\d{1,6}"

MAX_COUNT = 1_024


def parse_duration(value: object, *, least_s: int = 1, endless: str = "") -> int:
    """Return the seconds of `90s`, `30m`, `12h`, `1d` or a sum such as `1h30m`; a number without unit is refused.

    least_s  minimum duration in seconds
    endless  hint for a word such as `never`
    """
    text = str(value).strip()
    match = re.fullmatch(_DURATION, text)
    if not text or match is None:
        from .unit_hints import duration_hint

        hint = endless if text.lower() in _ENDLESS else duration_hint(text)
        raise mistake("bad-duration", "expected a duration such as 90s, 30m, 12h, 1d or 1h30m", hint)
    seconds = sum(
        int(part) * unit for part, unit in zip(match.groups(), DURATION_SECONDS.values(), strict=True) if part
    )
    if not least_s <= seconds <= MAX_DURATION_S:
        raise ValueError(f"expected a duration from {format_duration(least_s)} to {format_duration(MAX_DURATION_S)}")
    return seconds


def parse_size_gb(value: object) -> float:
    """Return the gigabytes (10^9 bytes) of `500MB`, `100GB` or `2TB`; a number without a unit is refused."""
    text = str(value).strip()
    match = re.fullmatch(SIZE, text)
    if match is None:
        from .unit_hints import size_hint

        raise mistake("bad-size", "expected a size such as 500MB, 100GB or 2TB", size_hint(text))
    return float(Decimal(match[1]) * _SIZE_GB[match[2].upper()])


def _parse_disk_gb(value: object) -> float:
    try:
        size = parse_size_gb(value)
    except MistakesError as error:
        meant = error.problems[0].hint.removeprefix("write ")
        if not meant or 1 <= parse_size_gb(meant) <= 65_536:
            raise
        raise mistake("bad-size", "expected a disk from 1GB to 65TB, with its unit") from error
    if not 1 <= size <= 65_536:
        raise ValueError("expected a disk from 1GB to 65TB")
    return size


def _parse_amount(value: object, pattern: str, example: str) -> Decimal:
    text = str(value).strip()
    match = re.fullmatch(pattern, text)
    if match is None:
        from .unit_hints import amount_hint

        message = f"expected an amount in US dollars such as {example}"
        raise mistake("bad-amount", message, amount_hint(text, example))
    amount = Decimal(match[1])
    if amount <= 0:
        raise ValueError("expected an amount greater than 0")
    return amount


def parse_whole(value: object, least: int, most: int) -> int:
    """Return a whole number within bounds; only ASCII digits are accepted."""
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and least <= int(text) <= most):
        raise ValueError(f"expected a whole number from {least} to {most}")
    return int(text)


def parse_money(value: object) -> Decimal:
    """Return the US dollars of `50 USD`."""
    return _parse_amount(value, AMOUNT, "50 USD")


def parse_rate(value: object) -> Decimal:
    """Return the US dollars per hour of `5 USD/h`."""
    return _parse_amount(value, RATE, "5 USD/h")


def parse_count(value: object) -> Fraction:
    """Return a number of GPUs: `8`, or a fraction of a GPU such as `1/8` or `0.125`.

    The result is a Fraction, because 1/6 has no exact float.
    """
    if isinstance(value, Fraction):
        return value
    text = str(value).strip()
    if not re.fullmatch(_COUNT, text):
        raise ValueError("expected a number of GPUs such as 8, or a part of one such as 1/8")
    try:
        count = Fraction(text)
    except ZeroDivisionError as error:
        raise ValueError("expected a number of GPUs; the part below the line is 0") from error
    if not 0 < count <= MAX_COUNT:
        raise ValueError(f"expected more than 0 and at most {MAX_COUNT} GPUs a machine")
    if count > 1 and count.denominator != 1:
        raise ValueError("expected a whole number of GPUs, or a part of one GPU such as 1/8")
    return count


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Range of sizes in GB, with inclusive bounds; None: no bound. Text: `24GB..`, `..80GB`, `24GB..80GB`, `40GB`."""

    least: float | None
    most: float | None

    @classmethod
    def parse(cls, value: object) -> SizeRange:
        if isinstance(value, SizeRange):
            return value
        low, dots, high = str(value).strip().partition("..")
        try:
            least = parse_size_gb(low) if low else None
            most = (parse_size_gb(high) if high else None) if dots else least
        except MistakesError as error:
            if not dots:
                raise
            from .unit_hints import range_hint

            raise mistake("bad-size", error.problems[0].message, range_hint(low, high)) from error
        if least is None and most is None:
            raise ValueError("expected a range of sizes such as 24GB.., ..80GB or 24GB..80GB")
        if least is not None and most is not None and least > most:
            raise ValueError("expected the smaller size first, as in 24GB..80GB")
        return cls(least, most)

    def __contains__(self, gigabytes: float) -> bool:
        return (self.least is None or gigabytes >= self.least) and (self.most is None or gigabytes <= self.most)

    def __str__(self) -> str:
        low, high = ("" if end is None else format_size(end) for end in (self.least, self.most))
        return low if low == high else f"{low}..{high}"


@dataclass(frozen=True, slots=True)
class CountRange:
    """Range of GPUs per machine, with inclusive bounds; None: no maximum. Text: `8`, `2..8`, `4..`, `1/8`."""

    least: Fraction
    most: Fraction | None

    @classmethod
    def parse(cls, value: object) -> CountRange:
        if isinstance(value, CountRange):
            return value
        low, dots, high = str(value).strip().partition("..")
        least = parse_count(low)
        most = (parse_count(high) if high else None) if dots else least
        if most is not None and least > most:
            raise ValueError("expected the smaller count first, as in 2..8")
        return cls(least, most)

    def __contains__(self, count: Fraction) -> bool:
        return count >= self.least and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most == self.least:
            return str(self.least)
        return f"{self.least}..{'' if self.most is None else self.most}"


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Range of numbers of identical machines, with inclusive bounds; planning and prices use the maximum.

    Text: `4`, `2..4`.
    """

    least: int
    most: int

    @classmethod
    def parse(cls, value: object, limit: int) -> NodeRange:
        if isinstance(value, NodeRange):
            return value
        low, dots, high = str(value).strip().partition("..")
        least = parse_whole(low, 1, limit)
        most = parse_whole(high, 1, limit) if dots else least
        if least > most:
            raise ValueError("expected the smaller number first, as in 2..4")
        return cls(least, most)

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}..{self.most}"

    def to_json(self) -> int | str:
        """Return a number if both bounds are equal, else text."""
        return self.most if self.least == self.most else str(self)


def _text_schema(pattern: str, *examples: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$", "examples": list(examples)}


def shorthand(parse: Callable[[Any], Any], write: Callable[[Any], Any], schema: dict[str, Any]) -> tuple[Any, ...]:
    """Return the annotations of a type: parser, serializer (`write`) and JSON Schema."""
    return (BeforeValidator(parse), PlainSerializer(write), WithJsonSchema(schema))


def whole(least: int, most: int) -> tuple[Any, ...]:
    """Return the annotations of an int within bounds."""
    return shorthand(partial(parse_whole, least=least, most=most), int, whole_schema(least, most))


def node_range(limit: int) -> tuple[Any, ...]:
    """Return the annotations of a NodeRange up to `limit` machines."""
    number = {"type": "integer", "minimum": 1, "maximum": limit}
    text = _text_schema(r"\d{1,9}(\.\.\d{1,9})?", "2..4")
    return shorthand(partial(NodeRange.parse, limit=limit), NodeRange.to_json, {"anyOf": [number, text]})


def whole_schema(least: int, most: int) -> dict[str, Any]:
    number = {"type": "integer", "minimum": least, "maximum": most}
    return {"anyOf": [number, {"type": "string", "pattern": r"^\d{1,9}$"}]}


DURATION_SCHEMA = _text_schema(r"(?=\d)(\d{1,6}d)?(\d{1,7}h)?(\d{1,8}m)?(\d{1,9}s)?", "90s", "12h", "1h30m")
_SIZE_TEXT = r"\d{1,9}(\.\d{1,3})? ?[MGTmgt][Bb]"
_COUNT_TEXT = r"(\d{1,5}|\d{1,3}/\d{1,3}|0\.\d{1,6})"

_NO_LIMIT = "delete the key: without it there is no limit"
Duration = Annotated[int, *shorthand(partial(parse_duration, endless=_NO_LIMIT), format_duration, DURATION_SCHEMA)]
DiskSize = Annotated[float, *shorthand(_parse_disk_gb, format_size, _text_schema(_SIZE_TEXT, "100GB", "2TB"))]
Money = Annotated[
    Decimal, *shorthand(parse_money, lambda v: f"{v} USD", _text_schema(r"\d{1,9}(\.\d{1,4})? ?USD", "50 USD"))
]
Rate = Annotated[
    Decimal, *shorthand(parse_rate, lambda v: f"{v} USD/h", _text_schema(r"\d{1,7}(\.\d{1,5})? ?USD/h", "5 USD/h"))
]
MemoryRange = Annotated[
    SizeRange,
    *shorthand(
        SizeRange.parse,
        str,
        _text_schema(rf"({_SIZE_TEXT}(\.\.({_SIZE_TEXT})?)?|\.\.{_SIZE_TEXT})", "24GB..", "40GB..80GB"),
    ),
]
GpuCount = Annotated[
    CountRange,
    *shorthand(
        CountRange.parse,
        str,
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_COUNT},
                _text_schema(rf"{_COUNT_TEXT}(\.\.{_COUNT_TEXT}?)?", "1", "2..8", "1/8"),
            ]
        },
    ),
]
