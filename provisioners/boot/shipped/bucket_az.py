"""Client of the job dir's container in Blob Storage, authenticated by the machine's managed identity."""

# ruff: noqa: S310 - all URLs are of the metadata service, Resource Manager or Blob Storage

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common import ErrorResponse, ask
else:
    from common import ErrorResponse, ask

METADATA = "CLOUDGPU_AZURE_METADATA"
"""Environment variable with the URL of the metadata service, for tests; Azure's libraries have no such variable."""
VERSION = "2023-11-03"
"""Version of Blob Storage's REST API."""


def metadata(path: str, query: dict[str, str], timeout: float = 5.0) -> str:
    """Return a value of the instance metadata service by its path, e.g. `instance/compute/name`. Raises OSError."""
    base = (os.environ.get(METADATA) or "http://169.254.169.254").rstrip("/")
    url = f"{base}/metadata/{path}?{urllib.parse.urlencode(query)}"
    try:
        return ask(urllib.request.Request(url, headers={"Metadata": "true"}), timeout).decode()
    except http.client.HTTPException as error:
        raise OSError(f"the metadata service's answer is broken: {error!r}") from error


def token(identity: str, audience: str) -> str:
    """Return an access token of the managed identity with this client id. Raises OSError, ValueError, LookupError."""
    query = {"api-version": "2018-02-01", "resource": audience, "client_id": identity}
    return str(json.loads(metadata("identity/oauth2/token", query, timeout=15.0))["access_token"])


def send(request: urllib.request.Request, bearer: str, timeout: float | None = None) -> bytes:
    """Send a request to an Azure API and return the body. Raises OSError; ErrorResponse for an error response."""
    request.add_header("Authorization", f"Bearer {bearer}")
    try:
        return ask(request, timeout)
    except urllib.error.HTTPError as error:
        body = error.read(65_536).decode(errors="replace")
        raise ErrorResponse(error.code, body, error.headers.get("Retry-After")) from error


class Bucket:
    """Client of one container of a storage account."""

    def __init__(self, record: dict[str, Any]) -> None:
        where, _, self.prefix = record["job_dir"].partition("://")[2].partition("/")
        self.container, _, account = where.partition("@")
        self.identity = str(record["identity"])
        self.base = (record["endpoint"] or f"https://{account}.blob.core.windows.net").rstrip("/")

    def get(self, key: str) -> bytes:
        return self.send("GET", key)

    def create(self, key: str, body: bytes) -> bool:
        """Create an object unless it exists; return whether it was created. Raises OSError."""
        try:
            self.send("PUT", key, body, {"If-None-Match": "*", "x-ms-blob-type": "BlockBlob"})
        except ErrorResponse as error:
            if error.code != "BlobAlreadyExists":
                raise
            return False
        return True

    def send(self, method: str, key: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        """Send a request for an object and return the body. Raises OSError."""
        sent = {"x-ms-version": VERSION, "x-ms-date": formatdate(usegmt=True), **(headers or {})}
        request = urllib.request.Request(self.address(key), data=body, headers=sent, method=method)
        return send(request, token(self.identity, "https://storage.azure.com/"))

    def address(self, key: str) -> str:
        whole = "/".join(part for part in (self.prefix, key) if part)
        return f"{self.base}/{self.container}/{urllib.parse.quote(whole, safe='/~')}"
