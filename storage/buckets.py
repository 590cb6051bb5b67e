"""Connections to buckets, shared by any number of job dirs.

A connection keeps sockets, TLS settings and credentials. A separate one for each job of a supervisor would take 0.1
MB and an open socket per job.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from .store import Kind

# `timeout` limits one request, from connecting to the last byte of its response; `read_timeout` limits the time in
# which the server sends nothing. `retry_timeout` counts from the first try, and no try begins after it: it must
# exceed the timeouts, or a hanging request is never retried. Callers retry beyond that by their own rules. Plain
# http is used if an endpoint is set to it; each store's module refuses one on another host.
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


class Service(Protocol):
    """A kind of object store, opened for the URL of a bucket or of a folder in it."""

    @property
    def min_rewrite_s(self) -> float:
        """Minimum seconds between two writes of the same object."""

    @property
    def max_copy_s(self) -> float:
        """Maximum seconds from the response to a copy request until the copy is complete; 0: complete at once."""

    def portable(self) -> str:
        """Return the URL including parts that come from this computer's environment. Raises CredentialsError."""

    def path(self) -> str:
        """Return the folder's path in its bucket, without `/` at its ends. Raises CredentialsError or ValueError."""

    def connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        """Open a connection to the bucket. Sends no request. Raises CredentialsError."""

    def delete(self, connection: ObjectStore, path: str) -> None:
        """Delete an object of the bucket."""

    def delete_many(self, connection: ObjectStore, paths: Sequence[str]) -> None:
        """Delete objects of the bucket in batches. After an error, some of them may be deleted."""

    def find_region_after(self, message: str) -> bool:
        """Return whether a request failed because the bucket is in another region, which is used from now on."""

    def explain(self, message: str, doing: str) -> str:
        """Return the explanation of an error. `doing` begins with a verb, e.g. "reading job.json"."""


class Bucket:
    """The connections to one bucket, opened on first use. Thread-safe."""

    def __init__(self, url: str, service: Callable[[str], Service]) -> None:
        """Prepare connections. `url`: URL of the bucket or of any folder in it."""
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._service = service(self.url)
        self._lock = threading.Lock()
        self._stores: dict[Kind, ObjectStore] = {}
        self._connected = 0.0
        """Monotonic time at which the oldest connection was opened."""

    def store(self, kind: Kind = "small") -> ObjectStore:
        """Return a connection. Raises CredentialsError, BaseError, ValueError or OSError if it cannot be opened."""
        with self._lock:
            if kind not in self._stores:
                if not self._stores:
                    self._connected = time.monotonic()
                self._stores[kind] = self._connect(kind)
            return self._stores[kind]

    def reconnect(self, older_than_s: float = 0.0) -> None:
        """Drop the connections if the oldest has this age; new ones use the current credentials and settings."""
        with self._lock:
            if time.monotonic() - self._connected >= older_than_s:
                self._stores = {}

    def _connect(self, kind: Kind) -> ObjectStore:
        retry: RetryConfig = {"max_retries": _RETRIES, "retry_timeout": datetime.timedelta(seconds=_RETRY_S[kind])}
        return self._service.connect(_CLIENTS[kind], retry)
