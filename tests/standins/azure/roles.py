"""Role assignments and role definitions.

They follow the REST reference of Microsoft.Authorization, "Azure built-in roles" and "Troubleshoot Azure RBAC": a new
principal is unknown for some time to callers that do not give its type; a role can be assigned to a principal only once
per scope; an assignment's principal and scope cannot be changed. Only the form of conditions is checked: the storage
service would enforce them.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .arm import RefusedError, Response, answer, key, last
from .ask import ApiRequest, resolve
from .names import AUDITOR, SUBMITTER
from .operations import now
from .resources import check_body
from .tokens import Principal, application
from .world import World

KIND = "Microsoft.Authorization/roleAssignments"
DEFINITIONS = "Microsoft.Authorization/roleDefinitions"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers"
_VAULTS = "Microsoft.KeyVault/vaults"
_TYPES = ("User", "Group", "ServicePrincipal", "ForeignGroup", "Device")


@dataclass(frozen=True)
class Role:
    """Definition of a role; data actions are those of blobs and secrets."""

    name: str
    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()
    data_actions: tuple[str, ...] = ()


_SWITCHES = ("start", "powerOff", "restart", "deallocate")
_WRITES_ACCESS = ("Microsoft.Authorization/*/Delete", "Microsoft.Authorization/*/Write")
BUILT_IN: Mapping[str, Role] = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": Role("Owner", ("*",)),
    "b24988ac-6180-42a0-ab88-20f7382dd24c": Role("Contributor", ("*",), _WRITES_ACCESS),
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": Role("Reader", ("*/read",)),
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": Role(
        "Role Based Access Control Administrator",
        ("Microsoft.Authorization/roleAssignments/write", "Microsoft.Authorization/roleAssignments/delete", "*/read"),
    ),
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": Role(
        "Virtual Machine Contributor",
        (
            "Microsoft.Compute/virtualMachines/*",
            "Microsoft.Compute/disks/*",
            "Microsoft.Network/networkInterfaces/*",
            "Microsoft.Network/virtualNetworks/read",
            "Microsoft.Network/virtualNetworks/subnets/join/action",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
        ),
    ),
    "40c5ff49-9181-41f8-ae61-143b0e78555e": Role(
        "Desktop Virtualization Power On Off Contributor",
        (
            "Microsoft.Compute/virtualMachines/read",
            "Microsoft.Compute/virtualMachines/instanceView/read",
            *(f"Microsoft.Compute/virtualMachines/{verb}/action" for verb in _SWITCHES),
            "Microsoft.Authorization/*/read",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
        ),
    ),
    "f1a07417-d97a-45cb-824c-7a7467783830": Role(
        "Managed Identity Operator",
        (
            "Microsoft.ManagedIdentity/userAssignedIdentities/*/read",
            "Microsoft.ManagedIdentity/userAssignedIdentities/*/assign/action",
        ),
    ),
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": Role(
        "Storage Blob Data Contributor",
        (f"{BLOBS}/delete", f"{BLOBS}/read", f"{BLOBS}/write"),
        data_actions=(f"{BLOBS}/blobs/*",),
    ),
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": Role(
        "Storage Blob Data Reader", (f"{BLOBS}/read",), data_actions=(f"{BLOBS}/blobs/read",)
    ),
    "4633458b-17de-408a-b874-0445c86b69e6": Role(
        "Key Vault Secrets User",
        (),
        data_actions=(f"{_VAULTS}/secrets/getSecret/action", f"{_VAULTS}/secrets/readMetadata/action"),
    ),
}


# -- methods of the API


def put(ask: ApiRequest) -> Response:
    world, body, path = ask.world, ask.body, ask.path
    check_body("authorization.RoleAssignmentCreateParameters", body)
    result = body["properties"]
    name = last(path)
    try:
        uuid.UUID(name)
    except ValueError as wrong:
        text = f"The role assignment ID '{name}' is not valid. The role assignment ID must be a GUID."
        raise RefusedError("InvalidRoleAssignmentId", 400, text) from wrong
    _check_scope(world, ask.target.scope)
    definition = str(result["roleDefinitionId"])
    if role_of(world, definition) is None:
        raise RefusedError(
            "RoleDefinitionDoesNotExist",
            400,
            f"The specified role definition with ID '{last(definition)}' does not exist.",
        )
    _check_principal(world, result)
    _check_condition(result)
    old = world.find(path)
    if old is not None:
        return _repeated(old, result)
    for one in assignments(world):
        same = ("principalId", "roleDefinitionId")
        if key(one["properties"]["scope"]) == key(ask.target.scope) and all(
            str(one["properties"][field]).lower() == str(result[field]).lower() for field in same
        ):
            known = one["name"].replace("-", "")
            text = f"The role assignment already exists. The ID of the existing role assignment is {known}."
            raise RefusedError("RoleAssignmentExists", 409, text)
    properties = {
        "principalType": "ServicePrincipal",
        **result,
        "scope": ask.target.scope,
        "createdOn": now(),
        "updatedOn": now(),
        "createdBy": ask.caller.object_id,
        "updatedBy": ask.caller.object_id,
    }
    made = {"id": path, "name": name, "type": KIND, "properties": properties}
    world.resources[key(path)] = made
    return answer(made, 201)


def get(ask: ApiRequest) -> Response:
    found = ask.world.find(ask.path)
    if found is None:
        raise RefusedError("RoleAssignmentNotFound", 404, f"The role assignment '{last(ask.path)}' is not found.")
    return answer(found)


def delete(ask: ApiRequest) -> Response:
    found = ask.world.find(ask.path)
    if found is None:
        return Response(204)
    ask.world.remove(ask.path)
    return answer(found)


def listed(ask: ApiRequest) -> Response:
    """List assignments at, above and below a scope; `$filter=atScope()` omits those below, `principalId eq '…'` selects
    one principal's."""
    world, scope = ask.world, key(ask.target.scope)
    text = ask.request.query.get("$filter", "")
    wanted = re.fullmatch(r"(?:atScope\(\))?(?: and )?(?:(?:principalId eq|assignedTo\()\s*'(?P<id>[-\w]+)'\)?)?", text)
    if wanted is None:
        raise RefusedError("UnsupportedQuery", 400, f"The filter '{text}' is not supported.")
    found = []
    for one in assignments(world):
        at = key(one["properties"]["scope"])
        above, below = _holds(at, scope), _holds(scope, at)
        if (above or (below and "atScope" not in text)) and (wanted["id"] in (None, one["properties"]["principalId"])):
            found.append(one)
    return answer({"value": found})


