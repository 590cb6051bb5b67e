"""The job dir's container in Blob Storage, asked with the machine's managed identity."""

# ruff: noqa: S310 - every address is the metadata server's, Resource Manager's or Blob Storage's

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
    from .common import Refused, ask
else:
    from common import Refused, ask

METADATA = "CLOUDGPU_AZURE_METADATA"
"""The metadata service, for tests: Azure's own libraries have no variable for it."""
VERSION = "2023-11-03"
"""Of Blob Storage's REST API."""


def metadata(path: str, query: dict[str, str], timeout: float = 5.0) -> str:
    """From the instance metadata service, by a path such as `instance/compute/name`. Raises OSError."""
    base = (os.environ.get(METADATA) or "http://169.254.169.254").rstrip("/")
    url = f"{base}/metadata/{path}?{urllib.parse.urlencode(query)}"
    try:
        return ask(urllib.request.Request(url, headers={"Metadata": "true"}), timeout).decode()
    except http.client.HTTPException as error:
        raise OSError(f"the metadata service's answer is broken: {error!r}") from error


def token(identity: str, audience: str) -> str:
    """An access token of the machine's managed identity, by its client id. Raises OSError, ValueError, LookupError."""
    query = {"api-version": "2018-02-01", "resource": audience, "client_id": identity}
    return str(json.loads(metadata("identity/oauth2/token", query, timeout=15.0))["access_token"])


def send(request: urllib.request.Request, bearer: str, timeout: float | None = None) -> bytes:
    """What one of Azure's APIs answers. Raises OSError: Refused, where it is an answer."""
    request.add_header("Authorization", f"Bearer {bearer}")
    try:
        return ask(request, timeout)
    except urllib.error.HTTPError as error:
        body = error.read(65_536).decode(errors="replace")
        raise Refused(error.code, body, error.headers.get("Retry-After")) from error


class Bucket:
    """One container of a storage account."""

    def __init__(self, record: dict[str, Any]) -> None:
        where, _, self.prefix = record["job_dir"].partition("://")[2].partition("/")
        self.container, _, account = where.partition("@")
        self.identity = str(record["identity"])
        self.base = (record["endpoint"] or f"https://{account}.blob.core.windows.net").rstrip("/")

    def get(self, key: str) -> bytes:
        return self.send("GET", key)

    def create(self, key: str, body: bytes) -> bool:
        """Write it, unless there is such an object already; whether there was none."""
        try:
            self.send("PUT", key, body, {"If-None-Match": "*", "x-ms-blob-type": "BlockBlob"})
        except Refused as error:
            if error.code != "BlobAlreadyExists":
                raise
            return False
        return True

    def send(self, method: str, key: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        """Raises OSError."""
        sent = {"x-ms-version": VERSION, "x-ms-date": formatdate(usegmt=True), **(headers or {})}
        request = urllib.request.Request(self.address(key), data=body, headers=sent, method=method)
        return send(request, token(self.identity, "https://storage.azure.com/"))

    def address(self, key: str) -> str:
        whole = "/".join(part for part in (self.prefix, key) if part)
        return f"{self.base}/{self.container}/{urllib.parse.quote(whole, safe='/~')}"
