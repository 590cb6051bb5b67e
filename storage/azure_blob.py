"""Azure Blob Storage as a Service: connections, deletions, and explanations of its errors."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import AzureStore

from .access import code_of, unreachable
from .azure_account import ENDPOINT, complete, connection, parts

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from .azure_deletions import Deletions

log = logging.getLogger("cloudgpu.job_dir")

_REFUSED = "no Azure credentials can be had: the metadata service gives no token"
_ELSEWHERE = "Elsewhere than on Azure's machines, log in (az login), and unset AZURE_CLIENT_ID"

ADVICE: Mapping[str, str] = {
    "ContainerNotFound": "there is no container of this name: create it (az storage container create), or correct the "
    "name",
    "ContainerBeingDeleted": "the container is being deleted: choose another",
    "ResourceNotFound": "there is no such container or account: correct the name",
    "AuthorizationFailure": "the storage account's firewall does not let this address in, or access is denied",
    "AuthorizationPermissionMismatch": "access denied: what these credentials must be allowed to do is in "
    "docs/reference/azure-permissions.md; a role that was just given takes up to ten minutes",
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
"""Error code of Blob Storage -> what is wrong and what to do. Source: "Blob Storage error codes", and common codes."""

_ROLE = {"reading": "read", "looking": "read", "listing": "read", "deleting": "delete", "copying": "write"}
"""Verb of the operation -> required data action of Microsoft.Storage/…/containers/blobs; by default `write`."""
_PROVIDER = re.compile(r"External Azure credential provider:? \w*:?\s*(.*)")
_IDENTITY = re.compile(r"/metadata/identity/oauth2/token")
_NO_HOST = re.compile(r"dns error|failed to lookup address")


class BlobStorage:
    """Azure Blob Storage; implements Service."""

    min_rewrite_s = 0.0
    max_copy_s = 120.0
    """Blob Storage may answer before a copy is complete; the copy is empty until then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._single: Deletions | None = None
        """Deletes blobs one by one; set once the store has refused a batch, which is all that obstore sends."""

    def portable(self) -> str:
        return complete(self._url)

    def path(self) -> str:
        return parts(complete(self._url))[2]

    def connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        return AzureStore(retry_config=retry, **connection(self._url, client))

    def delete(self, connection: ObjectStore, path: str) -> None:
        if self._single is not None:
            self._single.delete(path)
            return
        try:
            obstore.delete(connection, path)
        except BaseError as error:
            from . import azure_deletions  # late, as it imports http

            if not azure_deletions.is_batch_refused(str(error)):
                raise
            assert isinstance(connection, AzureStore)  # noqa: S101 - created by connect()
            single = azure_deletions.Deletions(self._url, connection)
            single.delete(path)
            log.warning(
                "%s: Blob Storage refuses batches of deletions: objects are deleted one by one from now on", self._url
            )
            self._single = single

    def delete_many(self, connection: ObjectStore, paths: Sequence[str]) -> None:
        if self._single is None:
            try:
                obstore.delete(connection, paths)
            except BaseError as error:
                from . import azure_deletions  # imports http

                if not (isinstance(error, NotFoundError) or azure_deletions.is_batch_refused(str(error))):
                    raise
            else:
                return
        for path in paths:  # a missing blob ends a batch
            with contextlib.suppress(NotFoundError, FileNotFoundError):
                self.delete(connection, path)

    def find_region_after(self, message: str) -> bool:  # noqa: ARG002 - required by the protocol
        return False

    def explain(self, message: str, doing: str) -> str:
        return _explain(self._url, message, doing)


def _explain(url: str, message: str, doing: str) -> str:
    """Return the explanation of a full message of Blob Storage or obstore; by default its first line.

    `doing` begins with the verb of the operation, e.g. "reading job.json".
    """
    code = code_of(message)
    if code == "AuthorizationPermissionMismatch":
        action = _ROLE.get(doing.partition(" ")[0], "write")
        return f"{ADVICE[code]} ({code}: …/containers/blobs/{action})"
    if code in ADVICE:
        return f"{ADVICE[code]} ({code})"
    return _without_code(url, message) or message.partition("\n")[0]


def _without_code(url: str, message: str) -> str:
    """Return the explanation of an error without a code of Blob Storage; "": unknown."""
    provider, address = _PROVIDER.search(message), unreachable(message)
    if provider:
        return f"no Azure credentials can be had: {provider[1]}"
    if _IDENTITY.search(message):
        return f"{_REFUSED}. {_ELSEWHERE}"
    if address and _NO_HOST.search(message):
        return f"{address} is not known to the network: is there a storage account {parts(complete(url))[1]}?"
    return f"{address} cannot be reached from here: check the network, {ENDPOINT} and proxies" if address else ""
