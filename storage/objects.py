"""A job's folder in an object store or a file system, by URL: requests with retries, and errors with reasons.

What a store does in its own way is behind the protocol Store. Standard library and obstore only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
"""Bytes per request of an upload, unless there would be more than PARTS."""
PARTS = 10_000
"""Requests of an upload, at most: S3 takes no more (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html), and
Cloud Storage, whose uploads in parts are made after S3's, neither."""

_SMALL = 1 << 20  # bytes that can be sent within the `read_timeout`, over a slow link too

_CREATE_PAUSES_S = (0.1, 0.3, 1.0, 3.0)  # after a refusal by what is not there
_COPY_PAUSE_S = 0.5
REFUSED_S = 60.0
"""Seconds for which a refusal (403, 401) is repeated, at most: a role takes a while to be known everywhere."""
_RETRY_PAUSES_S = (0.2, 5.0)

OnProgress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""

_T = TypeVar("_T")


class _Retrying:
    """Until when requests that fail are repeated."""

    def __init__(self, begun: float, seconds: float, say: Callable[[str], None]) -> None:
        self._begun, self._seconds, self._say = begun, seconds, say
        self._has_said = False

    def allows(self, error: JobDirError, pause: float) -> bool:
        """Return whether to try again after this failure and a pause."""
        is_refusal = isinstance(error.__cause__, PermissionDeniedError | UnauthenticatedError)
        seconds = min(self._seconds, REFUSED_S) if is_refusal else self._seconds
        left = self._begun + seconds - time.monotonic()
        if is_permanent(error) or pause > left:
            return False
        if not self._has_said:
            self._has_said = True
            self._say(f"{error}; trying again for {left:.0f} s")
        return True


