"""Protocol that every store of a job dir implements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from obstore import ObjectMeta

Kind = Literal["small", "download", "upload"]
"""Use of a connection: small objects, or large ones in one direction."""
UPLOADS = 4
"""Number of concurrent requests of an upload."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it."""

    key: str
    size: int
    modified: float
    """Epoch seconds of the store's clock."""
    etag: str = ""
    """Entity tag, which changes with the content; "": the store has none."""

    @classmethod
    def of(cls, meta: ObjectMeta, folder: str = "") -> Entry:
        """Create an entry from obstore's metadata. `folder`: prefix to remove from the path."""
        key = meta["path"].removeprefix(folder)
        return cls(key, meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


class Store(Protocol):
    """One folder in an object store or a file system. Keys are relative, with `/`. Thread-safe.

    Methods do not retry. They raise obstore's errors or OSError: NotFoundError or FileNotFoundError for a missing
    object, AlreadyExistsError for a create-only write of an existing one. JobDir converts these and retries. A
    JobDirError of a store is passed on.
    """

    make: bool
    """True if the first write creates the folder; object stores need none."""

    @property
    def url(self) -> str: ...

    @property
    def name(self) -> str:
        """Last part of the folder's path, as requests use it; "" for a whole bucket."""

    @property
    def folder(self) -> Path | None:
        """The local folder; None in an object store, where requests cost time and money."""

    @property
    def min_rewrite_s(self) -> float:
        """Minimum seconds between two writes of the same object."""

    @property
    def max_copy_s(self) -> float:
        """Maximum seconds from the response to a copy request until the copy is complete; 0: complete at once."""

    def renew(self) -> None:
        """Reconnect with the current settings and credentials, unless the connections are new
        (bucket_store.RENEW_S)."""

    def prepare(self) -> None:
        """Create the folder, as the first write would."""

    def put(self, key: str, data: bytes | Path, kind: Kind) -> None: ...

    def upload(self, key: str, pieces: Iterable[memoryview], part: int) -> None:
        """Write an object in parts of `part` bytes, at most UPLOADS of them concurrently."""

    def create(self, key: str, data: bytes) -> None:
        """Write only if no object has this key."""

    def copy(self, key: str, to: str) -> None: ...

    def get(self, key: str, most: int | None) -> bytes:
        """Return an object's bytes. Raises RecordError, before reading, if there are more than `most`."""

    def get_if_changed(self, key: str, etag: str, most: int) -> tuple[bytes, str] | None:
        """Return content and ETag, or None if the object still has this ETag. Raises ValueError if too long."""

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes: ...

    def stream(self, key: str) -> Iterator[bytes]:
        """Start to read an object. Each piece may raise a request's errors."""

    def entry(self, key: str) -> Entry: ...

    def entries(self, prefix: str, after: str | None) -> Iterable[Entry]: ...

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the direct subfolders of a folder, sorted."""

    def files(self, prefix: str) -> Mapping[str, int]:
        """Return name -> bytes of the objects directly in a folder."""

    def delete(self, key: str) -> None: ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects with as few requests as the store allows. After an error, some of them may be deleted."""

    def message_of(self, error: Exception) -> str:
        """Return the store's full message on an error; may send another request to obtain it."""

    def follow_region(self, message: str) -> bool:
        """Return whether the request failed because the bucket is in another region, which is used from now on."""

    def explain(self, message: str, doing: str) -> str:
        """Return the explanation of an error. `doing` begins with a verb, e.g. "reading job.json"."""
