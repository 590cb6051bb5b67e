"""Storage account of an az:// URL and its credentials, from the same sources as Azure's own tools.

obstore itself reads keys, shared access signatures, an application's secret, a federated token and a machine's
managed identity. Logins on this computer (`az login` etc.) are read by azure-identity, which is installed with
Azure's clients, or else by `az`.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from .access import CredentialsError, is_loopback

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from obstore.store import AzureConfig, AzureCredential, ClientConfig

log = logging.getLogger("cloudgpu.job_dir")

SCOPE = "https://storage.azure.com/.default"
ACCOUNT = "AZURE_STORAGE_ACCOUNT"
"""Environment variable of Azure's tools with the storage account for URLs that name none."""
ENDPOINT = "AZURE_STORAGE_ENDPOINT"
"""Environment variable of obstore with a custom endpoint that includes the account:
`http://127.0.0.1:10000/account`."""

_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_KEY")
_COMPLETE_CREDENTIALS = (
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_CREDENTIAL_TYPE",
)
"""Environment variables of obstore, each of which provides complete credentials."""
_SECRETS = ("AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
_ENDPOINT_NAMES = (ENDPOINT, "AZURE_ENDPOINT")
_PROCESS_S = 20
_FRESH_S = 300.0
_TRIED = re.compile(r"\s+\w+Credential: ")
_NAME = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")

NO_CREDENTIALS = (
    "no Azure credentials were found: log in (az login), or set AZURE_TENANT_ID, AZURE_CLIENT_ID and "
    "AZURE_CLIENT_SECRET, or AZURE_STORAGE_KEY"
)
_NO_LOGIN = f"{NO_CREDENTIALS}. Logins are read by azure-identity: pip install 'cloudgpu[azure]'"


class Connection(TypedDict, total=False):
    """Arguments for obstore's AzureStore."""

    container_name: str
    prefix: str | None
    config: AzureConfig
    client_options: ClientConfig
    credential_provider: Callable[[], AzureCredential]


def parts(url: str) -> tuple[str, str, str]:
    """Return container, account and prefix of an az:// URL; the account may be "". Raises CredentialsError."""
    where, _, prefix = url.partition("://")[2].partition("/")
    container, _, account = where.partition("@")
    if not _CONTAINER.fullmatch(container):
        raise CredentialsError(f"{container!r} cannot be a container's name: expected 3 to 63 of a-z, 0-9 and single -")
    if account and not _NAME.fullmatch(account):
        raise CredentialsError(f"{account!r} cannot be a storage account's name: expected 3 to 24 of a-z and 0-9")
    return container, account, prefix.strip("/")


def complete(url: str) -> str:
    """Return the URL including the account, so that it is valid on every machine. Raises CredentialsError."""
    container, account, prefix = parts(url)
    account = account or os.environ.get(ACCOUNT) or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or ""
    if not _NAME.fullmatch(account):
        raise CredentialsError(
            f"the storage account is not known: write az://{container}@ACCOUNT/{prefix}, or set {ACCOUNT}"
        )
    return f"az://{container}@{account}" + (f"/{prefix}" if prefix else "")


def endpoint() -> str | None:
    """Return the custom endpoint of the environment. Raises CredentialsError for plain http to another machine."""
    given = next((os.environ[name] for name in _ENDPOINT_NAMES if os.environ.get(name)), "").rstrip("/")
    if not given:
        return None
    found = urlsplit(given)
    if found.scheme != "https" and not (found.scheme == "http" and is_loopback(found.hostname or "")):
        raise CredentialsError(f"{ENDPOINT}={given}: plain http is allowed for this machine only; use https://")
    return given


def connection(url: str, client: ClientConfig) -> Connection:
    """Return the arguments to connect to the container of an az:// URL, without a request. Raises CredentialsError."""
    container, account, prefix = parts(complete(url))
    own = endpoint()
    config: AzureConfig = {"account_name": account}
    if own is not None:
        config["endpoint"] = own
    plain: ClientConfig = {"allow_http": own is not None and own.startswith("http://")}
    found: Connection = {"container_name": container, "prefix": prefix or None, "config": config}
    found["client_options"] = client | plain
    _authorize(found, config)
    return found


def _authorize(found: Connection, config: AzureConfig) -> None:
    """Select the credentials, in the same order as Azure's own command line."""
    if has_key():
        config["account_key"] = _first_of(_KEYS)
    elif _first_of(_COMPLETE_CREDENTIALS) or _is_application():
        return
    elif is_managed_identity():
        config["credential_type"] = "managed_identity"
    elif _has_azure_identity():
        found["credential_provider"] = _login()
    elif shutil.which("az"):
        config["credential_type"] = "azure_cli"
    else:
        raise CredentialsError(_NO_LOGIN)


def has_key() -> bool:
    """Return whether the environment has a key of the storage account, which is then used."""
    return bool(_first_of(_KEYS))


def shared_access_signature() -> str:
    """Return the shared access signature of the environment, as the query of a URL; "": none."""
    return _first_of(_COMPLETE_CREDENTIALS[:2]).removeprefix("?")


def is_managed_identity() -> bool:
    """Return whether this machine's identity is used: the environment has a client id and no other credentials."""
    return bool(os.environ.get("AZURE_CLIENT_ID")) and not (
        has_key() or _first_of(_COMPLETE_CREDENTIALS) or _is_application()
    )


def login_token(scope: str = SCOPE) -> str:
    """Return a token from azure-identity, by default for Blob Storage. Raises CredentialsError."""
    if not _has_azure_identity():
        raise CredentialsError(_NO_LOGIN)
    return _login(scope).token()


class _Login:
    """Provider of tokens from azure-identity, cached until they expire. It reads the logins of all of Azure's own
    tools, and opens no browser."""

    def __init__(self, scope: str) -> None:
        from azure.identity import DefaultAzureCredential

        # Its warnings are repeated in its exceptions.
        logging.getLogger("azure.identity").setLevel(logging.ERROR)
        self._lock, self._scope = threading.Lock(), scope
        self._token: AccessToken | None = None
        self._credential = DefaultAzureCredential(
            exclude_interactive_browser_credential=True,
            process_timeout=_PROCESS_S,
            # Microsoft's list of authorities does not contain a test's authority.
            disable_instance_discovery=is_loopback(urlsplit(os.environ.get("AZURE_AUTHORITY_HOST", "")).hostname or ""),
        )

    def __call__(self) -> AzureCredential:
        token = self._fresh()
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    def token(self) -> str:
        """Return the bearer token alone. Raises CredentialsError."""
        return self._fresh().token

    def _fresh(self) -> AccessToken:
        with self._lock:  # azure-identity runs `az` for each token, which takes a second
            if self._token is None or self._token.expires_on - time.time() < _FRESH_S:
                self._token = self._ask()
            return self._token

    def _ask(self) -> AccessToken:
        """Request a token. Raises CredentialsError, with the error of each source of logins."""
        from azure.core.exceptions import ClientAuthenticationError

        try:
            return self._credential.get_token(self._scope)
        except ClientAuthenticationError as error:
            reasons = [line.strip() for line in str(error).splitlines() if _TRIED.match(line)]
            raise CredentialsError(f"{NO_CREDENTIALS} ({'; '.join(reasons) or error})") from error


@functools.lru_cache(maxsize=2)
def _login(scope: str = SCOPE) -> _Login:
    """Return the provider shared by all job dirs of a process, so that a token is requested only once."""
    return _Login(scope)


def _first_of(names: Sequence[str]) -> str:
    """Return the value of the first of these variables that is set; "": none is."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _is_application() -> bool:
    return bool(os.environ.get("AZURE_CLIENT_ID")) and any(os.environ.get(name) for name in _SECRETS)


def _has_azure_identity() -> bool:
    try:
        return importlib.util.find_spec("azure.identity") is not None
    except ModuleNotFoundError:  # there is no package `azure`
        return False