class JobDir:
    """One job's folder in an object store or a file system, by URL. Keys are relative, with `/`.

    Opening makes nothing. A local folder that is not there yet is made by the first write, unless `make` is false, as
    for a job that was submitted. One that was there and has been deleted since is not made again: writing to it fails,
    so that the deletion is noticed, and nothing is there to be read.
    """

    def __init__(self, url: str, *, make: bool = True, bucket: Bucket | None = None) -> None:
        """`bucket`: whose connections are used; None: this job dir has its own."""
        self._store = open_store(url, bucket, make=make)
        self.url = self._store.url
        self._retrying: _Retrying | None = None

    @property
    def make(self) -> bool:
        """True if the first write makes a local folder."""
        return self._store.make

    @make.setter
    def make(self, make: bool) -> None:
        self._store.make = make

    def renew(self) -> None:
        """Read the settings and credentials anew, where that was not done a moment ago: a request was refused."""
        self._store.renew()

    @property
    def folder(self) -> Path | None:
        """The local folder that this is; None in an object store."""
        return self._store.folder

    @property
    def rewrite_s(self) -> float:
        """Seconds to wait before an object is written again."""
        return self._store.rewrite_s

    def writable_folder(self) -> Path | None:
        """Return the same, made if need be: for callers that write files into it themselves."""
        self._call("writing", self._store.prepare)
        return self._store.folder

    def put(self, key: str, data: bytes | Path) -> None:
        """Write bytes or a file's content, replacing what is there; readers see the old or the new object, no part."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        self._call(f"writing {key}", lambda: self._store.put(key, data, "small" if size <= _SMALL else "upload"))

    def upload(self, key: str, pieces: Iterator[memoryview], size: int) -> None:
        """Write what is too large for one request, a piece at a time; the object appears when all of them are there.

        `size`: bytes of all of them. Pieces are sent from where they lie: they must not change until this returns. At
        most UPLOADS are under way.
        """
        part = max(PART, -(-size // PARTS))
        self._call(f"writing {key}", lambda: self._store.upload(key, pieces, part))

    def upload_file(self, key: str, path: Path, on_progress: OnProgress) -> None:
        """Upload a local file, reporting the bytes that were taken. OSError is of the local file."""
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
        """Write an object under another key, within the store. Raises MissingError."""
        self._call(f"copying {key} to {to}", lambda: self._store.copy(key, to))
        if self._store.copy_s:
            self._await_copy(key, to)

    def create(self, key: str, data: bytes) -> bool:
        """Write only if nothing has this key; True if the object there is this one.

        A retried write whose first answer was lost finds its own object: so equal content counts as won, and content
        that decides something must name its writer. S3 also refuses while another write of the key is under way, of
        which nothing may come: then it is tried again.
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
        """Return the object's bytes; raises MissingError.

        `most`: bytes that may be there. Raises RecordError, before they are read, if there are more, or no file.
        """
        return self._call(f"reading {key}", lambda: self._store.get(key, most))

    def get_if_changed(self, key: str, etag: str, limit: int) -> tuple[bytes, str] | None:
        """Return the object's content, at most `limit` bytes, and its ETag; None if it still has this ETag.

        Raises MissingError, and JobDirError if it is longer.
        """
        return self._call(f"reading {key}", lambda: self._store.get_if_changed(key, etag, limit))

    def get_range(self, key: str, start: int, end: int, etag: str = "") -> bytes:
        """Return the bytes from `start` up to `end`, which must lie inside the object; raises MissingError.

        With an `etag`, of the object that has it: one that was replaced meanwhile is an error.
        """
        return self._call(f"reading {key}", lambda: self._store.get_range(key, start, end, etag))

    def find(self, key: str, most: int | None = None) -> bytes | None:
        """Return the object's bytes, or None if there is no such object; `most` as for get()."""
        try:
            return self.get(key, most)
        except MissingError:
            return None

    def exists(self, key: str) -> bool:
        """Return whether there is such an object."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """The object's bytes, or None if there is no such object."""
        found = self.entry(key)
        return None if found is None else found.size

    def entry(self, key: str) -> Entry | None:
        """Return the object as a listing shows it, or None if there is no such object."""
        try:
            return self._call(f"looking for {key}", lambda: self._store.entry(key))
        except MissingError:
            return None

    def download(self, key: str, path: Path) -> None:
        """Write the object into a local file, a piece at a time. Raises MissingError; OSError is of the local file."""
        doing = f"reading {key}"
        pieces = self._call(doing, lambda: self._store.stream(key))
        with path.open("wb") as file:
            while (piece := self._call(doing, lambda: next(pieces, None))) is not None:
                file.write(piece)

    def list(self, prefix: str) -> Sequence[str]:
        """Return the keys under a folder, sorted; empty if there is no such folder."""
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str, after: str | None = None) -> Sequence[Entry]:
        """Return the objects under a folder in the order of their keys, those after `after` only."""
        found: Sequence[Entry] = self._listed(prefix, lambda: [*self._store.entries(prefix, after)], [])
        return sorted(found, key=lambda entry: entry.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders right under a folder, sorted."""
        return self._listed(prefix, lambda: self._store.folders(prefix), [])

    def files(self, prefix: str) -> Mapping[str, int]:
        """Return the bytes of each object right under a folder, by the last part of its key."""
        return self._listed(prefix, lambda: self._store.files(prefix), {})

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens if it is gone already."""
        with contextlib.suppress(MissingError):
            self._call(f"deleting {key}", lambda: self._store.delete(key))

    def _listed(self, prefix: str, call: Callable[[], _T], empty: _T) -> _T:
        """Return a listing; `empty` for a local folder that is not there, or vanishes meanwhile."""
        try:
            return self._call(f"listing {prefix}", call)
        except MissingError:
            return empty

    def _await_copy(self, key: str, to: str) -> None:
        """Wait until a copy has the content."""
        size, seconds = self.size(key), self._store.copy_s
        until = time.monotonic() + seconds
        while self.size(to) != size:
            if time.monotonic() > until:
                raise JobDirError(f"{self.url}: copying {key} to {to} failed: it was not done in {seconds:.0f} s")
            time.sleep(_COPY_PAUSE_S)

    def _put_new(self, key: str, data: bytes) -> bool:
        """Return False if something has this key, or it is not known whether this object has it now."""
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
    def retrying(self, seconds: float, say: Callable[[str], None]) -> Iterator[None]:
        """Within this, repeat requests that fail for that many seconds from now, refusals for REFUSED_S at most.

        `say` is called once, with the first failure. In a local folder, and where only a person can help, nothing is
        repeated.
        """
        self._retrying = _Retrying(time.monotonic(), seconds, say)
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
        """`moved`: the bucket has been looked for elsewhere already. Whether that was news for this process says
        nothing: others may have learnt it while this call was under way."""
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
            if not moved and self._store.has_moved(message):
                return self._call_once(doing, call, moved=True)
            raise self._failure(doing, message) from error

    def _failure(self, doing: str, message: str) -> JobDirError:
        return JobDirError(f"{self.url}: {doing} failed: {self._store.explain(message, doing)}")
