"""Folders in buckets as stores, for any Service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError

from . import requests
from .access import CredentialsError, code_of
from .buckets import Bucket
from .errors import opening
from .store import UPLOADS, Entry, Kind

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from .buckets import Service

RENEW_S = 10.0
"""Age in seconds below which renew() keeps the connections: limits reconnects when many job dirs fail."""
# seconds for which an absence in a listing is trusted; an object created since is still read with status 200
_HIDDEN_S = 600.0
_HIDDEN_KEYS = 1_000  # maximum number of remembered keys


class BucketStore:
    """A folder in a bucket."""

    folder: Path | None = None

    def __init__(self, url: str, service: Callable[[str], Service], bucket: Bucket | None, *, make: bool) -> None:
        """Open the folder. `bucket`: connections to share; None: this store opens its own."""
        self.url, self.make = url, make
        self._service = service(url)
        self.min_rewrite_s, self.max_copy_s = self._service.min_rewrite_s, self._service.max_copy_s
        self._hidden: dict[str, float] = {}
        """Key missing in a listing -> monotonic time until which a refused read of it counts as a missing object."""
        with opening(url):
            self._inside = _inside(self._service.path())
            self._bucket = bucket or Bucket(url, service)
            self._bucket.store()

    @property
    def name(self) -> str:
        return self._inside.rstrip("/").rpartition("/")[2]

    def renew(self) -> None:
        self._bucket.reconnect(RENEW_S)

    def prepare(self) -> None:
        """Do nothing: a bucket has no folders."""

    def put(self, key: str, data: bytes | Path, kind: Kind) -> None:
        obstore.put(self._connection(kind), self._at(key), data)

    def upload(self, key: str, pieces: Iterable[memoryview], part: int) -> None:
        connection = self._connection("upload")
        obstore.put(connection, self._at(key), pieces, chunk_size=part, max_concurrency=UPLOADS)

    def create(self, key: str, data: bytes) -> None:
        obstore.put(self._connection(), self._at(key), data, mode="create")

    def copy(self, key: str, to: str) -> None:
        obstore.copy(self._connection("upload"), self._at(key), self._at(to))

    def get(self, key: str, most: int | None) -> bytes:
        with self._finding(key):
            return requests.get(self._connection(), self._at(key), most, f"{self.url}/{key}")

    def get_if_changed(self, key: str, etag: str, most: int) -> tuple[bytes, str] | None:
        with self._finding(key):
            return requests.get_if_changed(self._connection(), self._at(key), etag, most)

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
        with self._finding(key):
            return requests.get_range(self._connection("download"), self._at(key), start, end, etag)

    def stream(self, key: str) -> Iterator[bytes]:
        with self._finding(key):
            return requests.stream(self._connection("download"), self._at(key))

    def entry(self, key: str) -> Entry:
        with self._finding(key):
            return Entry.of(obstore.head(self._connection(), self._at(key)), self._inside)

    def entries(self, prefix: str, after: str | None) -> Iterator[Entry]:
        offset = None if after is None else self._at(after)
        return requests.entries(self._connection(), self._under(prefix), offset, self._inside)

    def folders(self, prefix: str) -> list[str]:
        listed = obstore.list_with_delimiter(self._connection(), self._under(prefix))
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    def files(self, prefix: str) -> dict[str, int]:
        begins = f"{prefix.strip('/')}/"
        sizes = {entry.key.removeprefix(begins): entry.size for entry in self.entries(prefix, None)}
        return {name: size for name, size in sizes.items() if "/" not in name}

    def delete(self, key: str) -> None:
        self._service.delete(self._connection(), self._at(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._service.delete_many(self._connection(), [self._at(key) for key in keys])

    def message_of(self, error: Exception) -> str:
        """Return the whole message, because S3's error code comes after a line break of its XML.

        A response to HEAD has no code, so another request is sent to obtain it.
        """
        text = str(error).strip()
        if code_of(text) or "Error performing HEAD" not in text:
            return text
        try:
            obstore.list_with_delimiter(self._bucket.store(), self._inside)
        except (BaseError, OSError, ValueError, CredentialsError) as found:
            return str(found).strip()
        return text

    def follow_region(self, message: str) -> bool:
        if not self._service.find_region_after(message):
            return False
        self._bucket.reconnect()
        return True

    def explain(self, message: str, doing: str) -> str:
        return self._service.explain(message, doing)

    def _connection(self, kind: Kind = "small") -> ObjectStore:
        with opening(self.url):
            return self._bucket.store(kind)

    def _at(self, key: str) -> str:
        """Return an object's key in the whole bucket."""
        return f"{self._inside}{key}"

    def _under(self, prefix: str) -> str:
        """Return the prefix in the whole bucket for a folder in this store."""
        return self._at(f"{prefix.rstrip('/')}/") if prefix else self._inside

    @contextlib.contextmanager
    def _finding(self, key: str) -> Iterator[None]:
        """Raise FileNotFoundError for a refusal that means a missing object: stores answer 403 to reads of missing
        objects by callers that may not list the whole bucket."""
        try:
            yield
        except PermissionDeniedError as error:
            if not self._hides_missing(key):
                raise
            raise FileNotFoundError(key) from error

    def _hides_missing(self, key: str) -> bool:
        """List the folder of an object whose read was refused; return True if the object is missing.

        A listing costs a dozen times as much as a GET, so for a key that is polled it is made once in _HIDDEN_S.
        """
        now, connection = time.monotonic(), self._connection()
        if now < self._hidden.get(key, 0.0):
            return True
        try:
            listed = obstore.list_with_delimiter(connection, self._at(key).rpartition("/")[0])["objects"]
        except (BaseError, OSError):
            return False
        if any(meta["path"] == self._at(key) for meta in listed):
            return False
        if len(self._hidden) >= _HIDDEN_KEYS:
            self._hidden.clear()
        self._hidden[key] = now + _HIDDEN_S
        return True


def _inside(path: str) -> str:
    """Return the prefix of keys in a folder of a bucket, e.g. `jobs/digits-abc/`; "" for the whole bucket.

    Raises ValueError for a path that no key can begin with.
    """
    if path and not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("a part of its path is empty, `.` or `..`")
    return f"{path}/" if path else ""
