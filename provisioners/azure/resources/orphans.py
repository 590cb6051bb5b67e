"""Role assignments of launches whose resource group, with the tags that name them, was deleted by hand.

A role assignment has no tags. Its description contains the launch's tags as JSON, which shows that cloudgpu created it,
and for which launch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...base import LaunchRequest, ProvisionError
from ...shared import tags
from ..clients import Clients, Json, ignore_not_found
from ..names import group_name, token_of
from .resource_groups import find_group

log = logging.getLogger("cloudgpu.provisioners.azure")

_VERSION = "2022-04-01"


class Orphan(NamedTuple):
    """Role assignment of a launch without a resource group."""

    scope: str
    name: str
    tags: Mapping[str, str]


def description(request: LaunchRequest) -> str:
    """Return the description for a launch's role assignments."""
    return json.dumps(tags.launch_tags(request), separators=(",", ":"))


def find_orphans(clients: Clients, token: str = "") -> list[Orphan]:
    """Return the role assignments of launches without a group: of all launches, or of `token`.

    [] if reading role assignments is not permitted: then cloudgpu cannot have created any. Raises ProvisionError.
    """
    try:
        ours = [one for one in _ours(clients) if token in {"", one.tags[tags.TOKEN]}]
    except ProvisionError as error:
        if error.code != "AuthorizationFailed":
            raise
        log.info("role assignments are not looked at: %s", error)
        return []
    # A group is created before its role assignments: if it is missing after they were listed, it was deleted.
    gone = {token for token in {one.tags[tags.TOKEN] for one in ours} if find_group(clients, token) is None}
    return [one for one in ours if one.tags[tags.TOKEN] in gone]


def remove_orphans(clients: Clients, token: str) -> None:
    """Delete a launch's orphaned role assignments. Idempotent. Raises ProvisionError."""
    for one in find_orphans(clients, token):
        start = partial(clients.authorization.role_assignments.delete, one.scope, one.name)
        clients.ask(f"remove the role assignment {one.name} on {one.scope}", partial(_unless_gone, start))


def _ours(clients: Clients) -> Iterator[Orphan]:
    """Yield all role assignments of the subscription that launches created."""
    url = f"subscriptions/{clients.subscription}/providers/Microsoft.Authorization/roleAssignments"
    url += f"?api-version={_VERSION}"
    while url:
        page = clients.get(url, "look for role assignments")
        for one in page.get("value") or ():
            launch_tags = _parse_description((one.get("properties") or {}).get("description"))
            if launch_tags is not None:
                yield Orphan(str(one["properties"]["scope"]), str(one["name"]), launch_tags)
        url = str(page.get("nextLink") or "")


def _parse_description(text: object) -> dict[str, str] | None:
    """Parse a description; None: it was changed, or cloudgpu did not write it."""
    try:
        found: Json = json.loads(str(text))
        parsed = {str(name): str(value) for name, value in found.items()}
    except (ValueError, AttributeError):
        return None
    return parsed if token_of(group_name(parsed.get(tags.TOKEN, ""))) else None


def _unless_gone(start: partial[Any]) -> None:
    with ignore_not_found():
        start()
