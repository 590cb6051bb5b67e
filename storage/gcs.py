"""Cloud Storage as a Service: credentials, connections, and explanations of its errors.

Credentials have the same sources as for Google's own tools (Application Default Credentials). obstore itself reads a
service account's key and a machine's metadata server. Other contents of such files (a user's login, impersonation,
workload identity federation) are read by google-auth, which is installed with Google's clients.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import importlib.util
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlsplit

import obstore
from obstore.store import from_url

from .access import CredentialsError, code_of, is_loopback, path_of, unreachable

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, GCSConfig, GCSCredential, ObjectStore, RetryConfig

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
EMULATOR = "STORAGE_EMULATOR_HOST"
"""Environment variable of Google's own clients with a custom endpoint."""

_REFRESH_S = 20.0
_SOURCES = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
)
"""Environment variables from which obstore takes credentials."""
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_LOADERS = {
    "authorized_user": ("google.oauth2.credentials", "from_authorized_user_info"),
    "external_account": ("google.auth.identity_pool", "from_info"),
    "external_account_authorized_user": ("google.auth.external_account_authorized_user", "from_info"),
    "impersonated_service_account": (
        "google.auth.impersonated_credentials",
        "from_impersonated_service_account_info",
    ),
}
"""Type in a credentials file -> google-auth's module, and the method that creates its Credentials."""
_NEEDS_GOOGLE_AUTH = "a login, impersonation and federation need google-auth: pip install 'cloudgpu[gcp]'"

NO_CREDENTIALS = (
    "no Google credentials were found: log in (gcloud auth application-default login), or set "
    "GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account"
)

ADVICE: Mapping[str, str] = {
    "NoSuchBucket": "there is no bucket of this name: create it (gcloud storage buckets create), or correct the name",
    "AccessDenied": "access denied: what these credentials must be allowed to do is "
    "in docs/reference/gcp-permissions.md",
    "AuthenticationRequired": "Cloud Storage does not know these credentials: log in again, or get a new key",
    "InvalidToken": "Cloud Storage does not know these credentials: log in again, or get a new key",
    "ExpiredToken": "the Google credentials have expired: log in again (gcloud auth application-default login)",
    "UserProjectMissing": "the bucket is one where the requester pays, and cannot be used: choose another",
    "UserProjectAccountProblem": "the billing account of the bucket's project is closed: see its billing page",
    "AccountProblem": "Google says that there is a problem with the account of the bucket's project",
    "InvalidBucketName": "this cannot be a bucket's name: correct it",
    "SlowDown": "Cloud Storage has too many requests for the moment, of this object or of the bucket",
}
"""Error code of the XML API -> what is wrong and what to do. Source: "HTTP status and error codes for XML"."""

_PERMISSION = re.compile(r"([^\s<>]+@[^\s<>]+|The caller|Anonymous caller) does not have (storage\.[\w.]+) access")
_ACTIONS = {
    "reading": "storage.objects.get",
    "looking": "storage.objects.get",
    "creating": "storage.objects.create",
    "writing": "storage.objects.create and storage.objects.delete",
    "copying": "storage.objects.get and storage.objects.create",
    "listing": "storage.objects.list",
    "deleting": "storage.objects.delete",
}
"""Verb of the operation -> required permission, if the response does not name it."""
_CODES = {"401": "AuthenticationRequired", "403": "AccessDenied"}
"""Status -> code, if the response has no code, e.g. to HEAD."""
_PROVIDER = re.compile(r"External GCP credential provider:? \w*:?\s*(.*)")
_METADATA = re.compile(r"token request: .*/computeMetadata/", re.DOTALL)
_STATUS = re.compile(r"non-2xx status code: (\d+)")


class _Connection(TypedDict, total=False):
    """Arguments for obstore's from_url()."""

    config: GCSConfig
    credential_provider: Callable[[], GCSCredential]


class CloudStorage:
    """Google Cloud Storage; implements Service."""

    min_rewrite_s = 1.0
    """An object may be replaced once a second: Cloud Storage, "Quotas & limits", writes to the same object name."""
    max_copy_s = 0.0

    def __init__(self, url: str) -> None:
        self._url = url

    def portable(self) -> str:
        return self._url

    def path(self) -> str:
        return path_of(self._url)

    def connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        client, retry = _adapt(client, retry)
        return from_url(self._url, client_options=client, retry_config=retry, **_connection())

    def delete(self, connection: ObjectStore, path: str) -> None:
        obstore.delete(connection, path)

    def delete_many(self, connection: ObjectStore, paths: Sequence[str]) -> None:
        obstore.delete(connection, paths)

    def find_region_after(self, message: str) -> bool:  # noqa: ARG002 - required by the protocol
        return False

    def explain(self, message: str, doing: str) -> str:
        return _explain(message, doing)


def _emulator() -> str | None:
    """Return the custom endpoint of the environment. Raises CredentialsError for plain http to another machine."""
    given = os.environ.get(EMULATOR, "").rstrip("/")
    if not given:
        return None
    url = given if "://" in given else f"http://{given}"
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise CredentialsError(f"{EMULATOR}={given}: plain http is allowed for this machine only; use https://")
    return url


def _adapt(client: ClientConfig, retry: RetryConfig) -> tuple[ClientConfig, RetryConfig]:
    """Return the options with plain http only for an emulator, and with a longer backoff because an object that was
    just replaced cannot be written for a second. Raises CredentialsError."""
    pauses: BackoffConfig = {
        "init_backoff": datetime.timedelta(seconds=0.4),
        "max_backoff": datetime.timedelta(seconds=8),
        "base": 2,
    }
    own = _emulator()
    plain: ClientConfig = {"allow_http": own is not None and own.startswith("http://")}
    patient: RetryConfig = {"max_retries": 5, "backoff": pauses}
    return client | plain, retry | patient


