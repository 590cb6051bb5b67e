"""Connections to buckets, which any number of job dirs may share.

A connection keeps sockets, TLS settings and credentials: one for each job of a supervisor would be 0.1 MB and one open
socket a job.
"""

from __future__ import annotations

import datetime
import threading
import time
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from obstore.store import AzureStore, from_url

from . import azure_blob, gcs, s3

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

Kind = Literal["small", "download", "upload"]
"""Use of a connection: small objects, or large ones in one direction."""

# `timeout` is of one request, from its connecting to the last byte of its answer; `read_timeout` is how long the server
# may send nothing. `retry_timeout` counts from the first try, and no try begins after it: it must exceed the timeouts,
# or a request that hangs is never repeated. Callers retry beyond that by their own rules.
# Plain http is used where an endpoint is set to it; each store's module refuses one on another host.
_SMALL: ClientConfig = {"timeout": "30s", "read_timeout": "10s", "connect_timeout": "5s", "allow_http": True}
_CLIENTS: dict[Kind, ClientConfig] = {
    "small": _SMALL,
    # Many threads read ranges of one object over one slow link.
    "download": _SMALL | {"timeout": "90s"},
    # The server sends nothing while it receives a part of an upload, so there is no read_timeout.
    "upload": {"timeout": "90s", "connect_timeout": "5s", "allow_http": True},
}
_RETRY_S: dict[Kind, int] = {"small": 30, "download": 120, "upload": 120}
_RETRIES = 3


class Bucket:
    """The connections to one bucket; each is made when it is needed first. Threads may share it."""

    def __init__(self, url: str) -> None:
        """`url`: of the bucket, or of any folder in it."""
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._lock = threading.Lock()
        self._stores: dict[Kind, ObjectStore] = {}
        self._connected = 0.0
        """Steady time at which the oldest of them was made."""

    def store(self, kind: Kind = "small") -> ObjectStore:
        """Return a connection. Raises CredentialsError, BaseError, ValueError or OSError if it cannot be made."""
        with self._lock:
            if kind not in self._stores:
                if not self._stores:
                    self._connected = time.monotonic()
                self._stores[kind] = self._connect(kind)
            return self._stores[kind]

    def reconnect(self, older_than_s: float = 0.0) -> None:
        """Make the connections anew, with the settings and credentials of that time, if they have this age."""
        with self._lock:
            if time.monotonic() - self._connected >= older_than_s:
                self._stores = {}

    def _connect(self, kind: Kind) -> ObjectStore:
        client = _CLIENTS[kind]
        retry: RetryConfig = {"max_retries": _RETRIES, "retry_timeout": datetime.timedelta(seconds=_RETRY_S[kind])}
        if self.url.startswith("s3:"):
            return from_url(self.url, client_options=client, retry_config=retry, **s3.connection(self.url))
        if self.url.startswith("gs:"):
            client, retry = gcs.adapt(client, retry)
            return from_url(self.url, client_options=client, retry_config=retry, **gcs.connection())
        return AzureStore(retry_config=retry, **azure_blob.connection(self.url, client))


class Buckets:
    """The buckets of a process that works with many job dirs. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}

    def of(self, url: str) -> Bucket | None:
        """Return the bucket of a folder's URL; None: it is a local folder."""
        if url.startswith("file:"):
            return None
        found = Bucket(url)
        with self._lock:
            return self._buckets.setdefault(found.url, found)


def folder_of(url: str) -> str:
    """Return how keys in a folder of a bucket begin, e.g. `jobs/digits-abc/`; "" for the whole bucket. Raises
    CredentialsError or ValueError for a URL that is wrong."""
    is_azure = url.startswith("az:")
    path = azure_blob.parts(azure_blob.complete(url))[2] if is_azure else unquote(urlsplit(url).path).strip("/")
    if path and not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("a part of its path is empty, `.` or `..`")
    return f"{path}/" if path else ""
