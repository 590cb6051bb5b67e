"""Who a launch's machines are: a managed identity that reaches this job's folder of its container, and little else.

Each launch has an identity of its own, in its group. It is let in to containers by role assignments with a condition on
the path of blobs, and may switch off the launch's machines; it can make nothing. `CLOUDGPU_AZURE_IDENTITY` names one
that somebody has made and let in beforehand, an infra stack makes one that reaches its job dir: where there is such a
one none is made, and no role is given to anybody.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from ...base import LaunchRequest, ProvisionError
from ...shared.infra_outputs import Infrastructure
from ..clients import Clients, Json, answer_of, gone_is_fine, plain
from ..machine.request import with_tags
from ..names import SHARED, assignment_name, group_id, group_name, leaving_role, part_of
from .containers import Container, split_url
from .orphans import description
from .resource_groups import Group
from .rights import NAMES, READER, SWITCH_OFF, WRITER, condition

IDENTITY_SETTING = "CLOUDGPU_AZURE_IDENTITY"
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


class Grant(NamedTuple):
    """What an identity may do in a container: one role assignment."""

    container: Container
    role: str
    prefixes: tuple[str, ...]
    """("",): all of it."""


# --- what is needed ---------------------------------------------------------------------------------------------------


def shared_identity(stack: Infrastructure | None, request: LaunchRequest) -> str:
    """Resource id of the identity that was made beforehand and reaches all that machines need; "": there is none."""
    named = os.environ.get(IDENTITY_SETTING, "")
    if named or stack is None:
        return named
    return stack.role_for((request.job_dir, *request.reads, *request.writes))


def find_grants(clients: Clients, request: LaunchRequest, shared: str = "") -> list[Grant]:
    """What the machines of a launch must be let in to; [] for an identity that was made beforehand (`shared`).

    One for each container and role, for Azure has no two assignments of the same role to the same identity at the same
    place. Raises ProvisionError(invalid) for a storage account that is not in the subscription.
    """
    places = [(request.job_dir, WRITER), *((url, READER) for url in request.reads)]
    places += [(url, WRITER) for url in request.writes]
    split = [(*split_url(url), role) for url, role in places]
    if shared:
        return []
    groups = {account: _group_of(clients, account) for account in dict.fromkeys(account for _, account, _, _ in split)}
    wanted: dict[tuple[Container, str], list[str]] = {}
    for container, account, prefix, role in split:
        wanted.setdefault((Container(groups[account], account, container), role), []).append(prefix)
    return [Grant(container, role, _shortest(prefixes)) for (container, role), prefixes in wanted.items()]


def assignment(clients: Clients, request: LaunchRequest, principal: str, role: str, limit: str | None = None) -> Json:
    """The body of a role assignment."""
    definition = f"/subscriptions/{clients.subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    # That it is a service principal is said, for the directory may not know a new one yet.
    properties = {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    properties["description"] = description(request)
    if limit is not None:
        properties |= {"condition": limit, "conditionVersion": "2.0"}
    return {"properties": properties}


# --- calls ------------------------------------------------------------------------------------------------------------


def make_identity(clients: Clients, request: LaunchRequest) -> Identity:
    """The launch's own. It may be repeated. Raises ProvisionError."""
    body, group = cast("Any", with_tags(request)), group_name(request.token)
    make = clients.identities.user_assigned_identities.create_or_update
    doing = f"make the identity of {group}"
    return _identity(clients.ask(doing, lambda: make(group, SHARED, body, cls=answer_of)), ours=True)


def find_identity(clients: Clients, named: str) -> Identity:
    """One that was made beforehand, by its resource id. Raises ProvisionError."""
    group, name = part_of(named, "resourceGroups"), part_of(named, "userAssignedIdentities")
    if not group or not name or part_of(named, "subscriptions").lower() != clients.subscription.lower():
        message = (
            f"{named} is no identity of subscription {clients.subscription}: {IDENTITY_SETTING}, if it is set, must be "
            "/subscriptions/…/resourceGroups/…/providers/Microsoft.ManagedIdentity/userAssignedIdentities/…"
        )
        raise ProvisionError("invalid", message, scope="cloud", code="NoIdentity")
    look = clients.identities.user_assigned_identities.get
    return _identity(clients.ask(f"look up the identity {name}", lambda: look(group, name, cls=answer_of)), ours=False)


def let_in(clients: Clients, request: LaunchRequest, identity: Identity, grants: Iterable[Grant]) -> None:
    """Give it its roles; nothing happens if it has them. Raises ProvisionError."""
    if not identity.ours:
        return
    here = group_id(clients.subscription, group_name(request.token))
    body = assignment(clients, request, identity.principal_id, SWITCH_OFF)
    _assign(clients, request.token, here, SWITCH_OFF, body)
    for grant in grants:
        limit = condition(grant.role, grant.prefixes)
        body = assignment(clients, request, identity.principal_id, grant.role, limit)
        _assign(clients, request.token, grant.container.scope(clients.subscription), grant.role, body)


def let_leave(clients: Clients, request: LaunchRequest, identity: Identity, stack: str) -> None:
    """Give a stack's identity the right to leave scale sets in the launch's group; nothing happens if it has it. That
    goes with the group, and not before: until then machines may want to leave. Raises ProvisionError."""
    here, role = group_id(clients.subscription, group_name(request.token)), leaving_role(stack, clients.subscription)
    try:
        _assign(clients, request.token, here, role, assignment(clients, request, identity.principal_id, role))
    except ProvisionError as error:
        if error.code != "RoleDefinitionDoesNotExist":
            raise
        message = (
            f"stack {stack} does not define the role by which machines leave their scale set: "
            f"`cloudgpu infra up --cloud azure --region {request.region}` does"
        )
        raise ProvisionError("invalid", message, scope="region", code=error.code) from error


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
        clients.ask(f"give the role {NAMES.get(role, role)} on {scope}", start, _NEW_S)
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
        f"name an identity that may use it in {IDENTITY_SETTING}, see docs/reference/azure-permissions.md"
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


def _identity(found: Any, *, ours: bool) -> Identity:  # JSON
    inside = found.get("properties") or {}
    return Identity(str(found["id"]), str(inside.get("clientId", "")), str(inside.get("principalId", "")), ours)
