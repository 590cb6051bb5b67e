"""Key Vault: vaults in Resource Manager, and the secrets of each vault at its own host.

It follows the REST reference 7.4, "Get Secret", and "Azure Key Vault REST API error codes". Access is by roles
(enableRbacAuthorization). Machines need a role on the vault or on the secret; others have full access, as in access.py.
The messages of refusals are those that clients' issues quote.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from ..faults import Call
from . import roles
from .arm import Request, Response, answer, key
from .names import SUBSCRIPTION
from .tokens import Principal
from .world import World

AUDIENCE = "https://vault.azure.net"
KIND = "Microsoft.KeyVault/vaults"
DOMAIN = ".vault.azure.net"
READ = "Microsoft.KeyVault/vaults/secrets/getSecret/action"
_PATH = re.compile(r"/secrets/(?P<secret>[0-9A-Za-z-]{1,127})(?:/(?P<version>[0-9a-f]{32})?)?")


def add_secret(world: World, *, vault: str, group: str, secret: str, value: str, content_type: str | None) -> str:
    """Add a version to a secret, whose vault and group are created if needed; return the version."""
    path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}"
    made = {
        "id": path,
        "name": group,
        "type": "Microsoft.Resources/resourceGroups",
        "location": "westeurope",
        "tags": {},
    }
    world.resources.setdefault(key(path), {**made, "properties": {"provisioningState": "Succeeded"}})
    identity = f"{path}/providers/{KIND}/{vault}"
    made = {"id": identity, "name": vault, "type": KIND, "location": "westeurope", "tags": {}}
    world.resources.setdefault(key(identity), {**made, "properties": {"enableRbacAuthorization": True}})
    version = uuid.uuid4().hex
    now = int(time.time())
    attributes = {"enabled": True, "created": now, "updated": now, "recoveryLevel": "Recoverable+Purgeable"}
    bundle: dict[str, Any] = {"value": value, "attributes": attributes}
    bundle["id"] = f"https://{vault.lower()}{DOMAIN}/secrets/{secret}/{version}"
    if content_type is not None:
        bundle["contentType"] = content_type
    world.secrets.setdefault((vault.lower(), secret.lower()), {})[version] = bundle
    return version


def call_of(host: str, request: Request, who: Principal | None) -> Call:
    """Return the recorded call: `secrets.get`."""
    found = _PATH.fullmatch(request.path)
    params = {"vault": host.removesuffix(DOMAIN), "secret": found["secret"] if found else ""}
    return Call("Microsoft.KeyVault", "", "secrets.get", who.name if who else "", params)


def get(world: World, host: str, request: Request, who: Principal | None) -> Response:
    """Return a secret's version, by default its newest."""
    vault, found = host.removesuffix(DOMAIN), _PATH.fullmatch(request.path)
    if who is None:
        result = refused("Unauthorized", 401, "AKV10000: Request is missing a Bearer or PoP token.")
        result.headers["WWW-Authenticate"] = f'Bearer authorization="{world.url}", resource="{AUDIENCE}"'
        return result
    if request.method != "GET" or found is None or "api-version" not in request.query:
        return refused("BadParameter", 400, f"{request.method} {request.path} is not supported.")
    with world.lock:
        return _find(world, vault, found, who)


def _find(world: World, vault: str, found: re.Match[str], who: Principal) -> Response:
    resource = next((one for one in world.of_kind(KIND) if one["name"].lower() == vault), None)
    if resource is None:  # its host would have no address
        return refused("VaultNotFound", 404, f"The vault {vault} does not exist.")
    scope = f"{resource['id']}/secrets/{found['secret']}"
    if who.machine and not roles.may_use(world, who, READ, scope):
        return refused("Forbidden", 403, _denial(who, scope, vault), "ForbiddenByRbac")
    versions = world.secrets.get((vault, found["secret"].lower()), {})
    bundle = versions.get(found["version"] or next(reversed(versions), ""))
    if bundle is None:
        text = f"A secret with (name/id) {found['secret']} was not found in this key vault."
        return refused("SecretNotFound", 404, text)
    if not bundle["attributes"]["enabled"]:
        return refused("Forbidden", 403, "Operation get is not allowed on a disabled secret.", "SecretDisabled")
    return answer(bundle)


def refused(code: str, status: int, message: str, inner: str = "") -> Response:
    """Return an error in Key Vault's format."""
    error: dict[str, Any] = {"code": code, "message": message}
    if inner:
        error["innererror"] = {"code": inner}
    return answer({"error": error}, status)


def _denial(who: Principal, scope: str, vault: str) -> str:
    return (
        "Caller is not authorized to perform action on resource.\r\nIf role assignments, deny assignments or role "
        "definitions were changed recently, please observe propagation time.\r\n"
        f"Caller: appid={who.client_id};oid={who.object_id};iss=https://sts.windows.net/x/\r\nAction: '{READ}'\r\n"
        f"Resource: '{scope.lower()}'\r\nAssignment: (not found)\r\nDenyAssignmentId: null\r\n"
        f"DecisionReason: 'DeniedWithNoValidRBAC' \r\nVault: {vault};location=westeurope\r\n"
    )
