"""Client of the job dir's bucket in Cloud Storage, authenticated by the machine's service account."""

# ruff: noqa: S310 - all URLs are of the metadata server or Cloud Storage

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common import ErrorResponse, ask
else:
    from common import ErrorResponse, ask

PASSING = ("rateLimitExceeded", "userRateLimitExceeded", "resourceNotReady")
"""Error codes of the Compute Engine API after which a call may be retried."""


def metadata(path: str, timeout: float = 5.0) -> str:
    """Return a value of the metadata server by its path, e.g. `instance/id`. Raises OSError.

    The server's IP address is used, so that no DNS is needed.
    """
    host = os.environ.get("GCE_METADATA_HOST") or "169.254.169.254"
    url = f"http://{host}/computeMetadata/v1/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        return ask(request, timeout).decode()
    except http.client.HTTPException as error:
        raise OSError(f"the metadata server's answer is broken: {error!r}") from error


def token() -> str:
    """Return an access token of the machine's service account. Raises OSError."""
    return str(json.loads(metadata("instance/service-accounts/default/token"))["access_token"])


def send(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float | None = None,
) -> bytes:
    """Send a request to a Google API and return the body. Raises OSError; ErrorResponse for an error response."""
    sent = {**(headers or {}), "authorization": f"Bearer {token()}"}
    try:
        return ask(urllib.request.Request(url, data=body, headers=sent, method=method), timeout)
    except urllib.error.HTTPError as error:
        raise ErrorResponse(error.code, error.read(65_536).decode(errors="replace")) from error


class Bucket:
    """Client of one bucket, by the XML API, in which objects are plain paths."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.name, _, self.prefix = record["job_dir"].partition("://")[2].partition("/")
        self.base = (record["endpoint"] or "https://storage.googleapis.com").rstrip("/")

    def get(self, key: str) -> bytes:
        return send("GET", self.address(key))

    def create(self, key: str, body: bytes) -> bool:
        """Create an object unless it exists; return whether it was created. Raises OSError."""
        headers = {"x-goog-if-generation-match": "0", "content-type": "application/octet-stream"}
        try:
            send("PUT", self.address(key), body, headers)
        except ErrorResponse as error:
            if error.status != 412:
                raise
            return False
        return True

    def address(self, key: str) -> str:
        whole = "/".join(part for part in (self.prefix, key) if part)
        return f"{self.base}/{self.name}/{urllib.parse.quote(whole, safe='/~')}"
