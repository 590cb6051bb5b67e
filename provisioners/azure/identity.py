"""Who a launch's machines are: a managed identity that reaches this job's folder of its container, and little else.

Each launch has an identity of its own, in its group. It is let in to containers by role assignments with a condition on
the path of blobs, and may switch off the launch's machines; it can make nothing. `CLOUDGPU_AZURE_IDENTITY` names one
that somebody has made and let in beforehand: then none is made, and no role is given to anybody.

Sources: Azure's documentation, "Azure built-in roles", "Example Azure role assignment conditions for Blob Storage",
"Azure role assignment conditions: format"; the roles' ids are the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from ..base import LaunchRequest, ProvisionError
from .clients import Clients, Json, answer_of, gone_is_fine, plain
from .groups import Group
from .names import SHARED, assignment_name, group_id, group_name, part_of
from .request import with_tags

IDENTITY_SETTING = "CLOUDGPU_AZURE_IDENTITY"
READER, WRITER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1", "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Storage Blob Data Reader, Storage Blob Data Contributor."""
SWITCH_OFF = "40c5ff49-9181-41f8-ae61-143b0e78555e"
"""Desktop Virtualization Power On Off Contributor: the built-in role by which a machine can be deallocated, and neither
made nor changed. A machine that only powers itself off goes on billing."""
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_WRITES = ("write", "delete", "add/action", "move/action")
_NEW_S = 120.0
"""So long Azure may not know, elsewhere, an identity that it has just made."""


class Identity(NamedTuple):
    """Whose rights machines have."""

    id: str
    """Resource id."""
    client_id: str
    principal_id: str
    ours: bool
    """It was made for the launch."""


class Container(NamedTuple):
    """Of a storage account."""

    group: str
    account: str
    container: str

    def to_tag(self) -> str:
        return "/".join(self)

    @classmethod
    def from_tag(cls, value: str) -> Container | None:
        """None: somebody has changed the tag."""
        parts = value.split("/")
        return cls(*parts) if len(parts) == 3 and all(parts) else None

    def scope(self, subscription: str) -> str:
        account = f"{group_id(subscription, self.group)}/providers/Microsoft.Storage/storageAccounts/{self.account}"
        return f"{account}/blobServices/default/containers/{self.container}"


class Grant(NamedTuple):
    """What an identity may do in a container: one role assignment."""

    container: Container
    role: str
    prefixes: tuple[str, ...]
    """("",): all of it."""


# --- what is needed ---------------------------------------------------------------------------------------------------


def find_grants(clients: Clients, request: LaunchRequest) -> list[Grant]:
    """What the machines of a launch must be let in to; [] for an identity that was made beforehand.

    One for each container and role, for Azure has no two assignments of the same role to the same identity at the same
    place. Raises ProvisionError(invalid) for a storage account that is not in the subscription.
    """
    places = [(request.job_dir, WRITER), *((url, READER) for url in request.reads)]
    places += [(url, WRITER) for url in request.writes]
    split = [(*split_url(url), role) for url, role in places]
    if os.environ.get(IDENTITY_SETTING):
        return []
    groups = {account: _group_of(clients, account) for account in dict.fromkeys(account for _, account, _, _ in split)}
    wanted: dict[tuple[Container, str], list[str]] = {}
    for container, account, prefix, role in split:
        wanted.setdefault((Container(groups[account], account, container), role), []).append(prefix)
    return [Grant(container, role, _shortest(prefixes)) for (container, role), prefixes in wanted.items()]


def split_url(url: str) -> tuple[str, str, str]:
    """Container, account and prefix of `az://container@account/prefix`. Raises ProvisionError(invalid) for another."""
    scheme, _, rest = url.partition("://")
    place, _, prefix = rest.partition("/")
    container, _, account = place.partition("@")
    if scheme != "az" or not container or not account:
        message = f"a machine on azure cannot reach {url}: it must be az://CONTAINER@ACCOUNT/…"
        raise ProvisionError("invalid", message, scope="cloud")
    if any(character in prefix for character in "*?'\\"):  # a condition would take them for patterns and quotes
        raise ProvisionError("invalid", f"{url}: `*`, `?`, `'` and `\\` cannot be in it on azure", scope="cloud")
    return container, account, prefix.strip("/")


def condition(role: str, prefixes: Sequence[str]) -> str | None:
    """Limits a role to blobs whose path begins with one of these; None: it is not limited."""
    if "" in prefixes:
        return None
    path, prefix = f"@Resource[{_BLOBS}:path]", f"@Request[{_BLOBS}:prefix]"
    paths = " OR ".join(f"{path} StringEquals '{one}' OR {path} StringStartsWith '{one}/'" for one in prefixes)
    lists = " OR ".join(f"{prefix} StringStartsWith '{one}/'" for one in prefixes)
    others = "".join(f" AND !(ActionMatches{{'{_BLOBS}/{one}'}})" for one in (_WRITES if role == WRITER else ()))
    reading = f"ActionMatches{{'{_BLOBS}/read'}}"
    return (
        f"((!({reading} AND NOT SubOperationMatches{{'Blob.List'}}){others}) OR ({paths}))"
        f" AND ((!({reading} AND SubOperationMatches{{'Blob.List'}})) OR ({lists}))"
    )


