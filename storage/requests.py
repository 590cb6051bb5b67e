"""obstore requests that are the same for all stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import NotModifiedError

from .errors import RecordError
from .store import Entry

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore


def get(connection: ObjectStore, path: str, most: int | None, name: str) -> bytes:
    """Return an object's bytes. Raises RecordError, before reading, if there are more than `most`.

    `name`: the object's name in the error.
    """
    found = obstore.get(connection, path)
    if most is not None:
        check_size(name, found.meta["size"], most)
    return bytes(found.bytes())


def check_size(name: str, size: int, most: int) -> None:
    """Raise RecordError if an object is too long."""
    if size > most:
        raise RecordError(f"{name} has {size} bytes, {most} at most are allowed")


def get_if_changed(connection: ObjectStore, path: str, etag: str, most: int) -> tuple[bytes, str] | None:
    """Return content and ETag, or None if the object still has this ETag. Raises ValueError if too long."""
    options: GetOptions = {"if_none_match": etag} if etag else {}
    try:
        found = obstore.get(connection, path, options=options)
    except NotModifiedError:
        return None
    if found.meta["size"] > most:
        raise ValueError(f"it has {found.meta['size']} bytes, at most {most} are expected")
    return bytes(found.bytes()), found.meta["e_tag"] or ""


def get_range(connection: ObjectStore, path: str, start: int, end: int, etag: str) -> bytes:
    """Return the bytes from `start` up to `end`. With an `etag`, raises an error if the object has another one."""
    if start == end:
        return b""
    options: GetOptions = {"range": (start, end)}
    if etag:
        options["if_match"] = etag
    return bytes(obstore.get(connection, path, options=options).bytes())


def stream(connection: ObjectStore, path: str) -> Iterator[bytes]:
    """Start to read an object; return an iterator of its pieces."""
    return iter(obstore.get(connection, path).stream(min_chunk_size=1 << 20))


def entries(connection: ObjectStore, prefix: str, offset: str | None, folder: str = "") -> Iterator[Entry]:
    """Yield the objects of a listing; `folder` is removed from their keys."""
    for batch in obstore.list(connection, prefix, offset=offset, chunk_size=1_000):
        for meta in batch:
            yield Entry.of(meta, folder)
