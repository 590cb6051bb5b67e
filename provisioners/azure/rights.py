"""Compare the caller's permissions with those that cloudgpu needs.

Azure lists the permissions of the caller at a scope, one entry for each role assignment (REST reference of
Microsoft.Authorization, "Permissions"). Conditions of assignments are not evaluated. A caller without
`Microsoft.Authorization/permissions/read` gets 403: then nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..base import ProvisionError
from ..checks.results import CheckResult, Subject, from_error
from ..checks.rights import compare, needs
from .clients import Clients

PERMISSIONS = Path(__file__).with_name("permissions.csv")
PAGE = "docs/reference/azure-permissions.md"
_VERSION = "2022-04-01"
_WHO = "these credentials"
_MOST_PAGES = 100


def check_subscription(clients: Clients, *, assigns: bool) -> Iterator[CheckResult]:
    """Yield which permissions the caller lacks in the subscription. `assigns`: launches assign roles to machines."""
    sets = {"launch", "catalog", *({"assign"} if assigns else ())}
    scope = f"subscriptions/{clients.subscription}"
    return _check(clients, scope, sets, "actions", "rights")


def check_container(clients: Clients, scope: str) -> Iterator[CheckResult]:
    """Yield which permissions the caller lacks on the blobs of a container."""
    return _check(clients, scope, {"job_dir"}, "dataActions", "job_dir")


def _check(clients: Clients, scope: str, sets: set[str], kind: str, subject: Subject) -> Iterator[CheckResult]:
    wanted = [one for one in needs(PERMISSIONS) if one.set in sets]
    try:
        held = _held(clients, scope)
    except ProvisionError as error:
        yield from_error(subject, error, needed=False)
        return
    missing = [one for one in wanted if not any(_allows(entry, one.permission, kind) for entry in held)]
    yield from compare(wanted, missing, page=PAGE, who=_WHO, subject=subject)


def _held(clients: Clients, scope: str) -> Sequence[Mapping[str, Any]]:
    """Return the caller's permissions at a scope, one entry for each role. Raises ProvisionError."""
    url = f"{scope.lstrip('/')}/providers/Microsoft.Authorization/permissions?api-version={_VERSION}"
    found: list[Mapping[str, Any]] = []
    for _ in range(_MOST_PAGES):
        page = clients.get(url, "ask for your permissions")
        listed = page.get("value")
        found += [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        url = str(page.get("nextLink") or "")
        if not url:
            return found
    raise ProvisionError("transient", f"ask for your permissions: more than {_MOST_PAGES} pages", scope="cloud")


def _allows(entry: Mapping[str, Any], permission: str, kind: str) -> bool:
    excluded = f"not{kind[0].upper()}{kind[1:]}"
    return _fits(permission, entry.get(kind)) and not _fits(permission, entry.get(excluded))


def _fits(permission: str, patterns: object) -> bool:
    """Return whether a pattern matches, with `*` for anything; spelling is case-insensitive."""
    listed = patterns if isinstance(patterns, list) else []
    return any(fnmatchcase(permission.casefold(), str(one).casefold()) for one in listed)