def assignment(clients: Clients, principal: str, role: str, limit: str | None = None) -> Json:
    """The body of a role assignment."""
    definition = f"/subscriptions/{clients.subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    # That it is a service principal is said, for the directory may not know a new one yet.
    properties = {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    if limit is not None:
        properties |= {"condition": limit, "conditionVersion": "2.0"}
    return {"properties": properties}


# --- calls ------------------------------------------------------------------------------------------------------------


def make_identity(clients: Clients, request: LaunchRequest) -> Identity:
    """The launch's, or the one that was made beforehand. It may be repeated. Raises ProvisionError."""
    named = os.environ.get(IDENTITY_SETTING)
    identities = clients.identities.user_assigned_identities
    if named:
        group, name = part_of(named, "resourceGroups"), part_of(named, "userAssignedIdentities")
        if not group or not name or part_of(named, "subscriptions").lower() != clients.subscription.lower():
            message = (
                f"{IDENTITY_SETTING}: {named} is no identity of subscription {clients.subscription}; it must be "
                "/subscriptions/…/resourceGroups/…/providers/Microsoft.ManagedIdentity/userAssignedIdentities/…"
            )
            raise ProvisionError("invalid", message, scope="cloud", code="NoIdentity")
        doing = f"look up the identity {name}"
        return _identity(clients.ask(doing, lambda: identities.get(group, name, cls=answer_of)), ours=False)
    body, group = cast("Any", with_tags(request)), group_name(request.token)
    doing = f"make the identity of {group}"
    return _identity(
        clients.ask(doing, lambda: identities.create_or_update(group, SHARED, body, cls=answer_of)), ours=True
    )


def let_in(clients: Clients, request: LaunchRequest, identity: Identity, grants: Iterable[Grant]) -> None:
    """Give it its roles; nothing happens if it has them. Raises ProvisionError."""
    if not identity.ours:
        return
    here = group_id(clients.subscription, group_name(request.token))
    _assign(clients, request.token, here, SWITCH_OFF, assignment(clients, identity.principal_id, SWITCH_OFF))
    for grant in grants:
        limit = condition(grant.role, grant.prefixes)
        body = assignment(clients, identity.principal_id, grant.role, limit)
        _assign(clients, request.token, grant.container.scope(clients.subscription), grant.role, body)


def role_assignments_of(clients: Clients, group: Group) -> list[tuple[str, str]]:
    """Scope and name of each that a launch may have made, by its group's tags."""
    containers = [found for value in group.access if (found := Container.from_tag(value)) is not None]
    scopes = [(one.scope(clients.subscription), role) for one in containers for role in (READER, WRITER)]
    if containers:
        scopes.append((group_id(clients.subscription, group.name), SWITCH_OFF))
    return [(scope, assignment_name(group.token, scope, role)) for scope, role in scopes]


def shut_out(clients: Clients, group: Group) -> None:
    """Take its roles away again, by the group's tags; nothing happens if it has none. Raises ProvisionError."""
    for scope, name in role_assignments_of(clients, group):
        start = partial(clients.authorization.role_assignments.delete, scope, name)
        clients.ask(f"remove the role assignment {name} on {scope}", partial(_unless_gone, start))


def _unless_gone(start: partial[Any]) -> None:
    with gone_is_fine():
        start()


def _assign(clients: Clients, token: str, scope: str, role: str, body: Json) -> None:
    name = assignment_name(token, scope, role)
    start = partial(clients.authorization.role_assignments.create, scope, name, cast("Any", body), cls=answer_of)
    try:
        clients.ask(f"give {role} on {scope}", start, _NEW_S)
    except ProvisionError as error:
        if error.code != "RoleAssignmentExists":
            raise


def _group_of(clients: Clients, account: str) -> str:
    """The resource group of a storage account."""
    where = f"resourceType eq 'Microsoft.Storage/storageAccounts' and name eq '{account}'"
    doing = f"look for the storage account {account}"
    found: list[Mapping[str, Any]] = clients.ask(
        doing, lambda: cast("Any", plain(clients.resources.resources.list(filter=where)))
    )
    for one in found:
        if str(one.get("name", "")).lower() == account.lower():
            return part_of(str(one["id"]), "resourceGroups")
    message = (
        f"subscription {clients.subscription} has no storage account {account} that you may see: correct `job_dir`, or "
        f"name an identity that may use it in {IDENTITY_SETTING}, see docs/azure-permissions.md"
    )
    raise ProvisionError("invalid", message, scope="cloud", code="NoStorageAccount")


def _shortest(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Without those that another one covers."""
    kept = [
        one
        for one in dict.fromkeys(prefixes)
        if not any(other != one and (not other or one.startswith(f"{other}/")) for other in prefixes)
    ]
    return tuple(kept)


def _identity(found: Any, *, ours: bool) -> Identity:  # noqa: ANN401 - JSON
    inside = found.get("properties") or {}
    return Identity(str(found["id"]), str(inside.get("clientId", "")), str(inside.get("principalId", "")), ours)
