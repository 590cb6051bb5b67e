"""What an error of a provider means: errors.csv says it, as data, for every cloud.

Columns: `cloud` (`*`: any); `code` (one of several, separated by blanks), `status` (a number, or `5xx`) and `pattern`
(a regular expression, searched for in the message whatever its case) are what must be met, where they are not empty;
`class` and `scope` as in ProvisionError; `advice`: what the user can do; `source`: who says so. The first row that fits
decides, so what is special stands before what is general. A group named `hints` in a pattern names zones with capacity.

Codes that begin with `Client.` or `Server.` are reasons for which EC2 ended a machine; those that look like classes
are botocore's exceptions. Codes rank before the status: EC2 answers 500 where it has no capacity.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast, get_args

from .base import ErrorClass, ProvisionError, Scope

_TABLE = Path(__file__).with_name("errors.csv")
COLUMNS = ("cloud", "code", "status", "pattern", "class", "scope", "advice", "source")


class Rule(NamedTuple):
    """A row of errors.csv."""

    cloud: str
    codes: frozenset[str]
    """Empty: any."""
    status: str
    pattern: re.Pattern[str] | None
    error_class: ErrorClass
    scope: Scope
    advice: str
    source: str

    def match(self, cloud: str, code: str, status: int | None, message: str) -> re.Match[str] | None:
        """Whether the row speaks of this error, and where its pattern was found in the message; None: it does not."""
        if self.cloud not in (cloud, "*") or not self._fits(status) or (self.codes and code not in self.codes):
            return None
        return (self.pattern or _ANYTHING).search(message)

    def _fits(self, status: int | None) -> bool:
        if not self.status:
            return True
        if self.status.endswith("xx"):
            return status is not None and status // 100 == int(self.status[0])
        return status == int(self.status)


def classify(
    cloud: str,
    *,
    code: str,
    message: str,
    status: int | None = None,
    doing: str = "",
    hints: Sequence[str] = (),
    retry_after: float | None = None,
) -> ProvisionError:
    """The error to raise for a provider's answer: its own code and words, and what can be done about it.

    `doing`: what was tried, e.g. `start worker-0.1 in us-east-1a`. `hints`: zones that the answer names outside its
    message. An unknown code is `transient` with a status of 5xx, `invalid` otherwise.
    """
    for rule in rules():
        found = rule.match(cloud, code, status, message)
        if found is not None:
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
    raise AssertionError("the last row of errors.csv fits everything")


@functools.cache
def rules() -> tuple[Rule, ...]:
    """errors.csv, in its order. Raises ValueError for a row that is wrong: a fault of this package."""
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
    """`start worker-0.1 in us-east-1a: VcpuLimitExceeded: You have requested …; ask for more at …`."""
    said = message.strip().rstrip(".") or ("" if status is None else f"HTTP status {status}")
    told = ": ".join(part for part in (doing, "" if said.startswith(code) else code, said) if part)
    return f"{told}; {advice}" if advice else told
