"""Secrets in Google Cloud's Secret Manager, read with the machine's service account or a user's own credentials.

Sources: Secret Manager's REST reference v1, projects.secrets.versions.access; "Verify data integrity".
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..notices.metadata import LINK_LOCAL, MetadataError, MetadataServer, Reply
from .api import (
    NoCredentialsError,
    Patience,
    Refusal,
    SecretError,
    Service,
    UnavailableError,
    check_endpoint,
    retrying,
    send,
    text_of,
)
from .references import Reference

SCHEME = "gcp-secretmanager"
_ENDPOINT = "CLOUDGPU_GCP_ENDPOINT"
"""Environment variable with the endpoint of all of Google's APIs, for tests."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_NAME = re.compile(r"projects/(?P<project>[^/]+)/secrets/(?P<secret>[^/]+)(?:/versions/(?P<version>[^/]+))?")
_PROJECTS = ("CLOUD_ML_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
"""Environment variables with the project, the first by Vertex, whose metadata server names another one."""
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105 - a path
_EMAIL = "/computeMetadata/v1/instance/service-accounts/default/email"
_PROJECT = "/computeMetadata/v1/project/project-id"
_UNREADY_S = 60.0
"""A binding takes effect after two minutes (IAM, "Access change propagation"); it is older than the machine."""
_METADATA_S = 5.0
_PAGE = "docs/reference/gcp-permissions.md"


def read(reference: Reference, patience: Patience) -> str:
    """Return the text of a secret's version. Raises SecretError."""
    name = _full_name(reference.path)
    base = os.environ.get(_ENDPOINT)
    endpoint = check_endpoint(_ENDPOINT, base) if base else "https://secretmanager.googleapis.com"
    url = f"{endpoint}/v1/{quote(name, safe='/')}:access"

    def attempt() -> dict[str, Any] | Refusal:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_token()}"})  # noqa: S310
        found = send(request)
        if not isinstance(found, Refusal) and not _is_whole(found):
            raise UnavailableError("the answer's checksum is wrong: it was damaged on the way")
        return found

    service = Service(frozenset(), _is_denied, _UNREADY_S, functools.partial(_explain, name))
    return _text(retrying(attempt, service, patience))


def _full_name(path: str) -> str:
    """Return the resource name of a version. Raises SecretError."""
    if path.startswith("projects/"):
        found = _NAME.fullmatch(path)
        if found is None:
            raise SecretError("expected projects/PROJECT/secrets/SECRET[/versions/VERSION], or SECRET")
        return path if found["version"] else f"{path}/versions/latest"
    project = next((os.environ[name] for name in _PROJECTS if os.environ.get(name)), "") or _project_of_machine()
    return f"projects/{project}/secrets/{path}/versions/latest"


def _text(document: dict[str, Any]) -> str:
    try:
        return _data(document).decode()
    except UnicodeDecodeError:
        raise SecretError("the secret is binary; only text in UTF-8 can be used") from None


def _is_whole(document: dict[str, Any]) -> bool:
    """Return whether the payload has the checksum that the service sent with it; it sends one for every version."""
    payload = document.get("payload")
    wanted = payload.get("dataCrc32c") if isinstance(payload, dict) else None
    try:
        return wanted is not None and crc32c(_data(document)) == int(wanted)
    except (ValueError, TypeError):
        return False