def definitions(ask: ApiRequest) -> Response:
    """List built-in roles, with `$filter=roleName eq '…'`."""
    text = ask.request.query.get("$filter", "")
    wanted = re.fullmatch(r"(?:roleName eq '(?P<name>[^']*)')?", text)
    if wanted is None:
        raise RefusedError("UnsupportedQuery", 400, f"The filter '{text}' is not supported.")
    result = [_definition(identity, role) for identity, role in BUILT_IN.items() if wanted["name"] in (None, role.name)]
    return answer({"value": result})


def put_definition(ask: ApiRequest) -> Response:
    """Create a custom role, whose name must be unique."""
    world, body, path = ask.world, ask.body, ask.path
    check_body("authorization.RoleDefinition", body)
    result = body["properties"]
    try:
        uuid.UUID(last(path))
    except ValueError as wrong:
        raise RefusedError("InvalidRoleDefinitionId", 400, "The role definition ID must be a GUID.") from wrong
    scopes = result.get("assignableScopes") or []
    if not scopes:
        raise RefusedError("RoleDefinitionHasNoAssignableScopes", 400, "A role needs an assignable scope.")
    for scope in scopes:
        _check_scope(world, scope)
    taken = [one for one in world.of_kind(DEFINITIONS) if one["properties"]["roleName"] == result["roleName"]]
    if result["roleName"] in {role.name for role in BUILT_IN.values()} or any(
        one["name"] != last(path) for one in taken
    ):
        text = f"A custom role with the same name already exists in this directory. Role name: {result['roleName']}"
        raise RefusedError("RoleDefinitionWithSameNameExists", 409, text)
    made = {"id": path, "name": last(path), "type": DEFINITIONS, "properties": {"type": "CustomRole", **result}}
    world.resources[key(path)] = made
    return answer(made, 201)


def delete_definition(ask: ApiRequest) -> Response:
    """Delete a custom role, unless it is assigned."""
    found = ask.world.find(ask.path)
    if found is None:
        return Response(204)
    if any(last(one["properties"]["roleDefinitionId"]) == found["name"] for one in assignments(ask.world)):
        text = "There are existing role assignments referencing role."
        raise RefusedError("RoleDefinitionHasAssignments", 400, text)
    ask.world.remove(ask.path)
    return answer(found)


def definition(ask: ApiRequest) -> Response:
    if (own := ask.world.find(ask.path)) is not None:
        return answer(own)
    role = BUILT_IN.get(last(ask.path).lower())
    if role is None:
        text = f"The specified role definition with ID '{last(ask.path)}' does not exist."
        raise RefusedError("RoleDefinitionDoesNotExist", 404, text)
    return answer(_definition(last(ask.path), role))


# -- authorization


def assignments(world: World) -> Iterator[dict[str, Any]]:
    return world.of_kind(KIND)


def role_of(world: World, path: str) -> Role | None:
    if (built_in := BUILT_IN.get(last(path).lower())) is not None:
        return built_in
    for own in world.of_kind(DEFINITIONS):
        if own["name"].lower() == last(path).lower():
            result: dict[str, list[str]] = next(iter(own["properties"].get("permissions") or [{}]))
            words = (tuple(result.get(name) or ()) for name in ("actions", "notActions", "dataActions"))
            return Role(own["properties"]["roleName"], *words)
    return None


def may(world: World, principal: Principal, action: str, path: str) -> bool:
    """Return whether the principal has a role for the action, at this scope or above."""
    return any(
        _allows(role.actions, action) and not _allows(role.not_actions, action)
        for role in _held(world, principal, path)
    )


