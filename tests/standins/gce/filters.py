"""Compute Engine's `filter` parameter of lists.

It follows the API reference (the parameter `filter`): comparisons of a field with `=`, `!=`, `<`, `<=`, `>`, `>=` and
`:` (has), joined by AND, OR, NOT and parentheses, where juxtaposition is AND; and the older `field eq regex`, `field ne
regex`, where a regular expression (RE2) must match the whole value. `labels.x:*` tests whether the label exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>\(|\)|!=|<=|>=|=|<|>|:)|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s()=!<>:"]+))"""
)
_Test = Callable[[Any], bool]
_COMPARE: dict[str, Callable[[str, str], bool]] = {
    "=": lambda value, said: value == said,
    "!=": lambda value, said: value != said,
    "<": lambda value, said: _number(value) < _number(said),
    "<=": lambda value, said: _number(value) <= _number(said),
    ">": lambda value, said: _number(value) > _number(said),
    ">=": lambda value, said: _number(value) >= _number(said),
    ":": lambda value, said: (
        fnmatchcase(value.lower(), said.lower()) or (said != "*" and said.lower() in value.lower())
    ),
    "eq": lambda value, said: re.fullmatch(said, value) is not None,
    "ne": lambda value, said: re.fullmatch(said, value) is None,
}


class FilterError(ValueError):
    """Invalid filter expression."""


def compiled(text: str) -> _Test:
    """Compile a filter to a predicate of resources. Raises FilterError."""
    if not text.strip():
        return lambda _resource: True
    parser = _Parser(_tokens(text))
    test = parser.any_of()
    parser.finish()
    return test


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split into (kind, text), where kind is sign, quoted or word."""
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise FilterError(f"{text[at:]!r} is not understood")
        kind = str(match.lastgroup)
        value = match[kind]
        found.append((kind, re.sub(r"\\(.)", r"\1", value) if kind == "quoted" else value))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at = tokens, 0

    def any_of(self) -> _Test:
        tests = [self._all_of()]
        while self._takes("word", "OR"):
            tests.append(self._all_of())
        return lambda resource: any(test(resource) for test in tests)

    def finish(self) -> None:
        if self._at < len(self._tokens):
            raise FilterError(f"{self._tokens[self._at][1]!r} is one too many")

    def _all_of(self) -> _Test:
        tests = [self._one()]
        while self._at < len(self._tokens) and self._peek() not in (("sign", ")"), ("word", "OR")):
            self._takes("word", "AND")
            tests.append(self._one())
        return lambda resource: all(test(resource) for test in tests)

    def _one(self) -> _Test:
        if self._takes("word", "NOT"):
            inner = self._one()
            return lambda resource: not inner(resource)
        if self._takes("sign", "("):
            grouped = self.any_of()
            if not self._takes("sign", ")"):
                raise FilterError("a parenthesis is not closed")
            return grouped
        field = self._next("word", "quoted")
        operator = self._next("sign", "word")
        if operator not in _COMPARE:
            raise FilterError(f"{operator!r} is no comparison")
        said = self._next("word", "quoted")
        return _comparison(field, operator, said)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _takes(self, kind: str, text: str) -> bool:
        if self._peek() != (kind, text):
            return False
        self._at += 1
        return True

    def _next(self, *kinds: str) -> str:
        kind, text = self._peek()
        if kind not in kinds:
            raise FilterError(f"{text!r} is not what is expected" if text else "it ends too early")
        self._at += 1
        return text


def _comparison(field: str, operator: str, said: str) -> _Test:
    compare = _COMPARE[operator]

    def test(resource: Any) -> bool:
        values = _values(resource, field.split("."))
        if not values:
            return operator in ("!=", "ne")
        return any(compare(value, said) for value in values)

    return test


def _values(value: Any, path: list[str]) -> list[str]:
    """Return the values of a field as text, one for each element of a repeated field."""
    if isinstance(value, list):
        return [found for one in value for found in _values(one, path)]
    if not path:
        return [str(value).lower() if isinstance(value, bool) else str(value)]
    if not isinstance(value, dict) or path[0] not in value:
        return []
    return _values(value[path[0]], path[1:])


def _number(text: str) -> tuple[int, float | str]:
    """Return a sort key that orders numbers before texts."""
    try:
        return (0, float(text))
    except ValueError:
        return (1, text)
