"""Secrets in Azure Key Vault, read with the machine's managed identity or a user's own credentials.

Sources: Key Vault's REST reference 7.4, "Get Secret"; "Azure Key Vault REST API error codes"; "Authentication, requests
and responses".
"""

from __future__ import annotations

import functools
import os
import re
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from ...storage.access import CredentialsError
from ...storage.azure_account import login_token
from ..notices.metadata import LINK_LOCAL, MetadataError, MetadataServer
from .api import NoCredentialsError, Patience, Refusal, SecretError, Service, check_endpoint, retrying, send, text_of
from .references import Reference

SCHEME = "azure-keyvault"
_VERSION = "7.4"
"""Version of Key Vault's REST API."""
_RESOURCE = "https://vault.azure.net"
_ENDPOINT = "CLOUDGPU_AZURE_ENDPOINT"
"""Environment variable with the endpoint of Azure's APIs, for tests; the request's Host remains the vault's."""
_PATH = re.compile(r"(?P<vault>[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9])/(?P<secret>[^/]+)(?:/(?P<version>[^/]+))?")
"""The vault becomes a host's name, so it can have no other characters."""
_MSI = "AZURE_MSI_ENDPOINT"
"""obstore's variable for another address of the metadata service's tokens."""
_MSI_PATH = "/metadata/identity/oauth2/token"
_METADATA_S = 15.0
_UNREADY_S = 600.0
"""A launch assigns the role as it creates the machine; that takes up to ten minutes to take effect (Azure's
documentation, "Troubleshoot Azure RBAC")."""
_BINARY = ("application/x-pkcs12", "application/octet-stream")
"""Content types of secrets that are binary in Base64; certificates have the first."""
_SECRETS = ("AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
_PAGE = "docs/reference/azure-permissions.md"


def read(reference: Reference, patience: Patience) -> str:
    """Return the text of a secret's version. Raises SecretError."""
    found = _PATH.fullmatch(reference.path)
    if found is None:
        raise SecretError("expected VAULT/SECRET[/VERSION]")
    vault, tail = found["vault"], "/".join(quote(one, safe="") for one in found.groups()[1:] if one)
    host = f"{vault.lower()}.vault.azure.net"
    base = os.environ.get(_ENDPOINT)
    url = f"{check_endpoint(_ENDPOINT, base) if base else f'https://{host}'}/secrets/{tail}?api-version={_VERSION}"

    def attempt() -> dict[str, Any] | Refusal:
        headers = {"Authorization": f"Bearer {_token()}", "Host": host}
        return send(urllib.request.Request(url, headers=headers))  # noqa: S310

    unready_s = _UNREADY_S if _is_machine() else 0.0
    service = Service(frozenset({"Throttled"}), _is_denied, unready_s, functools.partial(_explain, found))
    document = retrying(attempt, service, patience)
    if text_of(document, "contentType") in _BINARY:
        raise SecretError(f"the secret is binary ({document['contentType']}); only text can be used")
    value = text_of(document, "value")
    if value is None:
        raise SecretError("Key Vault's answer has no value")
    return value


# --- refusals ---------------------------------------------------------------------------------------------------------


_NO_ROLE = frozenset({"SecretDisabled", "ForbiddenByFirewall", "ForbiddenByConnection"})
"""Reasons of a refusal that no role or access policy changes."""


def _is_denied(refusal: Refusal) -> bool:
    return refusal.status == 403 and refusal.reason not in _NO_ROLE


def _explain(found: re.Match[str], refusal: Refusal) -> str:
    vault, secret = found["vault"], found["secret"]
    if _is_denied(refusal):
        who = re.search(r"appid=([\w*-]+);oid=([\w*-]+)", refusal.message)
        named = f" (client id {who[1]}, object id {who[2]})" if who else ""
        principal = "this machine's identity" if _is_machine() else "the account that is logged in here"
        return (
            f"{principal}{named} may not read it: it needs the role Key Vault Secrets User on the vault {vault} or on "
            f"its secret {secret} (Microsoft.KeyVault/vaults/secrets/getSecret/action), see {_PAGE} ({refusal})"
        )
    if refusal.reason == "SecretDisabled":
        return f"the secret is disabled: enable it, or name another version ({refusal})"
    if refusal.reason in _NO_ROLE:
        return f"the firewall of the vault {vault} refuses this machine: allow its network ({refusal})"
    if refusal.status == 404:
        return f"the vault {vault} has no such secret or version: correct the reference, or create it ({refusal})"
    if refusal.status == 401:
        return f"the vault {vault} does not accept the credentials: it may belong to another tenant ({refusal})"
    return f"Key Vault refuses it: {refusal}"


# --- credentials ------------------------------------------------------------------------------------------------------


def _is_machine() -> bool:
    """Return whether the machine's managed identity is used: the environment has a client id, and nothing else."""
    return bool(os.environ.get("AZURE_CLIENT_ID")) and not any(os.environ.get(name) for name in _SECRETS)


def _token() -> str:
    """Return an access token for Key Vault, of the machine or of a login. Raises NoCredentialsError, SecretError."""
    if not _is_machine():
        try:
            return login_token(f"{_RESOURCE}/.default")
        except CredentialsError as error:
            raise SecretError(str(error)) from None
    query = {"api-version": "2018-02-01", "resource": _RESOURCE, "client_id": os.environ["AZURE_CLIENT_ID"]}
    base, slash, path = (os.environ.get(_MSI) or f"{LINK_LOCAL}{_MSI_PATH}").partition("/metadata/")
    try:
        server = MetadataServer(base, lambda _text: None, _METADATA_S)
        reply = server.request(f"{slash}{path}?{urlencode(query)}", {"Metadata": "true"})
        if reply.status != 200:
            raise NoCredentialsError(f"the metadata service gives no token for Key Vault: HTTP {reply.status}")
        token = text_of(reply.json(dict), "access_token")
    except MetadataError as error:
        raise NoCredentialsError(str(error)) from None
    if not token:
        raise NoCredentialsError("the metadata service's answer has no token")
    return token
