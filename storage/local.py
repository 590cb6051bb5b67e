"""Local folders as stores.

Objects are files. Most keys equal their files' names; obstore quotes the others. Listings skip names that no key can
have, e.g. with a line break.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import obstore.store
from obstore.exceptions import BaseError

from . import requests
from .durable import NO_LINK_CODES, NO_LINKS
from .errors import JobDirError, RecordError, first_line, opening
from .store import UPLOADS, Entry, Kind

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PLAIN_KEY = re.compile(r"[\w./-]+", re.ASCII)
"""Keys that equal their files' names."""
_NOT_LINKED = re.compile(rf"Unable to rename file.*\(os error ({'|'.join(map(str, NO_LINK_CODES))})\)")
"""obstore's message on file systems without hard links, which its create-only write needs."""


class LocalStore:
    """A local folder. If it existed and was deleted, it is not recreated."""

    min_rewrite_s = max_copy_s = 0.0

    def __init__(self, url: str, folder: Path, *, make: bool) -> None:
        self.url, self.folder, self.make = url, folder, make
        self._opened: ObjectStore | None = None
        """Store of obstore for the folder; None until the folder exists."""
        self._open()

    @property
    def name(self) -> str:
        return self.folder.name

    def renew(self) -> None:
        """Do nothing: there are no credentials."""

    def prepare(self) -> None:
        self._writable()

    def put(self, key: str, data: bytes | Path, kind: Kind) -> None:  # noqa: ARG002 - required by the protocol
        obstore.put(self._writable(), key, data)

    def upload(self, key: str, pieces: Iterable[memoryview], part: int) -> None:
        obstore.put(self._writable(), key, pieces, chunk_size=part, max_concurrency=UPLOADS)

    def create(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._writable(), key, data, mode="create")
        except BaseError as error:
            if _NOT_LINKED.search(first_line(error)):
                raise JobDirError(f"{self.url}: creating {key} failed: {NO_LINKS}") from error
            raise

    def copy(self, key: str, to: str) -> None:
        obstore.copy(self._writable(), key, to)

    def get(self, key: str, most: int | None) -> bytes:
        store = self._readable()
        if most is not None and _PLAIN_KEY.fullmatch(key) and ".." not in key:
            return self._read_file(self.folder / key, most)
        return requests.get(store, key, most, f"{self.url}/{key}")

    def get_if_changed(self, key: str, etag: str, most: int) -> tuple[bytes, str] | None:
        return requests.get_if_changed(self._readable(), key, etag, most)

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
        return requests.get_range(self._readable(), key, start, end, etag)

    def stream(self, key: str) -> Iterator[bytes]:
        return requests.stream(self._readable(), key)

    def entry(self, key: str) -> Entry:
        return Entry.of(obstore.head(self._readable(), key))

    def entries(self, prefix: str, after: str | None) -> Iterator[Entry]:
        return requests.entries(self._readable(), f"{prefix.rstrip('/')}/" if prefix else "", after)

    def folders(self, prefix: str) -> list[str]:
        folder = self.folder / prefix
        if not folder.is_dir():
            return []  # e.g. a file in the folder's place
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if entry.name.isprintable() and _may_be_folder(entry))

    def files(self, prefix: str) -> dict[str, int]:
        folder = self.folder / prefix
        if not folder.is_dir():
            return {}
        sizes = {}
        with os.scandir(folder) as found:
            for entry in found:
                with suppress(FileNotFoundError):  # removed since
                    if entry.name.isprintable() and entry.is_file():
                        sizes[entry.name] = entry.stat().st_size
        return sizes

    def delete(self, key: str) -> None:
        obstore.delete(self._readable(), key)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def message_of(self, error: Exception) -> str:
        return first_line(error)

    def follow_region(self, message: str) -> bool:  # noqa: ARG002
        return False

    def explain(self, message: str, doing: str) -> str:  # noqa: ARG002
        return message

    def _open(self) -> ObjectStore | None:
        with opening(self.url):
            if self._opened is None and self.folder.is_dir():
                self._opened = obstore.store.LocalStore(prefix=self.folder)
        return self._opened

    def _readable(self) -> ObjectStore:
        store = self._open()
        # A file in the folder's place contains no objects.
        if store is None or not self.folder.is_dir():
            raise FileNotFoundError(self.url)
        return store

    def _writable(self) -> ObjectStore:
        was_there = self._opened is not None  # read first: another thread may create the folder meanwhile
        if not self.folder.is_dir():
            if self.folder.is_file():  # not exists(): another process may have created the folder since
                code = errno.ENOTDIR
                raise JobDirError(f"{self.url}: a file lies in its place") from OSError(code, os.strerror(code))
            if was_there or not self.make:
                raise JobDirError(f"{self.url}: the folder has been deleted")
            self.folder.mkdir(parents=True, exist_ok=True)
        return self._readable()

    def _read_file(self, path: Path, most: int) -> bytes:
        """Return a file's bytes. Does not block on other file types, e.g. a pipe without a writer."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except NotADirectoryError as error:  # a file is in the place of one of the key's folders
            raise FileNotFoundError(str(path)) from error
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise RecordError(f"{self.url}: {path} is no file")
            requests.check_size(f"{self.url}/{path.name}", about.st_size, most)
            return os.read(handle, most)  # one read is enough: writers replace the file, so its size does not change
        finally:
            os.close(handle)


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder; also True if that is unknown, so that reading it raises the reason."""
    try:
        return entry.is_dir()
    except OSError:
        return True
