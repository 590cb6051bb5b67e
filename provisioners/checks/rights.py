"""Needed permissions of a target, as a table, and the result of comparing them with those that the credentials have.

Each `<target>/permissions.csv` has the columns `set` (what needs it: `launch`, `job_dir`, `gc` …), `permission`, and
`without`: what happens without it; "": no job can run. The pages docs/reference/*-permissions.md list the same
permissions; tests/integration/test_check_*.py compare the two.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .results import CheckResult, Subject

_SHOWN = 8
"""Maximum number of permissions in a message; `values` has all."""


class Need(NamedTuple):
    """A needed permission."""

    set: str
    permission: str
    without: str
    """Consequence of its absence; "": no job can run."""
    resources: tuple[str, ...] = ()
    """Names of resources, with placeholders, for providers that decide by them; (): any."""


@cache
def needs(table: Path) -> tuple[Need, ...]:
    """Return the rows of a permissions.csv."""
    with table.open(encoding="utf-8", newline="") as file:
        return tuple(
            Need(row["set"], row["permission"], row["without"], tuple(row.get("resources", "").split()))
            for row in csv.DictReader(file)
        )


def compare(
    wanted: Sequence[Need], missing: Collection[Need], *, page: str, who: str, subject: Subject = "rights"
) -> Iterator[CheckResult]:
    """Yield the results for permissions of which some are missing. `page`: where they are listed; `who`: who needs
    them, for the message."""
    lost = [one for one in wanted if one in missing]
    fix = f"ask an administrator to allow them, see {page}"
    fatal = [one.permission for one in lost if not one.without]
    if fatal:
        message = f"{who} may not: {_listed(fatal)}"
        yield CheckResult(subject, "error", message, fix, {"missing": fatal})
    for effect in dict.fromkeys(one.without for one in lost if one.without):
        names = [one.permission for one in lost if one.without == effect]
        message = f"{effect}, without {_listed(names)}"
        yield CheckResult(subject, "warning", message, fix, {"missing": names})
    if not lost:
        count = len({one.permission for one in wanted})
        yield CheckResult(subject, "ok", f"{who} may do all that is needed ({count} permissions)", "", {"missing": []})


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
