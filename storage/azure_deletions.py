"""Deletion of single blobs if Blob Storage refuses batches; obstore sends every deletion as a batch.

The roles of machines have conditions. It is not documented whether such roles allow batches; they allow the deletion
of single blobs in the job's folder. Standard library and obstore only.
"""

from __future__ import annotations

import datetime
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from email.utils import formatdate
from typing import TYPE_CHECKING

import obstore

from . import azure_account

if TYPE_CHECKING:
    from obstore.store import AzureStore

_REFUSED = re.compile(r"bulk delete request: Error performing POST .*status code: 4(?!08|29)\d\d", re.DOTALL)
_METADATA = "http://169.254.169.254/metadata/identity/oauth2/token"
_METADATA_ENDPOINT = "AZURE_MSI_ENDPOINT"
"""obstore's variable for another address of the metadata service."""
_VERSION = "2023-11-03"
"""Version of Blob Storage's REST API."""
_TIMEOUT_S = 10.0
_SIGNED = datetime.timedelta(minutes=15)
"""Validity of an address that is signed with the account's key; allows for clock skew of minutes."""


def is_batch_refused(message: str) -> bool:
    """Return whether an error of obstore means that a whole batch was refused; single deletions may be permitted."""
    return _REFUSED.search(message) is not None


class Deletions:
    """Deletions in one container."""

    def __init__(self, url: str, store: AzureStore) -> None:
        """Prepare deletions; sends no request. `url`: URL of the container or of a folder in it."""
        self._store = store
        container, account, _ = azure_account.parts(azure_account.complete(url))
        base = azure_account.endpoint() or f"https://{account}.blob.core.windows.net"
        self._container = f"{base}/{container}"

    def delete(self, key: str) -> None:
        """Delete a blob by its key in the container.

        Raises FileNotFoundError, OSError for any other error of the service, and CredentialsError.
        """
        headers = {"x-ms-version": _VERSION, "x-ms-date": formatdate(usegmt=True)}
        if azure_account.has_key():
            address = obstore.sign(self._store, "DELETE", key, _SIGNED)
        else:
            address = f"{self._container}/{urllib.parse.quote(key, safe='/~')}"
            if signature := azure_account.shared_access_signature():
                address += f"?{signature}"
            else:
                headers["Authorization"] = f"Bearer {_token()}"
        try:
            _ask(urllib.request.Request(address, headers=headers, method="DELETE"))  # noqa: S310 - address of Blob Storage
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                raise FileNotFoundError(key) from error
            raise OSError(f"Error performing DELETE: {error}: {error.read(65_536).decode(errors='replace')}") from error


def _token() -> str:
    """Return a token from the environment, the managed identity or a login. Raises OSError, CredentialsError."""
    if given := os.environ.get("AZURE_STORAGE_TOKEN"):
        return given
    if not azure_account.is_managed_identity():
        return azure_account.login_token()
    query = {
        "api-version": "2018-02-01",
        "resource": "https://storage.azure.com/",
        "client_id": os.environ["AZURE_CLIENT_ID"],
    }
    url = f"{os.environ.get(_METADATA_ENDPOINT) or _METADATA}?{urllib.parse.urlencode(query)}"
    answer = _ask(urllib.request.Request(url, headers={"Metadata": "true"}))  # noqa: S310 - address of the metadata service
    return str(json.loads(answer)["access_token"])


def _ask(request: urllib.request.Request) -> bytes:
    """Send a request and return the response's body. Raises OSError, including its subclass HTTPError."""
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return bytes(answer.read())
    except http.client.HTTPException as error:
        raise OSError(f"{request.full_url.partition('?')[0]}: the answer is broken: {error!r}") from error
