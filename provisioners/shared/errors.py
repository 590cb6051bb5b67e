"""Translate a provider's errors into classes, by the table errors.csv.

Columns: `cloud` (`*`: any); `code` (several are separated by blanks; case-insensitive), `status` (a number, `5xx`, or
`operation`: the request was accepted and failed later) and `pattern` (a case-insensitive regular expression, searched
for in the message) must match unless they are empty; `class` and `scope` as in ProvisionError; `advice`: what the user
can do; `source`: where it is documented. The first row that matches decides, so special rows come before general ones.
A group named `hints` in a pattern captures zones with capacity.

Codes that begin with `Client.` or `Server.` are reasons for which EC2 terminated a machine; codes that look like class
names are botocore's exceptions. Rows with codes come before rows with a status: EC2 answers 500 if it lacks capacity.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast, get_args

from ..base import ErrorClass, ProvisionError, Scope

_TABLE = Path(__file__).with_name("errors.csv")
COLUMNS = ("cloud", "code", "status", "pattern", "class", "scope", "advice", "source")
_OPERATION = "operation"


class Answer(NamedTuple):
    """Error response of a provider."""

    cloud: str
    code: str
    """The provider's error code, or the class name of an SDK's exception; "": none."""
    message: str
    status: int | None = None
    """HTTP status."""
    is_operation: bool = False
    """True if the request was accepted, and the operation it started failed later."""


class Rule(NamedTuple):
    """A row of errors.csv."""

    cloud: str
    codes: frozenset[str]
    """Error codes as documented; empty: any."""
    folded: frozenset[str]
    """`codes` in lower case for comparison: Azure's documentation spells some codes in two ways."""
    status: str
    pattern: re.Pattern[str] | None
    error_class: ErrorClass
    scope: Scope
    advice: str
    source: str

    def match(self, answer: Answer) -> re.Match[str] | None:
        """Return the match of the row's pattern in the message; None if the row does not apply to the answer."""
        if self.cloud not in (answer.cloud, "*") or (self.folded and answer.code.casefold() not in self.folded):
            return None
        return (self.pattern or _ANYTHING).search(answer.message) if self._has_status(answer) else None

    def _has_status(self, answer: Answer) -> bool:
        if not self.status:
            return True
        if self.status == _OPERATION:
            return answer.is_operation
        if self.status.endswith("xx"):
            return answer.status is not None and answer.status // 100 == int(self.status[0])
        return answer.status == int(self.status)


def classify(
    cloud: str,
    *,
    code: str,
    message: str,
    status: int | None = None,
    doing: str = "",
    hints: Sequence[str] = (),
    retry_after: float | None = None,
    is_operation: bool = False,
) -> ProvisionError:
    """Return the ProvisionError for a provider's error response, with its code, its message and advice to the user.

    `doing`: the operation, e.g. `start worker-0.1 in us-east-1a`. `hints`: zones with capacity that the response names
    outside its message. `is_operation`: the request was accepted and failed later. An unknown code becomes `capacity`
    for an operation or with status 409, `transient` with 5xx, `invalid` otherwise.
    """
    rule, found = matching_rule(Answer(cloud, code, message, status, is_operation))
    return ProvisionError(
        rule.error_class,
        _words(code, status, message, doing, rule.advice),
        scope=rule.scope,
        code=code,
        hints=(*hints, *_named(found)),
        retry_after=retry_after,
        status=status,
        advice=rule.advice,
    )


def matching_rule(answer: Answer) -> tuple[Rule, re.Match[str]]:
    """Return the first row that applies to an answer, with the match of its pattern in the message."""
    for rule in rules():
        found = rule.match(answer)
        if found is not None:
            return rule, found
    raise AssertionError("the last row of errors.csv applies to everything")


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the rows of errors.csv in order. Raises ValueError for an invalid row, which is a bug of this package."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"errors.csv has the columns {reader.fieldnames}")
        return tuple(_rule(row) for row in reader)


_ANYTHING = re.compile("")


def _rule(row: dict[str, str]) -> Rule:
    if row["class"] not in get_args(ErrorClass) or row["scope"] not in get_args(Scope):
        raise ValueError(f"errors.csv: unknown class or scope in {row}")
    return Rule(
        cloud=row["cloud"],
        codes=frozenset(row["code"].split()),
        folded=frozenset(row["code"].casefold().split()),
        status=row["status"],
        pattern=re.compile(row["pattern"], re.IGNORECASE) if row["pattern"] else None,
        error_class=cast("ErrorClass", row["class"]),
        scope=cast("Scope", row["scope"]),
        advice=row["advice"],
        source=row["source"],
    )


def _named(found: re.Match[str]) -> tuple[str, ...]:
    return tuple(re.split(r"[,\s]+", found["hints"])) if "hints" in found.re.groupindex else ()


def _words(code: str, status: int | None, message: str, doing: str, advice: str) -> str:
    """Return the message, e.g. `start worker-0.1 in us-east-1a: VcpuLimitExceeded: You have requested …; ask for …`."""
    said = message.strip().rstrip(".") or ("" if status is None else f"HTTP status {status}")
    text = ": ".join(part for part in (doing, "" if said.startswith(code) else code, said) if part)
    return f"{text}; {advice}" if advice else text
