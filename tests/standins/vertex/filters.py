"""The filter of ListCustomJobs: `labels.key=value AND (state!="JOB_STATE_FAILED" OR NOT display_name:"x*")`.

It follows the API reference of projects.locations.customJobs.list, and google.aip.dev/160 for precedence: OR binds
tighter than AND, and juxtaposed terms are an AND.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from ..gcp.service import RefusedError

Test = Callable[[Any], bool]

_TOKEN = re.compile(r'\s*(?:([()])|(!=|<=|>=|=|<|>|:)|"((?:[^"\\]|\\.)*)"|([^\s()=!<>:"]+))')
_KEY = re.compile(r"labels\.([a-z][a-z0-9_-]*)")


def read_filter(text: str) -> Test:
    """Compile a filter to a predicate of CustomJob (protobuf). Raises RefusedError."""
    if not text.strip():
        return lambda _job: True
    reader = _Reader(text)
    test = reader.sequence()
    if reader.tokens:
        raise _wrong(text)
    return test


def _wrong(text: str) -> RefusedError:
    return RefusedError("INVALID_ARGUMENT", 400, f"Invalid filter: {text}")


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.tokens: list[tuple[str, str]] = []
        """Kind (`word`, `text`, `sign`) and value."""
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise _wrong(text)
            at = found.end()
            paren, sign, quoted, word = found.groups()
            if quoted is not None:
                self.tokens.append(("text", re.sub(r"\\(.)", r"\1", quoted)))
            else:
                self.tokens.append(("word", word) if word is not None else ("sign", paren or sign))

    def sequence(self) -> Test:
        """Parse terms joined by AND or juxtaposed."""
        tests = [self._factor()]
        while self.tokens and self.tokens[0] != ("sign", ")"):
            self._skip("AND")
            tests.append(self._factor())
        return lambda job: all(test(job) for test in tests)

    def _factor(self) -> Test:
        tests = [self._term()]
        while self._skip("OR"):
            tests.append(self._term())
        return lambda job: any(test(job) for test in tests)

    def _term(self) -> Test:
        if self._skip("NOT"):
            test = self._term()
            return lambda job: not test(job)
        if self.tokens and self.tokens[0] == ("sign", "("):
            self.tokens.pop(0)
            test = self.sequence()
            self._take("sign", ")")
            return test
        return self._comparison()

    def _comparison(self) -> Test:
        name, sign = self._take("word"), self._take("sign")
        if not self.tokens or self.tokens[0][0] == "sign":
            raise _wrong(self._text)
        kind, value = self.tokens.pop(0)
        test = _compare(name, sign, value, exists=(kind, value) == ("word", "*"))
        if test is None:
            raise _wrong(self._text)
        return test

    def _skip(self, word: str) -> bool:
        if self.tokens and self.tokens[0] == ("word", word):
            self.tokens.pop(0)
            return True
        return False

    def _take(self, kind: str, value: str | None = None) -> str:
        if not self.tokens or self.tokens[0][0] != kind or value not in (None, self.tokens[0][1]):
            raise _wrong(self._text)
        return self.tokens.pop(0)[1]


def _compare(name: str, sign: str, value: str, *, exists: bool) -> Test | None:
    """Return a predicate, or None for an invalid comparison."""
    label = _KEY.fullmatch(name)
    if label is not None and sign == ":" and exists:
        return lambda job: label[1] in job.labels
    if label is not None and sign in ("=", ":"):
        return lambda job: label[1] in job.labels and job.labels[label[1]] == value
    if name == "display_name" and sign in ("=", "!=", ":"):
        return lambda job: (
            fnmatchcase(job.display_name, value) if sign == ":" else _equal(job.display_name, sign, value)
        )
    if name == "state" and sign in ("=", "!="):
        return lambda job: _equal(_state(job), sign, value)
    if name == "create_time" and sign != ":":
        return _compare_time(sign, value)
    return None


def _compare_time(sign: str, value: str) -> Test | None:
    try:
        wanted = datetime.fromisoformat(value)
    except ValueError:
        return None
    if wanted.tzinfo is None:
        return None
    compare: dict[str, Callable[[datetime], bool]] = {
        "=": lambda at: at == wanted,
        "!=": lambda at: at != wanted,
        "<": lambda at: at < wanted,
        "<=": lambda at: at <= wanted,
        ">": lambda at: at > wanted,
        ">=": lambda at: at >= wanted,
    }
    return lambda job: compare[sign](job.create_time.ToDatetime(tzinfo=wanted.tzinfo))


def _equal(found: str, sign: str, value: str) -> bool:
    return (found == value) is (sign == "=")


def _state(job: Any) -> str:
    return str(job.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[job.state].name)
