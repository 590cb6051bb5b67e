"""Connections to buckets, which any number of job dirs may share.

A connection keeps sockets, TLS settings and credentials: one for each job of a supervisor would be 0.1 MB and one open
socket a job.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from .store import Kind

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


class Service(Protocol):
    """One kind of object store, made of the URL of a bucket or of a folder in it."""

    @property
    def rewrite_s(self) -> float:
        """Seconds to wait before an object is written again."""

    @property
    def copy_s(self) -> float:
        """Seconds after which a copy is complete, at most, although it was answered; 0: the answer says that it is."""

    def portable(self) -> str:
        """Return the URL with all in it that this computer's environment adds to it. Raises CredentialsError."""

    def path(self) -> str:
        """Return the folder's path in its bucket, without `/` at its ends. Raises CredentialsError or ValueError."""

    def connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        """Open a connection to the bucket. Sends no request. Raises CredentialsError."""

    def delete(self, connection: ObjectStore, path: str) -> None:
        """Delete an object of the bucket."""

    def is_elsewhere(self, message: str) -> bool:
        """Return whether a request failed because the bucket is in another region, which is then known."""

    def explain(self, message: str, doing: str) -> str:
        """Return what a failure means to people. `doing` begins with a verb, such as "reading job.json"."""


class Bucket:
    """The connections to one bucket; each is made when it is needed first. Threads may share it."""

    def __init__(self, url: str, service: Callable[[str], Service]) -> None:
        """`url`: of the bucket, or of any folder in it."""
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._service = service(self.url)
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
        retry: RetryConfig = {"max_retries": _RETRIES, "retry_timeout": datetime.timedelta(seconds=_RETRY_S[kind])}
        return self._service.connect(_CLIENTS[kind], retry)
