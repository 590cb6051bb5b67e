"""What is Blob Storage's own in a job dir: which account, whose credentials are used, what its refusals mean.

Credentials come from where Azure's own tools find them. Keys, shared access signatures, an application's secret, a
federated token and a machine's managed identity are read by obstore itself; what only a login on this computer says
(`az login` and the like) by azure-identity, which is there wherever Azure's own clients are, else by `az` itself.
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
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore

from .access import CredentialsError, code_of, is_loopback, unreachable

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from obstore.store import AzureConfig, AzureCredential, ClientConfig, ObjectStore, RetryConfig

    from .azure_deletions import Deletions

log = logging.getLogger("cloudgpu.job_dir")

SCOPE = "https://storage.azure.com/.default"
ACCOUNT = "AZURE_STORAGE_ACCOUNT"
"""The variable of Azure's own tools for a URL that names no account."""
ENDPOINT = "AZURE_STORAGE_ENDPOINT"
"""obstore's variable for a store of one's own, with the account in its path: `http://127.0.0.1:10000/account`."""

_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_KEY")
_GIVEN = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_TOKEN", "AZURE_CREDENTIAL_TYPE")
"""Variables of obstore's own that leave nothing to be found."""
_SECRETS = ("AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
_ENDPOINT_NAMES = (ENDPOINT, "AZURE_ENDPOINT")
_PROCESS_S = 20
_FRESH_S = 300.0
_NAME = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")

NO_CREDENTIALS = (
    "no Azure credentials were found: log in (az login), or set AZURE_TENANT_ID, AZURE_CLIENT_ID and "
    "AZURE_CLIENT_SECRET, or AZURE_STORAGE_KEY"
)
_NO_LOGIN = f"{NO_CREDENTIALS}. Logins are read by azure-identity: pip install 'cloudgpu[azure]'"

_REFUSED = "no Azure credentials can be had: the metadata service gives no token"
_ELSEWHERE = "Elsewhere than on Azure's machines, log in (az login), and unset AZURE_CLIENT_ID"

ADVICE: Mapping[str, str] = {
    "ContainerNotFound": "there is no container of this name: create it (az storage container create), or correct the "
    "name",
    "ContainerBeingDeleted": "the container is being deleted: choose another",
    "ResourceNotFound": "there is no such container or account: correct the name",
    "AuthorizationFailure": "the storage account's firewall does not let this address in, or access is denied",
    "AuthorizationPermissionMismatch": "access denied: what these credentials must be allowed to do is in "
    "docs/azure-permissions.md; a role that was just given takes up to ten minutes",
    "InsufficientAccountPermissions": "access denied: this shared access signature or key does not allow it",
    "AuthenticationFailed": "Blob Storage does not accept these credentials: log in again, or correct the key",
    "InvalidAuthenticationInfo": "Blob Storage does not accept these credentials: log in again, or correct the key",
    "NoAuthenticationInformation": "Blob Storage was asked without credentials: log in (az login)",
    "KeyBasedAuthenticationNotPermitted": "the storage account allows no keys: unset AZURE_STORAGE_KEY, and log in "
    "(az login)",
    "PublicAccessNotPermitted": "Blob Storage was asked without credentials: log in (az login)",
    "AccountIsDisabled": "the storage account is disabled: see its subscription's billing",
    "InvalidResourceName": "this cannot be a container's name: correct it",
    "ServerBusy": "the storage account has too many requests for the moment",
    "BlobImmutableDueToPolicy": "a retention policy of the container lets nothing be replaced or deleted: "
    "choose another",
}
"""Code of Blob Storage's answer -> what is wrong and what to do. Codes: "Blob Storage error codes", and common ones."""

_ROLE = {"reading": "read", "looking": "read", "listing": "read", "deleting": "delete", "copying": "write"}
"""What is being done -> the data action it takes, of Microsoft.Storage/…/containers/blobs; else `write`."""
_PROVIDER = re.compile(r"External Azure credential provider:? \w*:?\s*(.*)")
_TRIED = re.compile(r"\s+\w+Credential: ")
_IDENTITY = re.compile(r"/metadata/identity/oauth2/token")
_NO_HOST = re.compile(r"dns error|failed to lookup address")


class _Connection(TypedDict, total=False):
    """Arguments for obstore's AzureStore."""

    container_name: str
    prefix: str | None
    config: AzureConfig
    client_options: ClientConfig
    credential_provider: Callable[[], AzureCredential]


class BlobStorage:
    """Azure's Blob Storage: a Service."""

    rewrite_s = 0.0
    copy_s = 120.0
    """It may answer before it has copied: the copy has no content until then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._single: Deletions | None = None
        """Deletes blobs one by one, once the store has refused a batch, in which obstore sends every deletion."""

    def portable(self) -> str:
        return complete(self._url)

    def path(self) -> str:
        return parts(complete(self._url))[2]

    def connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        return AzureStore(retry_config=retry, **_connection(self._url, client))

    def delete(self, connection: ObjectStore, path: str) -> None:
        if self._single is not None:
            self._single.delete(path)
            return
        try:
            obstore.delete(connection, path)
        except BaseError as error:
            from . import azure_deletions  # loads http

            if not azure_deletions.is_batch_refused(str(error)):
                raise
            assert isinstance(connection, AzureStore)  # noqa: S101 - as connect() makes them
            single = azure_deletions.Deletions(self._url, connection)
            single.delete(path)
            log.warning(
                "%s: Blob Storage refuses batches of deletions: objects are deleted one by one from now on", self._url
            )
            self._single = single

    def is_elsewhere(self, message: str) -> bool:  # noqa: ARG002 - the protocol's
        return False

    def explain(self, message: str, doing: str) -> str:
        return _explain(self._url, message, doing)


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
    """Return the URL with the account in it: it then means the same on every machine. Raises CredentialsError."""
    container, account, prefix = parts(url)
    account = account or os.environ.get(ACCOUNT) or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or ""
    if not _NAME.fullmatch(account):
        raise CredentialsError(
            f"the storage account is not known: write az://{container}@ACCOUNT/{prefix}, or set {ACCOUNT}"
        )
    return f"az://{container}@{account}" + (f"/{prefix}" if prefix else "")


def endpoint() -> str | None:
    """The store of one's own that the environment names. Raises CredentialsError: plain http leaves no machine."""
    given = next((os.environ[name] for name in _ENDPOINT_NAMES if os.environ.get(name)), "").rstrip("/")
    if not given:
        return None
    found = urlsplit(given)
    if found.scheme != "https" and not (found.scheme == "http" and is_loopback(found.hostname or "")):
        raise CredentialsError(f"{ENDPOINT}={given}: plain http is spoken with this very machine only, or use https://")
    return given


def _connection(url: str, client: ClientConfig) -> _Connection:
    """Return how to reach the container of an az:// URL, without a request. Raises CredentialsError."""
    container, account, prefix = parts(complete(url))
    own = endpoint()
    config: AzureConfig = {"account_name": account}
    if own is not None:
        config["endpoint"] = own
    plain: ClientConfig = {"allow_http": own is not None and own.startswith("http://")}
    found: _Connection = {"container_name": container, "prefix": prefix or None, "config": config}
    found["client_options"] = client | plain
    _authorize(found, config)
    return found


def _authorize(found: _Connection, config: AzureConfig) -> None:
    """Say whose credentials are used, in the order in which Azure's own command line takes them."""
    if has_key():
        config["account_key"] = _first_of(_KEYS)
    elif _first_of(_GIVEN) or _is_application():
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
    """Return whether the account's key is used."""
    return bool(_first_of(_KEYS))


def shared_access_signature() -> str:
    """Return the one that the environment has, as the query of a URL; "": none."""
    return _first_of(_GIVEN[:2]).removeprefix("?")


def is_managed_identity() -> bool:
    """Return whether the identity of this machine is used: there is a client id, and nothing else."""
    return bool(os.environ.get("AZURE_CLIENT_ID")) and not (has_key() or _first_of(_GIVEN) or _is_application())


def login_token() -> str:
    """Return a token for Blob Storage that azure-identity finds. Raises CredentialsError."""
    if not _has_azure_identity():
        raise CredentialsError(_NO_LOGIN)
    return _login().token()


def _explain(url: str, message: str, doing: str) -> str:
    """Return what Blob Storage's or obstore's whole message means to people; by default its first line.

    `doing` begins with what is being done, such as "reading job.json".
    """
    code = code_of(message)
    if code == "AuthorizationPermissionMismatch":
        action = _ROLE.get(doing.partition(" ")[0], "write")
        return f"{ADVICE[code]} ({code}: …/containers/blobs/{action})"
    if code in ADVICE:
        return f"{ADVICE[code]} ({code})"
    return _without_code(url, message) or message.partition("\n")[0]


def _without_code(url: str, message: str) -> str:
    """Return what is wrong where Blob Storage has not said it; "": that is not known."""
    provider, address = _PROVIDER.search(message), unreachable(message)
    if provider:
        return f"no Azure credentials can be had: {provider[1]}"
    if _IDENTITY.search(message):
        return f"{_REFUSED}. {_ELSEWHERE}"
    if address and _NO_HOST.search(message):
        return f"{address} is not known to the network: is there a storage account {parts(complete(url))[1]}?"
    return f"{address} cannot be reached from here: check the network, {ENDPOINT} and proxies" if address else ""


class _Login:
    """Tokens by azure-identity, cached until they expire. It reads everything that Azure's own tools leave behind, and
    opens no browser."""

    def __init__(self) -> None:
        from azure.identity import DefaultAzureCredential

        # What it warns of is in what it raises.
        logging.getLogger("azure.identity").setLevel(logging.ERROR)
        self._lock = threading.Lock()
        self._token: AccessToken | None = None
        self._credential = DefaultAzureCredential(
            exclude_interactive_browser_credential=True, process_timeout=_PROCESS_S
        )

    def __call__(self) -> AzureCredential:
        token = self._fresh()
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    def token(self) -> str:
        """Return the bearer token alone. Raises CredentialsError."""
        return self._fresh().token

    def _fresh(self) -> AccessToken:
        with self._lock:  # `az` takes a second for each answer, and is asked anew each time
            if self._token is None or self._token.expires_on - time.time() < _FRESH_S:
                self._token = self._ask()
            return self._token

    def _ask(self) -> AccessToken:
        """Raises CredentialsError, with what each of the places where a login may be has said."""
        from azure.core.exceptions import ClientAuthenticationError

        try:
            return self._credential.get_token(SCOPE)
        except ClientAuthenticationError as error:
            reasons = [line.strip() for line in str(error).splitlines() if _TRIED.match(line)]
            raise CredentialsError(f"{NO_CREDENTIALS} ({'; '.join(reasons) or error})") from error


@functools.lru_cache(maxsize=1)
def _login() -> _Login:
    """One for all job dirs of a process: a token is asked for once."""
    return _Login()


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