def may_use(world: World, principal: Principal, data_action: str, path: str) -> bool:
    """Return whether the principal has a role for the data action, at this scope or above."""
    return any(_allows(role.data_actions, data_action) for role in _held(world, principal, path))


def entries(world: World, principal: Principal, path: str) -> list[dict[str, list[str]]]:
    """Return the permissions of the principal's roles at this scope or above, as the API lists them."""
    return [
        {
            "actions": list(role.actions),
            "notActions": list(role.not_actions),
            "dataActions": list(role.data_actions),
            "notDataActions": [],
        }
        for role in _held(world, principal, path)
    ]


def may_write_blobs(world: World, principal: Principal) -> bool:
    """Return whether the principal may write blobs anywhere."""
    return any(_allows(role.data_actions, f"{BLOBS}/blobs/write") for role in _held(world, principal, ""))


def _held(world: World, principal: Principal, path: str) -> Iterator[Role]:
    """Yield the principal's roles at a scope; "": any scope."""
    for one in assignments(world):
        result = one["properties"]
        if result["principalId"] != principal.object_id or (path and not _holds(key(result["scope"]), key(path))):
            continue
        role = role_of(world, result["roleDefinitionId"])
        if role is not None:
            yield role


# -- helpers


def _repeated(old: dict[str, Any], told: dict[str, Any]) -> Response:
    """Update an assignment's role and condition; refuse a different principal."""
    before = old["properties"]
    if str(before["principalId"]).lower() != str(told["principalId"]).lower():
        text = "Tenant ID, application ID, principal ID, and scope are not allowed to be updated."
        raise RefusedError("RoleAssignmentUpdateNotPermitted", 400, text)
    before |= {**told, "updatedOn": now()}
    return answer(old, 200)


def _check_scope(world: World, scope: str) -> None:
    """Check that the scope exists; for a container or a secret, that its account or vault does. Raises RefusedError."""
    holder = re.match(r"(.*/(?:Microsoft\.Storage/storageAccounts|Microsoft\.KeyVault/vaults)/[^/]+)", scope, re.I)
    wanted = holder[1] if holder else scope
    if wanted.count("/") > 2 and resolve(world, wanted) is None:
        raise RefusedError("ResourceNotFound", 404, f"The Resource '{wanted}' was not found.")


def _check_principal(world: World, told: dict[str, Any]) -> None:
    kind, wanted = told.get("principalType"), str(told["principalId"]).lower()
    if kind is not None and kind not in _TYPES:
        raise RefusedError("InvalidPrincipalType", 400, f"'{kind}' is no principal type; known: {', '.join(_TYPES)}")
    known = {one.object_id for one in world.identities.values()}
    known |= {application(name).object_id for name in (SUBMITTER, AUDITOR)}
    late = world.seen_from.get(f"principal/{wanted}", 0.0) > time.monotonic()
    if kind == "ServicePrincipal" or (wanted in known and not late):
        return
    text = (
        f"Principal {wanted.replace('-', '')} does not exist in the directory. Check that you have the correct "
        "principal ID. "
        "If you are creating this principal and then immediately assigning a role, this error might be related to a "
        "replication delay. In this case, set the role assignment principalType property to a value, such as "
        "ServicePrincipal, User, or Group. See https://aka.ms/docs-principaltype"
    )
    raise RefusedError("PrincipalNotFound", 400, text)


def _check_condition(told: dict[str, Any]) -> None:
    """Check a condition's form only: version 2.0, balanced parentheses and quotes, an action. Raises RefusedError."""
    condition = told.get("condition")
    if condition is None and told.get("conditionVersion") is None:
        return
    if told.get("conditionVersion") != "2.0" or not condition:
        raise RefusedError(
            "BadRequestFormat", 400, "If a condition is set, conditionVersion must be 2.0, and the other way round."
        )
    bare = re.sub(r"'[^']*'", "", condition)
    if (
        "'" in bare
        or bare.count("(") != bare.count(")")
        or bare.count("{") != bare.count("}")
        or "ActionMatches" not in bare
    ):
        raise RefusedError("BadRequestFormat", 400, f"The condition cannot be read: {condition}")


def _definition(identity: str, role: Role) -> dict[str, Any]:
    permissions = {
        "actions": list(role.actions),
        "notActions": list(role.not_actions),
        "dataActions": list(role.data_actions),
    }
    return {
        "id": f"/providers/{DEFINITIONS}/{identity}",
        "name": identity,
        "type": DEFINITIONS,
        "properties": {
            "roleName": role.name,
            "type": "BuiltInRole",
            "permissions": [{**permissions, "notDataActions": []}],
        },
    }


def _allows(globs: tuple[str, ...], action: str) -> bool:
    return any(fnmatchcase(action.lower(), glob.lower()) for glob in globs)


def _holds(scope: str, path: str) -> bool:
    return path == scope or path.startswith(scope.rstrip("/") + "/")
