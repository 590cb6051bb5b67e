"""Job folder in an object store or a file system, by URL: requests with retries, and errors with reasons.

The protocol Store hides the differences between stores. Standard library and obstore only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from .access import is_lost
from .errors import ExistsError, JobDirError, MissingError, is_bucket_missing, is_permanent
from .stores import open_store

if TYPE_CHECKING:
    from .buckets import Bucket
    from .store import Entry

PART = 8 << 20
"""Bytes per request of an upload, or more if there would be over PARTS requests."""
PARTS = 10_000
"""Maximum requests of an upload, in S3 (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html) and in Cloud
Storage, whose multipart uploads are modelled on S3's."""

_SMALL = 1 << 20  # bytes that can be sent within the `read_timeout` even over a slow link

_CREATE_PAUSES_S = (
    0.1,
    0.3,
    1.0,
    3.0,
)  # seconds before each retry of a create that was refused although no object exists
_COPY_PAUSE_S = 0.5
REFUSED_S = 60.0
"""Maximum seconds for which a refusal (403, 401) is retried: a new role is effective only after a while."""
_RETRY_PAUSES_S = (0.2, 5.0)

OnProgress = Callable[[int, int], None]
"""(bytes done, bytes in total)."""

_T = TypeVar("_T")


_PAGE = 1_000
"""Objects per listing and deletion: as many as S3 lists and deletes with one request."""


class Usage(NamedTuple):
    """Size of a folder."""

    objects: int
    bytes: int

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Usage:
        objects = total = 0
        for size in sizes:
            objects, total = objects + 1, total + size
        return cls(objects, total)


class _Retrying:
    """Time limit for retries of failed requests."""

    def __init__(self, begun: float, seconds: float, say: Callable[[str], None], refused_s: float) -> None:
        self._begun, self._seconds, self._say, self._refused_s = begun, seconds, say, refused_s
        self._has_said = False

    def allows(self, error: JobDirError, pause: float) -> bool:
        """Return whether to retry after this error and a pause."""
        is_refusal = isinstance(error.__cause__, PermissionDeniedError | UnauthenticatedError)
        seconds = min(self._seconds, self._refused_s) if is_refusal else self._seconds
        left = self._begun + seconds - time.monotonic()
        if is_permanent(error) or pause > left:
            return False
        if not self._has_said:
            self._has_said = True
            self._say(f"{error}; trying again for {left:.0f} s")
        return True


def _remove_folder(folder: Path | None) -> None:
    """Remove a local folder; links in it are removed, not followed. No-op if it does not exist. Raises OSError."""
    if folder is not None and os.path.lexists(folder):
        shutil.rmtree(folder)


def _folder_usage(folder: Path | None) -> Usage:
    """Return the size of the files in a local folder, without following links. Raises OSError."""
    if folder is None or not folder.is_dir():
        return Usage(0, 0)
    return Usage.of(
        (Path(place) / name).lstat().st_size for place, _, names in os.walk(folder, onerror=_raise) for name in names
    )


def _raise(error: OSError) -> None:
    raise error


