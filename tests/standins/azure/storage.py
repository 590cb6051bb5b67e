"""Storage accounts in Resource Manager, and Logic Apps. Blobs are stored by Azurite.

They follow the REST references of Microsoft.Storage and Microsoft.Logic. A deleted account's containers are deleted
too.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .arm import RefusedError, Response, answer, key, last
from .ask import ApiRequest, not_found
from .kinds import Kind
from .names import TENANT, identity
from .resources import put, shown
from .tokens import Principal

ACCOUNT = Kind("Microsoft.Storage/storageAccounts", "storage.StorageAccount", True)
CONTAINER = Kind(
    "Microsoft.Storage/storageAccounts/blobServices/containers", "storage.BlobContainer", False, located=False
)
POLICY = Kind(
    "Microsoft.Storage/storageAccounts/managementPolicies", "storage.ManagementPolicy", False, located=False, made=200
)
WORKFLOW = Kind("Microsoft.Logic/workflows", "logic.Workflow", False)


def put_account(ask: ApiRequest) -> Response:
    """Create an account. Its name is globally unique in Azure; here it is checked within the subscription."""
    name = last(ask.path)
    if not re.fullmatch(r"[a-z0-9]{3,24}", name):
        text = f"{name} is not a valid storage account name: 3 to 24 lower-case letters and digits."
        raise RefusedError("AccountNameInvalid", 400, text)
    taken = [one["id"] for one in ask.world.of_kind(ACCOUNT.name) if one["name"] == name]
    if any(key(one) != key(ask.path) for one in taken):
        raise RefusedError("StorageAccountAlreadyTaken", 409, f"The storage account named {name} is already taken.")
    return put(ask, ACCOUNT)


def put_container(ask: ApiRequest) -> Response:
    """Create a container, which may be public only if its account allows that."""
    account = _account(ask)
    public = (ask.body.get("properties") or {}).get("publicAccess", "None") != "None"
    if public and account["properties"].get("allowBlobPublicAccess") is False:
        raise RefusedError("PublicAccessNotPermitted", 409, "Public access is not permitted on this storage account.")
    if not re.fullmatch(r"[a-z0-9](?:-?[a-z0-9]){2,62}", last(ask.path)):
        raise RefusedError("ContainerNameInvalid", 400, f"{last(ask.path)} is no name of a container.")
    return put(ask, CONTAINER)


def put_policy(ask: ApiRequest) -> Response:
    _account(ask)
    if last(ask.path) != "default":
        raise RefusedError("InvalidValuesForRequestParameters", 400, "The policy's name must be default.")
    return put(ask, POLICY)


def put_workflow(ask: ApiRequest) -> Response:
    """Create a workflow, with a system-assigned identity if requested."""
    old = ask.world.find(ask.path)
    result = put(ask, WORKFLOW)
    made = ask.world.find(ask.path)
    if made is None or (made.get("identity") or {}).get("type") != "SystemAssigned":
        return result
    known = ask.world.identities.get(key(ask.path)) if old is not None else None
    if known is None:
        seed = f"{ask.path}/{uuid.uuid4()}"
        known = Principal(last(ask.path), identity("principal", seed), identity("client", seed), machine=True)
        ask.world.identities[key(ask.path)] = known
    made["identity"] = {**made["identity"], "principalId": known.object_id, "tenantId": TENANT}
    return answer(shown(made), result.status)


KINDS: Mapping[Kind, Callable[[ApiRequest], Response]] = {
    ACCOUNT: put_account,
    CONTAINER: put_container,
    POLICY: put_policy,
    WORKFLOW: put_workflow,
}


def _account(ask: ApiRequest) -> dict[str, Any]:
    path = ask.path.partition("/blobServices/")[0].partition("/managementPolicies/")[0]
    found = ask.world.find(path)
    if found is None:
        raise not_found(path)
    return found
