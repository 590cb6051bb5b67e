"""The protocol of stores."""

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
"""Requests of an upload that run at the same time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it."""

    key: str
    size: int
    modified: float
    """Epoch seconds, by the store's clock."""
    etag: str = ""
    """Changes with the content; "" where the store has none."""

    @classmethod
    def of(cls, meta: ObjectMeta, folder: str = "") -> Entry:
        """`folder`: how its path begins, which is left out of the key."""
        key = meta["path"].removeprefix(folder)
        return cls(key, meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


class Store(Protocol):
    """One folder in an object store or a file system. Keys are relative, with `/`. Threads may share it.

    Each method sends its request once. It raises obstore's errors or OSError: NotFoundError or FileNotFoundError for a
    missing object, AlreadyExistsError for a create-only write that came second. JobDir translates them, and retries.
    A JobDirError that a store raises itself passes through.
    """

    make: bool
    """True if the first write makes the folder; object stores need none."""

    @property
    def url(self) -> str: ...

    @property
    def folder(self) -> Path | None:
        """The local folder that this is; None in an object store, where requests cost time and money."""

    @property
    def rewrite_s(self) -> float:
        """Seconds to wait before an object is written again."""

    @property
    def copy_s(self) -> float:
        """Seconds after which a copy is complete, at most, although it was answered; 0: the answer says that it is."""

    def renew(self) -> None:
        """Read settings and credentials anew, where that was not done a moment ago."""

    def prepare(self) -> None:
        """Make the folder, as the first write would."""

    def put(self, key: str, data: bytes | Path, kind: Kind) -> None: ...

    def upload(self, key: str, pieces: Iterable[memoryview], part: int) -> None:
        """Write an object in parts of `part` bytes, at most UPLOADS of them at a time."""

    def create(self, key: str, data: bytes) -> None:
        """Write only if nothing has this key."""

    def copy(self, key: str, to: str) -> None: ...

    def get(self, key: str, most: int | None) -> bytes:
        """Return an object's bytes. Raises RecordError, before they are read, if there are more than `most`."""

    def get_if_changed(self, key: str, etag: str, most: int) -> tuple[bytes, str] | None:
        """Return content and ETag, or None if the object still has this ETag. Raises ValueError if it is longer."""

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes: ...

    def stream(self, key: str) -> Iterator[bytes]:
        """Begin to read an object. Each piece may raise what a request raises."""

    def entry(self, key: str) -> Entry: ...

    def entries(self, prefix: str, after: str | None) -> Iterable[Entry]: ...

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders right under a folder, sorted."""

    def files(self, prefix: str) -> Mapping[str, int]:
        """Return the bytes of each object right under a folder, by the last part of its key."""

    def delete(self, key: str) -> None: ...

    def message_of(self, error: Exception) -> str:
        """Return all that the store says of a failure; it may be asked again for that."""

    def has_moved(self, message: str) -> bool:
        """Return whether the request failed because the bucket is elsewhere; it is asked there from now on."""

    def explain(self, message: str, doing: str) -> str:
        """Return what a failure means to people. `doing` begins with a verb, such as "reading job.json"."""
