"""Resource group of a launch, which contains all its resources and is deleted with them.

Its tags contain the owner, so launches are found by listing groups; the nodes that were started once, since Azure keeps
no record of deleted machines; and the containers and secrets that its identity may access, because role assignments on
those are the only resources outside the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

from ...base import LaunchRequest, ProvisionError
from ...shared import tags
from ..clients import Clients, answer_of, as_dicts, ignore_not_found
from ..names import ACCESS, IDENTITY, STARTED, group_id, group_name, token_of
from ..operations import delete, start_operation, wait_for

_LONGEST_TAG = 256
"""Maximum length of a tag's value. Source: Azure's documentation, "Use tags to organize your Azure resources", which
allows 50 tags."""
_FAST = "Microsoft.Compute/virtualMachines,Microsoft.Compute/virtualMachineScaleSets"
"""Resource types that Azure deletes without a shutdown of the system when it deletes their group."""


class Group(NamedTuple):
    """Resource group of a launch."""

    name: str
    region: str
    state: str
    """Its `provisioningState`, e.g. `Deleting`."""
    tags: Mapping[str, str]

    @property
    def token(self) -> str:
        return self.tags.get(tags.TOKEN) or token_of(self.name) or ""

    @property
    def is_ending(self) -> bool:
        return self.state == "Deleting"

    @property
    def started(self) -> frozenset[str]:
        """Nodes that were started once, including those that are gone."""
        values = [value for key, value in self.tags.items() if key.startswith(STARTED)]
        return frozenset(node for value in values for node in value.split())

    @property
    def access(self) -> list[str]:
        """Containers and secrets that its identity may access, as Container.to_tag() and VaultSecret.to_tag()."""
        return [value for key, value in self.tags.items() if key.startswith(ACCESS)]

    @property
    def shared_identity(self) -> str:
        """Resource id of the machines' identity if launches share it (teardown keeps it); "": a dedicated one."""
        return self.tags.get(IDENTITY, "")


def find_group(clients: Clients, token: str) -> Group | None:
    """Return a launch's group; None: it does not exist. Raises ProvisionError."""
    name = group_name(token)

    def ask() -> Group | None:
        with ignore_not_found():
            return _group(clients.resources.resource_groups.get(name, cls=answer_of))
        return None

    return clients.ask(f"look for the resource group {name}", ask)


def groups_of(clients: Clients, owner: str | None = None) -> list[Group]:
    """Return the groups of all launches of an owner, or with None of all owners: one call. Raises ProvisionError."""
    where = f"tagName eq '{tags.OWNER}'" + ("" if owner is None else f" and tagValue eq '{owner}'")
    doing = "look for resource groups"
    found = clients.ask(doing, lambda: as_dicts(clients.resources.resource_groups.list(filter=where)))
    return [group for group in map(_group, found) if token_of(group.name)]


def make_group(clients: Clients, request: LaunchRequest, access: Collection[str], shared_identity: str = "") -> Group:
    """Create the group, or return the existing one, of which only the expiry tag may change. Raises ProvisionError.

    `access`: containers for its tags, see Container.to_tag()."""
    found = find_group(clients, request.token)
    if found is not None and not found.is_ending:
        _extend(clients, request, found)
        return found
    name = group_name(request.token)
    access_tags = {f"{ACCESS}{at}": value for at, value in enumerate(access)}
    access_tags |= {IDENTITY: shared_identity} if shared_identity else {}
    body = cast("Any", {"location": request.region, "tags": tags.launch_tags(request) | access_tags})
    # The request is retried while a group of the same name is being deleted.
    made = clients.ask(
        f"make the resource group {name} in {request.region}",
        lambda: clients.resources.resource_groups.create_or_update(name, body, cls=answer_of),
    )
    return _group(cast("Any", made))


def _extend(clients: Clients, request: LaunchRequest, group: Group) -> None:
    """Extend a group's expiry if the request's machines expire later than the existing ones."""
    known = group.tags.get(tags.EXPIRES, "")
    if request.expires is not None and known.isdecimal() and int(known) < int(request.expires):
        _change_tags(clients, request.token, "Merge", {tags.EXPIRES: str(int(request.expires))})


def mark_started(clients: Clients, token: str, nodes: Collection[str]) -> None:
    """Tag nodes as started. Idempotent."""
    if nodes:
        _change_tags(clients, token, "Merge", started_tags(nodes))


def unmark_started(clients: Clients, token: str, nodes: Collection[str], group: Group) -> None:
    """Remove the started tags of nodes that Azure refused, or that other nodes have replaced."""
    changed = {
        key: " ".join(left)
        for key, value in group.tags.items()
        if key.startswith(STARTED) and (left := [one for one in value.split() if one not in nodes]) != value.split()
    }
    kept = {key: value for key, value in changed.items() if value}
    dropped = {key: group.tags[key] for key, value in changed.items() if not value}
    for operation, values in (("Merge", kept), ("Delete", dropped)):
        if values:
            _change_tags(clients, token, operation, values)


def started_tags(nodes: Iterable[str]) -> dict[str, str]:
    """Return tags that list the nodes, as many per tag as its value can hold.

    A tag is named by its first node, so concurrent writers set different tags.
    """
    found: dict[str, str] = {}
    line: list[str] = []
    for node in [*nodes, ""]:
        if line and (not node or len(" ".join([*line, node])) > _LONGEST_TAG):
            found[f"{STARTED}{line[0]}"] = " ".join(line)
            line = []
        line.append(node)
    return found


def remove_group(clients: Clients, token: str) -> bool:
    """Start deleting the group with all its contents. Return False if it does not exist. Raises ProvisionError."""
    name = group_name(token)
    begin = partial(clients.resources.resource_groups.begin_delete, name, force_deletion_types=_FAST)
    try:
        return delete(clients, f"delete the resource group {name}", begin)
    except ProvisionError as error:
        if error.code != "ResourceGroupBeingDeleted":
            raise
    return True


def _change_tags(clients: Clients, token: str, operation: str, values: Mapping[str, str]) -> None:
    name = group_name(token)
    body = cast("Any", {"operation": operation, "properties": {"tags": dict(values)}})
    begin = partial(
        clients.resources.tags.begin_update_at_scope, group_id(clients.subscription, name).lstrip("/"), body
    )
    doing = f"change the tags of {name}"
    if clients.ask(doing, lambda: start_operation(begin)).url:  # accepted, but perhaps not finished
        wait_for(clients, doing, lambda: _has_changed(find_group(clients, token), operation, values))


def _has_changed(group: Group | None, operation: str, values: Mapping[str, str]) -> bool:
    """Return True if the tags have the intended values, or the group no longer exists."""
    if group is None:
        return True
    known = group.tags.items()
    return not values.items() & known if operation == "Delete" else values.items() <= known


def _group(found: Any) -> Group:  # JSON
    state = str((found.get("properties") or {}).get("provisioningState") or "")
    return Group(str(found["name"]), str(found.get("location", "")), state, dict(found.get("tags") or {}))
