"""Managed identity of a launch's machines: access to the job's folder of its container, and few other permissions.

Each launch has a dedicated identity in its group. Role assignments with a condition on blob paths give it access to
containers; it may also deallocate the launch's machines, but not create resources. `CLOUDGPU_AZURE_IDENTITY` names an
existing identity with its own role assignments, and an infra stack has one with access to its job dir: if either
exists, the launch creates no identity and no role assignments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from ...base import LaunchRequest, ProvisionError
from ...shared.infra_outputs import Infrastructure
from ..clients import Clients, Json, answer_of, as_dicts, ignore_not_found
from ..machine.request import with_tags
from ..names import SHARED, assignment_name, group_id, group_name, leaving_role, part_of
from .containers import Container, split_url
from .orphans import description
from .resource_groups import Group
from .rights import NAMES, READER, SWITCH_OFF, WRITER, condition

IDENTITY_SETTING = "CLOUDGPU_AZURE_IDENTITY"
_NEW_S = 120.0
"""Seconds for which other Azure services may not know a new identity."""


class Identity(NamedTuple):
    """Managed identity of machines."""

    id: str
    """Resource id."""
    client_id: str
    principal_id: str
    is_dedicated: bool
    """True if it was created for the launch."""


class Grant(NamedTuple):
    """Access of an identity to a container: one role assignment."""

    container: Container
    role: str
    prefixes: tuple[str, ...]
    """Path prefixes in the container; ("",): the whole container."""


# --- requirements -----------------------------------------------------------------------------------------------------


def shared_identity(stack: Infrastructure | None, request: LaunchRequest) -> str:
    """Return the resource id of an existing identity with all access that the machines need; "": none."""
    named = os.environ.get(IDENTITY_SETTING, "")
    if named or stack is None:
        return named
    return stack.role_for((request.job_dir, *request.reads, *request.writes))


def find_grants(clients: Clients, request: LaunchRequest, shared: str = "") -> list[Grant]:
    """Return the access that a launch's machines need; [] for an existing identity (`shared`).

    It contains one grant for each container and role, because Azure allows only one assignment of a role to an identity
    at a scope. Raises ProvisionError(invalid) for a storage account outside the subscription.
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
    """Return the body of a role assignment. `limit`: its condition; None: unconditional."""
    definition = f"/subscriptions/{clients.subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    # principalType is given because the directory may not know a new identity yet.
    properties = {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    properties["description"] = description(request)
    if limit is not None:
        properties |= {"condition": limit, "conditionVersion": "2.0"}
    return {"properties": properties}


# --- calls ------------------------------------------------------------------------------------------------------------


def make_identity(clients: Clients, request: LaunchRequest) -> Identity:
    """Create the launch's identity. Idempotent. Raises ProvisionError."""
    body, group = cast("Any", with_tags(request)), group_name(request.token)
    make = clients.identities.user_assigned_identities.create_or_update
    doing = f"make the identity of {group}"
    return _identity(clients.ask(doing, lambda: make(group, SHARED, body, cls=answer_of)), ours=True)


def find_identity(clients: Clients, named: str) -> Identity:
    """Return an existing identity, given its resource id. Raises ProvisionError."""
    group, name = part_of(named, "resourceGroups"), part_of(named, "userAssignedIdentities")
    if not group or not name or part_of(named, "subscriptions").lower() != clients.subscription.lower():
        message = (
            f"{named} is no identity of subscription {clients.subscription}: {IDENTITY_SETTING}, if it is set, must be "
            "/subscriptions/…/resourceGroups/…/providers/Microsoft.ManagedIdentity/userAssignedIdentities/…"
        )
        raise ProvisionError("invalid", message, scope="cloud", code="NoIdentity")
    look = clients.identities.user_assigned_identities.get
    return _identity(clients.ask(f"look up the identity {name}", lambda: look(group, name, cls=answer_of)), ours=False)


def assign_roles(clients: Clients, request: LaunchRequest, identity: Identity, grants: Iterable[Grant]) -> None:
    """Assign the roles to a launch's identity; no-op for an existing identity, and for existing assignments. Raises
    ProvisionError."""
    if not identity.is_dedicated:
        return
    here = group_id(clients.subscription, group_name(request.token))
    body = assignment(clients, request, identity.principal_id, SWITCH_OFF)
    _assign(clients, request.token, here, SWITCH_OFF, body)
    for grant in grants:
        limit = condition(grant.role, grant.prefixes)
        body = assignment(clients, request, identity.principal_id, grant.role, limit)
        _assign(clients, request.token, grant.container.scope(clients.subscription), grant.role, body)


def allow_scale_in(clients: Clients, request: LaunchRequest, identity: Identity, stack: str) -> None:
    """Assign the role for leaving scale sets in the launch's group to a stack's identity. Idempotent.

    The assignment is deleted with the group, not before, since machines may leave until then. Raises ProvisionError.
    """
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
    """Return scope and name of each role assignment that a launch may have created, from its group's tags."""
    containers = [found for value in group.access if (found := Container.from_tag(value)) is not None]
    scopes = [(one.scope(clients.subscription), role) for one in containers for role in (READER, WRITER)]
    if containers:
        scopes.append((group_id(clients.subscription, group.name), SWITCH_OFF))
    return [(scope, assignment_name(group.token, scope, role)) for scope, role in scopes]


def remove_role_assignments(clients: Clients, group: Group) -> None:
    """Delete the role assignments that the group's tags name. Idempotent. Raises ProvisionError."""
    for scope, name in role_assignments_of(clients, group):
        start = partial(clients.authorization.role_assignments.delete, scope, name)
        clients.ask(f"remove the role assignment {name} on {scope}", partial(_unless_gone, start))


def _unless_gone(start: partial[Any]) -> None:
    with ignore_not_found():
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
    """Return the resource group of a storage account. Raises ProvisionError."""
    return part_of(str(find_storage_account(clients, account)["id"]), "resourceGroups")


def find_storage_account(clients: Clients, account: str) -> Mapping[str, Any]:
    """Return a storage account of the subscription. Raises ProvisionError."""
    where = f"resourceType eq 'Microsoft.Storage/storageAccounts' and name eq '{account}'"
    doing = f"look for the storage account {account}"
    found: list[Mapping[str, Any]] = clients.ask(
        doing, lambda: cast("Any", as_dicts(clients.resources.resources.list(filter=where)))
    )
    for one in found:
        if str(one.get("name", "")).lower() == account.lower():
            return one
    message = (
        f"subscription {clients.subscription} has no storage account {account} that you may see: correct `job_dir`, or "
        f"name an identity that may use it in {IDENTITY_SETTING}, see docs/reference/azure-permissions.md"
    )
    raise ProvisionError("invalid", message, scope="cloud", code="NoStorageAccount")


def _shortest(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes without those that another one covers."""
    kept = [
        one
        for one in dict.fromkeys(prefixes)
        if not any(other != one and (not other or one.startswith(f"{other}/")) for other in prefixes)
    ]
    return tuple(kept)


def _identity(found: Any, *, ours: bool) -> Identity:  # JSON
    inside = found.get("properties") or {}
    return Identity(str(found["id"]), str(inside.get("clientId", "")), str(inside.get("principalId", "")), ours)