def _connection() -> _Connection:
    """Return the arguments to connect to any bucket, without a request. Raises CredentialsError."""
    config: GCSConfig = {}
    found: _Connection = {"config": config}
    own = _emulator()
    if own is not None:
        config["base_url"] = own
    if any(os.environ.get(name) for name in _SOURCES):
        return found
    file = _file()
    if file is None:
        if os.environ.get("GCE_METADATA_HOST") or (own is None and not _is_no_machine()):
            return found  # obstore queries the metadata server
        if own is None:
            raise CredentialsError(NO_CREDENTIALS)
        config["skip_signature"] = True  # Google's own clients send no credentials to an emulator either
    elif _type_of(file) == "service_account" or not _has_google_auth():
        if _type_of(file) not in ("service_account", "authorized_user"):
            raise CredentialsError(f"the credentials in {file} cannot be used: {_NEEDS_GOOGLE_AUTH}")
        _check_key(file)
        config["application_credentials"] = str(file)
    else:
        found["credential_provider"] = _google_auth(file, file.stat().st_mtime_ns)
    return found


def _explain(message: str, doing: str) -> str:
    """Return the explanation of a full message of Cloud Storage or obstore; by default its first line.

    `doing` begins with a word of _ACTIONS, e.g. "reading job.json".
    """
    status = _STATUS.search(message)
    code = code_of(message) or _CODES.get(status[1] if status else "", "")
    if _METADATA.search(message):
        return f"{NO_CREDENTIALS}; nor does a metadata server give a token"
    if code == "AccessDenied":
        found = _PERMISSION.search(message)
        needed = f"{found[2]}, which {found[1]} has not" if found else _ACTIONS.get(doing.partition(" ")[0], "")
        return f"{ADVICE[code]} ({code}{f': {needed}' if needed else ''})"
    if code in ADVICE:
        return f"{ADVICE[code]} ({code})"
    return _without_code(message) or message.partition("\n")[0]


def _without_code(message: str) -> str:
    """Return the explanation of an error without a code of Cloud Storage; "": unknown."""
    provider, address = _PROVIDER.search(message), unreachable(message)
    if provider:
        return f"no Google credentials can be had: {provider[1]}"
    return f"{address} cannot be reached from here: check the network, {EMULATOR} and proxies" if address else ""


class _GoogleAuth:
    """Provider of tokens from google-auth, cached until they expire."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._credentials = _load(json.loads(file.read_bytes()))
        except CredentialsError as error:
            raise CredentialsError(f"the credentials in {file} cannot be used: {error}") from error

    def __call__(self) -> GCSCredential:
        from google.auth.transport.requests import Request

        with self._lock:
            if not self._credentials.valid:
                self._credentials.refresh(functools.partial(Request(), timeout=_REFRESH_S))
            expiry = self._credentials.expiry
            ends = None if expiry is None else expiry.replace(tzinfo=datetime.UTC)
            return {"token": str(self._credentials.token), "expires_at": ends}


def _load(content: Mapping[str, Any]) -> Any:  # any kind of credentials
    """Create credentials from a file's content. Sends no request, unlike google.auth.default(), which looks up the
    project. Raises CredentialsError."""
    from google.auth.exceptions import GoogleAuthError

    module, make = _LOADERS.get(str(content["type"]), ("", ""))
    if content["type"] == "external_account":
        source = content.get("credential_source") or {}
        module = "pluggable" if "executable" in source else "identity_pool"
        module = "google.auth.aws" if "environment_id" in source else f"google.auth.{module}"
    if not module:
        raise CredentialsError(f"they are of the type {content['type']}; known are {', '.join(sorted(_LOADERS))}")
    try:
        return getattr(importlib.import_module(module).Credentials, make)(content, scopes=[SCOPE])
    except (GoogleAuthError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CredentialsError(str(error)) from error


@functools.lru_cache(maxsize=4)
def _google_auth(file: Path, _changed: int) -> _GoogleAuth:
    """Return the provider shared by a process's job dirs; one token serves all while the file is unchanged."""
    return _GoogleAuth(file)


def _file() -> Path | None:
    """Return the file of Application Default Credentials, as google-auth finds it. Raises CredentialsError."""
    named = os.environ.get(_FILE)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise CredentialsError(f"{_FILE}={named}: there is no such file: correct it, or unset it and log in")
        return path
    folder = os.environ.get("CLOUDSDK_CONFIG")
    usual = (Path(folder) if folder else Path("~/.config/gcloud")).expanduser() / "application_default_credentials.json"
    return usual if usual.is_file() else None


def _type_of(file: Path) -> str:
    """Return the type in a credentials file. Raises CredentialsError."""
    try:
        return str(json.loads(file.read_bytes())["type"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CredentialsError(f"{file} holds no Google credentials: {error!r}") from error


def _check_key(file: Path) -> None:
    """Check a key file, as obstore's error would name neither the file nor the remedy. Raises CredentialsError."""
    content = json.loads(file.read_bytes())
    lacks = [
        name
        for name in ("client_email", "private_key")
        if content["type"] == "service_account" and not content.get(name)
    ]
    if lacks:
        advice = "get a new one (gcloud iam service-accounts keys create)"
        raise CredentialsError(f"the key in {file} cannot be used, it has no {' and no '.join(lacks)}: {advice}")


def _is_no_machine() -> bool:
    """Return whether the environment declares that this is not a Google Cloud machine (google-auth's variable)."""
    return os.environ.get("NO_GCE_CHECK", "").lower() == "true"


def _has_google_auth() -> bool:
    try:
        return importlib.util.find_spec("google.auth") is not None and importlib.util.find_spec("requests") is not None
    except ModuleNotFoundError:  # there is no package `google`
        return False