class JobDir:
    """One job's folder in an object store or a file system, by URL. Keys are relative, with `/`.

    Opening creates nothing. The first write creates a missing local folder, unless `make` is false, as for submitted
    jobs. A folder that existed and was deleted is never recreated: writing raises an error, so that the deletion is
    noticed, and reading finds no objects.
    """

    def __init__(self, url: str, *, make: bool = True, bucket: Bucket | None = None) -> None:
        """Open the folder. `bucket`: connections to share; None: this job dir opens its own."""
        self._store = open_store(url, bucket, make=make)
        self.url = self._store.url
        self._retrying: _Retrying | None = None

    @property
    def make(self) -> bool:
        """True if the first write creates a local folder."""
        return self._store.make

    @make.setter
    def make(self, make: bool) -> None:
        self._store.make = make

    def renew(self) -> None:
        """Reconnect with current settings and credentials, at most every 10 s. Call it after a refused request."""
        self._store.renew()

    @property
    def name(self) -> str:
        """Last part of the folder's path, as requests use it; "" for a whole bucket."""
        return self._store.name

    @property
    def folder(self) -> Path | None:
        """The local folder; None in an object store."""
        return self._store.folder

    @property
    def min_rewrite_s(self) -> float:
        """Minimum seconds between two writes of the same object."""
        return self._store.min_rewrite_s

    def writable_folder(self) -> Path | None:
        """Return the local folder, created if missing, for callers that write files into it themselves."""
        self._call("writing", self._store.prepare)
        return self._store.folder

    def put(self, key: str, data: bytes | Path) -> None:
        """Write bytes or a file's content, replacing an existing object; atomic for readers."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        self._call(f"writing {key}", lambda: self._store.put(key, data, "small" if size <= _SMALL else "upload"))

    def upload(self, key: str, pieces: Iterator[memoryview], size: int) -> None:
        """Write a large object in pieces; the object appears when all pieces are written.

        `size`: total bytes. Pieces are sent without a copy, so they must not change until this returns. At most
        UPLOADS requests run concurrently.
        """
        part = max(PART, -(-size // PARTS))
        self._call(f"writing {key}", lambda: self._store.upload(key, pieces, part))

    def upload_file(self, key: str, path: Path, on_progress: OnProgress) -> None:
        """Upload a local file, reporting the bytes read so far. Raises OSError for errors of the local file."""
        size, sent = path.stat().st_size, 0

        def pieces() -> Iterator[memoryview]:
            nonlocal sent
            while piece := file.read(PART):
                yield memoryview(piece)
                sent += len(piece)
                on_progress(sent, size)

        on_progress(0, size)
        with path.open("rb") as file:
            self.upload(key, pieces(), size)

    def copy(self, key: str, to: str) -> None:
        """Copy an object to another key within the store. Raises MissingError."""
        self._call(f"copying {key} to {to}", lambda: self._store.copy(key, to))
        if self._store.max_copy_s:
            self._await_copy(key, to)

    def create(self, key: str, data: bytes) -> bool:
        """Write only if no object has this key; return whether the existing object is this one.

        A retried write whose first response was lost finds its own object. Equal content therefore counts as
        success, and content that decides a race must name its writer. S3 also refuses while another write of the key
        is in progress, which may fail; then the write is retried.
        """
        for pause in _CREATE_PAUSES_S:
            if self._put_new(key, data):
                return True
            found = self.find(key)
            if found is not None:
                return found == data
            time.sleep(pause)
        raise JobDirError(f"{self.url}: creating {key} failed: others are writing it all the time")

    def get(self, key: str, most: int | None = None) -> bytes:
        """Return the object's bytes. Raises MissingError.

        `most`: maximum bytes. Raises RecordError, before reading, if there are more, or if it is not a regular file.
        """
        return self._call(f"reading {key}", lambda: self._store.get(key, most))

    def get_if_changed(self, key: str, etag: str, limit: int) -> tuple[bytes, str] | None:
        """Return the object's content, at most `limit` bytes, and its ETag; None if it still has this ETag.

        Raises MissingError, and JobDirError if it is longer.
        """
        return self._call(f"reading {key}", lambda: self._store.get_if_changed(key, etag, limit))

    def get_range(self, key: str, start: int, end: int, etag: str = "") -> bytes:
        """Return the bytes from `start` up to `end`, which must be inside the object. Raises MissingError.

        With an `etag`, raises an error if the object has been replaced.
        """
        return self._call(f"reading {key}", lambda: self._store.get_range(key, start, end, etag))

    def find(self, key: str, most: int | None = None) -> bytes | None:
        """Return the object's bytes, or None if it does not exist; `most` as for get()."""
        try:
            return self.get(key, most)
        except MissingError:
            return None

    def exists(self, key: str) -> bool:
        """Return whether the object exists."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """Return the object's size in bytes, or None if it does not exist."""
        found = self.entry(key)
        return None if found is None else found.size

    def entry(self, key: str) -> Entry | None:
        """Return the object as a listing shows it, or None if it does not exist."""
        try:
            return self._call(f"looking for {key}", lambda: self._store.entry(key))
        except MissingError:
            return None

    def download(self, key: str, path: Path) -> None:
        """Write the object to a local file in pieces. Raises MissingError, and OSError for errors of the local file."""
        doing = f"reading {key}"
        pieces = self._call(doing, lambda: self._store.stream(key))
        with path.open("wb") as file:
            while (piece := self._call(doing, lambda: next(pieces, None))) is not None:
                file.write(piece)

    def list(self, prefix: str) -> Sequence[str]:
        """Return the keys under a folder, sorted; empty if the folder does not exist."""
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str, after: str | None = None) -> Sequence[Entry]:
        """Return the objects under a folder in the order of their keys, only those after `after`."""
        found: Sequence[Entry] = self._listed(prefix, lambda: [*self._store.entries(prefix, after)], [])
        return sorted(found, key=lambda entry: entry.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the direct subfolders of a folder, sorted."""
        return self._listed(prefix, lambda: self._store.folders(prefix), [])

    def files(self, prefix: str) -> Mapping[str, int]:
        """Return name -> bytes of the objects directly in a folder."""
        return self._listed(prefix, lambda: self._store.files(prefix), {})

    def delete(self, key: str) -> None:
        """Delete the object; no-op if it does not exist."""
        with contextlib.suppress(MissingError):
            self._call(f"deleting {key}", lambda: self._store.delete(key))

    def delete_all(self, on_deleted: Callable[[int], None]) -> None:
        """Delete the folder with everything in it. Calls `on_deleted` with the number of objects deleted so far.

        It is safe to repeat after any error: what is gone is no error. Raises JobDirError; then some objects may be
        deleted.
        """
        if self.folder is not None:
            self._call("deleting", lambda: _remove_folder(self._store.folder))
            return
        done = 0
        after: str | None = None
        while keys := self._call("listing", functools.partial(self._page, after)):
            try:
                self._call("deleting", functools.partial(self._store.delete_many, keys))
            except MissingError:  # a retried request whose first answer was lost, or another process that deletes
                for key in keys:
                    self.delete(key)
            done, after = done + len(keys), keys[-1]
            on_deleted(done)
        if left := self._call("listing", functools.partial(self._page, None)):
            raise JobDirError(f"{self.url}: {left[0]} is still there after it was deleted, or was written meanwhile")

    def _page(self, after: str | None) -> Sequence[str]:
        return [entry.key for entry in itertools.islice(self._store.entries("", after), _PAGE)]

    def usage(self) -> Usage:
        """Return how many objects are in the folder, and their bytes. Raises JobDirError."""
        if self.folder is not None:
            return self._listed("", lambda: _folder_usage(self._store.folder), Usage(0, 0))
        return self._call("listing", lambda: Usage.of(entry.size for entry in self._store.entries("", None)))

    def _listed(self, prefix: str, call: Callable[[], _T], empty: _T) -> _T:
        """Return a listing; `empty` for a local folder that does not exist or vanishes meanwhile."""
        try:
            return self._call(f"listing {prefix}", call)
        except MissingError:
            return empty

    def _await_copy(self, key: str, to: str) -> None:
        """Wait until a copy has the size of its source. Raises JobDirError after the store's `max_copy_s`."""
        size, seconds = self.size(key), self._store.max_copy_s
        until = time.monotonic() + seconds
        while self.size(to) != size:
            if time.monotonic() > until:
                raise JobDirError(f"{self.url}: copying {key} to {to} failed: it was not done in {seconds:.0f} s")
            time.sleep(_COPY_PAUSE_S)

    def _put_new(self, key: str, data: bytes) -> bool:
        """Create the object; return False if the key exists, or if the response was lost."""
        try:
            self._call(f"creating {key}", lambda: self._store.create(key, data))
        except ExistsError:
            return False
        except JobDirError as error:
            if self.folder is None and is_lost(str(error.__cause__)):
                return False
            raise
        return True

    @contextlib.contextmanager
    def retrying(self, seconds: float, say: Callable[[str], None], refused_s: float = REFUSED_S) -> Iterator[None]:
        """Return a context manager in which failed requests are retried for `seconds` from now, refusals for at most
        `refused_s`.

        `say` is called once, with the first error. Errors of local folders, and those that only an operator can
        resolve, are not retried.
        """
        self._retrying = _Retrying(time.monotonic(), seconds, say, refused_s)
        try:
            yield
        finally:
            self._retrying = None

    def _call(self, doing: str, call: Callable[[], _T]) -> _T:
        pause = _RETRY_PAUSES_S[0]
        while True:
            try:
                return self._call_once(doing, call)
            except (MissingError, ExistsError):
                raise
            except JobDirError as error:
                retrying = self._retrying
                if self.folder is not None or retrying is None or not retrying.allows(error, pause):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _RETRY_PAUSES_S[1])

    def _call_once(self, doing: str, call: Callable[[], _T], *, moved: bool = False) -> _T:
        """Send a request and convert its errors. If the bucket is in another region, look the region up and send the
        request once more, with `moved`."""
        try:
            return call()
        except AlreadyExistsError as error:
            raise ExistsError(f"{self.url}: {doing}: there is such an object already") from error
        except (NotFoundError, FileNotFoundError) as error:
            if is_bucket_missing(error):
                raise self._failure(doing, self._store.message_of(error)) from error
            raise MissingError(f"{self.url}: {doing}: there is no such object") from error
        except (BaseError, OSError, ValueError) as error:
            message = self._store.message_of(error)
            if not moved and self._store.follow_region(message):
                return self._call_once(doing, call, moved=True)
            raise self._failure(doing, message) from error

    def _failure(self, doing: str, message: str) -> JobDirError:
        return JobDirError(f"{self.url}: {doing} failed: {self._store.explain(message, doing)}")