def _data(document: dict[str, Any]) -> bytes:
    """Return the payload's bytes. Raises ValueError."""
    try:
        return base64.b64decode(text_of(document["payload"], "data") or "", validate=True)
    except (LookupError, TypeError, binascii.Error):
        raise ValueError("no payload") from None


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of data: RFC 3720, B.4."""
    table, found = _crc_table(), 0xFFFF_FFFF
    for byte in data:
        found = table[(found ^ byte) & 0xFF] ^ (found >> 8)
    return found ^ 0xFFFF_FFFF


@functools.cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        found = entry
        for _ in range(8):
            found = (found >> 1) ^ (0x82F6_3B78 if found & 1 else 0)
        table.append(found)
    return tuple(table)


# --- refusals ---------------------------------------------------------------------------------------------------------


def _is_denied(refusal: Refusal) -> bool:
    return refusal.status == 403 and refusal.reason not in ("SERVICE_DISABLED", "ACCESS_TOKEN_SCOPE_INSUFFICIENT")


_ADVICE = {
    "SERVICE_DISABLED": "the Secret Manager API is switched off: gcloud services enable secretmanager.googleapis.com",
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": f"this machine's token lacks the scope cloud-platform: see {_PAGE}",
    "NOT_FOUND": "there is no such secret or version: correct the reference, or add a version",
    "FAILED_PRECONDITION": "the version is disabled or destroyed: enable it, or name another one",
    "UNAUTHENTICATED": "Secret Manager does not accept the credentials: log in again",
}
"""Reason or code of a refusal -> what is wrong and what to do."""


def _explain(name: str, refusal: Refusal) -> str:
    advice = _ADVICE.get(refusal.reason) or _ADVICE.get(refusal.code)
    if advice is None and _is_denied(refusal):
        advice = (
            f"{_principal()} may not read it, or it does not exist: it needs secretmanager.versions.access on "
            f"{name.partition('/versions/')[0]} (roles/secretmanager.secretAccessor), see {_PAGE}"
        )
    return f"{advice or 'Secret Manager refuses it'} ({refusal})"


def _principal() -> str:
    """Return the name of the account whose token is used."""
    if _uses_login():
        return "the account that is logged in here"
    try:
        return _metadata(_EMAIL)
    except NoCredentialsError:
        return "this machine's service account"


# --- credentials ------------------------------------------------------------------------------------------------------


def _uses_login() -> bool:
    """Return whether credentials come from google-auth: not on a machine of a job, which has a metadata server only."""
    return bool(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")) or (
        not os.environ.get("GCE_METADATA_HOST") and _login_file_exists()
    )


def _login_file_exists() -> bool:
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    return (folder / "application_default_credentials.json").is_file()


def _token() -> str:
    """Return an access token. Raises NoCredentialsError, SecretError."""
    if _uses_login():
        return _login_token()
    document = _metadata_json(_TOKEN)
    token = text_of(document, "access_token")
    if not token:
        raise NoCredentialsError("the metadata server gives no token")
    return token


def _login_token() -> str:
    """Return a token of Application Default Credentials. Raises SecretError."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request
    except ImportError:
        raise SecretError(
            "Google's credentials on this computer are read by google-auth: pip install 'cloudgpu[gcp]'"
        ) from None
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    except TransportError as error:
        raise NoCredentialsError(f"Google gives no token: {_line(error)}") from None
    except GoogleAuthError as error:
        message = f"no Google credentials can be had: gcloud auth application-default login ({_line(error)})"
        raise SecretError(message) from None
    return str(credentials.token)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _project_of_machine() -> str:
    try:
        return _metadata(_PROJECT)
    except NoCredentialsError as error:
        raise SecretError(
            f"the project is not known: write projects/PROJECT/secrets/SECRET, or set GOOGLE_CLOUD_PROJECT ({error})"
        ) from None


def _metadata(path: str) -> str:
    """Return a text from the metadata server. Raises NoCredentialsError."""
    reply = _ask_metadata(path)
    if reply.status != 200 or not reply.text.isprintable() or len(reply.text) > 300:
        raise NoCredentialsError(f"the metadata server answers {path.rpartition('/')[2]} with HTTP {reply.status}")
    return reply.text


def _metadata_json(path: str) -> dict[str, Any]:
    reply = _ask_metadata(path)
    if reply.status != 200:
        raise NoCredentialsError(f"the metadata server answers {path.rpartition('/')[2]} with HTTP {reply.status}")
    try:
        return reply.json(dict)
    except MetadataError as error:
        raise NoCredentialsError(str(error)) from None


def _ask_metadata(path: str) -> Reply:
    try:
        server = MetadataServer(os.environ.get("GCE_METADATA_HOST") or LINK_LOCAL, _ignore, _METADATA_S)
        return server.request(path, {"Metadata-Flavor": "Google"})
    except MetadataError as error:
        raise NoCredentialsError(str(error)) from None


def _ignore(_text: str) -> None:
    """Drop the client's remark on clocks, which the watcher of notices makes already."""
