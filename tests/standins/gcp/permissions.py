"""Google's IAM: the permissions that each method requires (permissions.csv), and the accounts that have them.

A row says: this method of this service requires this permission on the resource that the parameter `on` names (default:
`resource`), if a parameter has a value (`when`: `name=glob`). A method without permissions has a row with an empty one.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..faults import Call


@dataclass(frozen=True)
class Need:
    """One row of permissions.csv."""

    service: str
    method: str
    permission: str
    on: str
    when: str
    source: str


@dataclass(frozen=True)
class Missing:
    """A permission that the caller lacks."""

    permission: str
    resource: str


@functools.cache
def table() -> Mapping[tuple[str, str], tuple[Need, ...]]:
    """Return the rows by service and method."""
    found: dict[tuple[str, str], list[Need]] = {}
    with Path(__file__).with_name("permissions.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            need = Need(**row)
            found.setdefault((need.service, need.method), []).append(need)
    return {key: tuple(rows) for key, rows in found.items()}


class Policy:
    """Permissions by member: its bindings, each {"permissions": […], "where": glob of the resource's name}."""

    def __init__(self, bindings: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        self._bindings = {member: list(given) for member, given in bindings.items()}
        self.used: set[tuple[str, str]] = set()
        """(member, permission) pairs that calls required."""

    def missing(self, call: Call) -> Missing | None:
        """Return the first permission that the caller lacks for a call. Raises LookupError for a method without a
        row."""
        rows = table().get((call.service, call.action))
        if rows is None:
            raise LookupError(f"permissions.csv has no row for {call.service} {call.action}")
        for need in rows:
            if not need.permission or not _holds(need.when, call):
                continue
            resource = call.params.get(need.on or "resource", "")
            self.used.add((call.caller, need.permission))
            if not self.has(call.caller, need.permission, resource):
                return Missing(need.permission, resource)
        return None

    def has(self, member: str, permission: str, resource: str) -> bool:
        return any(
            permission in binding["permissions"] and fnmatchcase(resource, binding.get("where") or "*")
            for binding in self._bindings.get(member, ())
        )


def _holds(when: str, call: Call) -> bool:
    name, _, glob = when.partition("=")
    return not when or fnmatchcase(call.params.get(name, ""), glob)
