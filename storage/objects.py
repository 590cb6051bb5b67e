"""A job's folder in an object store or a file system, by URL. Standard library and obstore only.

Nothing else knows obstore; what is a store's own is in s3.py, gcs.py and azure_blob.py.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotModifiedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, LocalStore

from . import azure_blob, gcs, local_listing, s3
from .access import CredentialsError, code_of, is_lost
from .buckets import Bucket, Kind, folder_of

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

    from . import azure_deletions

log = logging.getLogger("cloudgpu.job_dir")

SCHEMES = ("file", "s3", "gs", "az")
PART = 8 << 20
"""Bytes per request of an upload, unless there would be more than PARTS."""
PARTS = 10_000
"""Requests of an upload, at most: S3 takes no more (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html), and
Cloud Storage, whose uploads in parts are made after S3's, neither."""
UPLOADS = 4
"""Requests of an upload that run at the same time."""

_SMALL = 1 << 20  # bytes that can be sent within the `read_timeout`, over a slow link too

_PLAIN_KEY = re.compile(r"[\w./-]+", re.ASCII)
"""Keys whose files have the same name, in a local folder."""

_CREATE_PAUSES_S = (0.1, 0.3, 1.0, 3.0)  # after a refusal by what is not there
_COPY_S = 120.0
_COPY_PAUSE_S = 0.5
REFUSED_S = 60.0
"""Seconds for which a refusal (403, 401) is repeated, at most: a role takes a while to be known everywhere."""
_RETRY_PAUSES_S = (0.2, 5.0)
RENEW_S = 10.0
"""Connections that are younger than this many seconds are kept, whatever number of job dirs fails with them."""
_HIDDEN_S = 600.0  # how long a listing that did not show a key is trusted; an object that is there answers 200 anyway
_HIDDEN_KEYS = 1_000  # that are remembered

OnProgress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""

_T = TypeVar("_T")

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_EXPLAIN: Mapping[str, Callable[[str, str, str], str]] = {"s3": s3.explain, "gs": gcs.explain, "az": azure_blob.explain}
"""What a failure means to people: of URL, message and what was being done."""


NO_LINKS = (
    "this file system has no hard links, without which no file can be created exactly once (buckets mounted as folders "
    "have none, nor do some network shares): give the bucket's own URL (s3://, gs://, az://), or another folder"
)
NO_LINK_CODES = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""What link(2) ends with there."""
_PERMANENT = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, *NO_LINK_CODES)
"""Errors of local folders which no time heals."""
_NOT_LINKED = re.compile(rf"Unable to rename file.*\(os error ({'|'.join(map(str, NO_LINK_CODES))})\)")
"""How obstore says so, whose create-only write of a local file is a link."""


_LOGIN_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidAuthenticationInfo"})
"""Words of S3, Cloud Storage and Blob Storage for credentials that were good once."""
_UNAUTHENTICATED = re.compile(r"status code: 401\b")
"""How obstore ends, which raises UnauthenticatedError for some requests only: not for listings."""
_PROVIDER = re.compile(r"External \w+ (credential|token) provider")
"""How obstore begins, when what reads the credentials has failed: a login that has expired, or none."""


class JobDirError(Exception):
    """The job dir cannot be read or written; the message names it and says why."""


class MissingError(JobDirError):
    """No object has this key."""


class RecordError(JobDirError):
    """An object is not a valid record. The rest of the job dir is not affected."""


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

    Opening makes nothing. A local folder that is not there yet is made by the first write, unless `make` is false: so
    for all who work on a job that was submitted. One that was there and has been deleted since is not made again:
    writing to it fails, so that whoever writes notices, and nothing is there to be read.
    """

    def __init__(self, url: str, *, make: bool = True, bucket: Bucket | None = None) -> None:
        """`bucket`: whose connections are used; None: this job dir has its own."""
        self.url = url.rstrip("/")
        self.make = make
        self._folder: Path | None = None
        self._deletions: azure_deletions.Deletions | None = None
        """How blobs are deleted where the store has refused a batch."""
        self._local: ObjectStore | None = None
        """Store of a local folder, once it exists."""
        self._bucket: Bucket | None = None
        self._inside = ""
        """How all keys of this folder begin in the bucket."""
        self._retrying: _Retrying | None = None
        self._hidden: dict[str, float] = {}
        """Keys that a listing did not show; until then (monotonic) a refusal to read one means that it is not there."""
        scheme, colon, rest = self.url.partition("://")
        if not colon or scheme not in SCHEMES:
            raise JobDirError(f"{url} cannot be used as a job dir: expected a URL of {', '.join(SCHEMES)}")
        if scheme == "file":
            # Not through from_url(), which cuts the path at a `#` or `?` that was left unquoted.
            self._folder = Path(unquote(rest.removeprefix("localhost")))
            if not self._folder.is_absolute():
                raise JobDirError(f"{url} cannot be used as a job dir: expected file:// and an absolute path")
            self._open_folder()
            return
        with self._opening():
            self._inside = folder_of(self.url)
            self._bucket = bucket or Bucket(self.url)
            self._bucket.store()

    def renew(self) -> None:
        """Read the settings and credentials anew, where that was not done a moment ago: a request was refused."""
        if self._bucket is not None:
            self._bucket.reconnect(RENEW_S)

    @property
    def folder(self) -> Path | None:
        """The local folder that this is; None in an object store."""
        return self._folder

    def writable_folder(self) -> Path | None:
        """The same, there to be written into: for whoever must see to it that files reach the disk."""
        if self._folder is not None:
            self._call("writing", self._writable)
        return self._folder

    def put(self, key: str, data: bytes | Path) -> None:
        """Write bytes or a file's content, replacing what is there; readers see the old or the new object, no part."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)

        def put() -> None:
            store = self._writable()
            obstore.put(store if size <= _SMALL else self._large(store, "upload"), self._at(key), data)

        self._call(f"writing {key}", put)

    def upload(self, key: str, pieces: Iterator[memoryview], size: int) -> None:
        """Write what is too large for one request, a piece at a time; the object appears when all of them are there.

        `size`: bytes of all of them. Pieces are sent from where they lie: they must not change until this returns. At
        most UPLOADS are under way.
        """
        part = max(PART, -(-size // PARTS))
        self._call(
            f"writing {key}",
            lambda: obstore.put(
                self._large(self._writable(), "upload"),
                self._at(key),
                pieces,
                chunk_size=part,
                max_concurrency=UPLOADS,
            ),
        )

    def upload_file(self, key: str, path: Path, on_progress: OnProgress) -> None:
        """upload() of a local file, telling how much of it has been taken. OSError is of the local file."""
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
        self._call(
            f"copying {key} to {to}",
            lambda: obstore.copy(self._large(self._writable(), "upload"), self._at(key), self._at(to)),
        )
        if self._scheme == "az":
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

        def get() -> bytes:
            store = self._readable()
            if most is None:
                return bytes(obstore.get(store, self._at(key)).bytes())
            if self._folder is not None and _PLAIN_KEY.fullmatch(key) and ".." not in key:
                return self._read_file(self._folder / key, most)
            found = obstore.get(store, self._at(key))
            self._check_size(key, found.meta["size"], most)
            return bytes(found.bytes())

        return self._fetch(f"reading {key}", key, get)

    def get_if_changed(self, key: str, etag: str, limit: int) -> tuple[bytes, str] | None:
        """Return the object's content, at most `limit` bytes, and its ETag; None if it still has this ETag.

        Raises MissingError, and JobDirError if it is longer.
        """
        options: GetOptions = {"if_none_match": etag} if etag else {}

        def get() -> tuple[bytes, str] | None:
            try:
                found = obstore.get(self._readable(), self._at(key), options=options)
            except NotModifiedError:
                return None
            if found.meta["size"] > limit:
                raise ValueError(f"it has {found.meta['size']} bytes, at most {limit} are expected")
            return bytes(found.bytes()), found.meta["e_tag"] or ""

        return self._fetch(f"reading {key}", key, get)

    def get_range(self, key: str, start: int, end: int, etag: str = "") -> bytes:
        """The bytes from `start` up to `end`, which must lie inside the object; raises MissingError.

        With an `etag`, of the object that has it: one that was replaced meanwhile is an error.
        """
        options: GetOptions = {"range": (start, end)}
        if etag:
            options["if_match"] = etag

        def get() -> bytes:
            store = self._large(self._readable(), "download")
            if start == end:
                return b""
            return bytes(obstore.get(store, self._at(key), options=options).bytes())

        return self._fetch(f"reading {key}", key, get)

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
        """The object as a listing shows it, or None if there is no such object."""
        try:
            return self._fetch(f"looking for {key}", key, lambda: self._entry(key))
        except MissingError:
            return None

    def download(self, key: str, path: Path) -> None:
        """Write the object into a local file, a piece at a time. Raises MissingError; OSError is of the local file."""
        doing = f"reading {key}"
        begun = self._fetch(doing, key, lambda: obstore.get(self._large(self._readable(), "download"), self._at(key)))
        pieces = iter(begun.stream(min_chunk_size=1 << 20))
        with path.open("wb") as file:
            while (piece := self._call(doing, lambda: next(pieces, None))) is not None:
                file.write(piece)

    def list(self, prefix: str) -> Sequence[str]:
        """Keys under a folder, sorted; empty if there is no such folder."""
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str, after: str | None = None) -> Sequence[Entry]:
        """Objects under a folder in the order of their keys, those after `after` only."""
        # A listing of a local folder that vanishes meanwhile says so with NotFound: it is then empty.
        try:
            found = self._call(f"listing {prefix}", lambda: list(self._entries(prefix, after)))
        except MissingError:
            return []
        return sorted(found, key=lambda entry: entry.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders right under a folder, sorted."""
        doing, folder = f"listing {prefix}", self._folder
        try:
            if folder is not None:
                return self._call(doing, lambda: local_listing.folders(folder / prefix))
            under = self._under(prefix)
            listed = self._call(doing, lambda: obstore.list_with_delimiter(self._readable(), under))
        except MissingError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    def files(self, prefix: str) -> Mapping[str, int]:
        """Return the bytes of each object right under a folder, by the last part of its key."""
        doing, folder = f"listing {prefix}", self._folder
        if folder is not None:
            try:
                return self._call(doing, lambda: local_listing.files(folder / prefix))
            except MissingError:  # the folder has vanished meanwhile
                return {}
        sizes = {entry.key.removeprefix(f"{prefix.strip('/')}/"): entry.size for entry in self.entries(prefix)}
        return {name: size for name, size in sizes.items() if "/" not in name}

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens if it is gone already."""

        def delete() -> None:
            if self._deletions is not None:
                self._deletions.delete(self._at(key))
                return
            store = self._readable()
            try:
                obstore.delete(store, self._at(key))
            except BaseError as error:
                if not isinstance(store, AzureStore):
                    raise
                from . import azure_deletions  # loads http

                if not azure_deletions.is_batch_refused(str(error)):
                    raise
                deletions = azure_deletions.Deletions(self.url, store)
                deletions.delete(self._at(key))
                log.warning(
                    "%s: Blob Storage refuses batches of deletions: objects are deleted one by one from now on",
                    self.url,
                )
                self._deletions = deletions

        try:
            self._call(f"deleting {key}", delete)
        except MissingError:
            return

    def _await_copy(self, key: str, to: str) -> None:
        """Blob Storage may answer before it has copied: the copy has no content until then."""
        size, until = self.size(key), time.monotonic() + _COPY_S
        while self.size(to) != size:
            if time.monotonic() > until:
                raise JobDirError(f"{self.url}: copying {key} to {to} failed: it was not done in {_COPY_S:.0f} s")
            time.sleep(_COPY_PAUSE_S)

    def _put_new(self, key: str, data: bytes) -> bool:
        """False: something has this key, or it is not known whether this has it now."""
        try:
            self._call(f"creating {key}", lambda: obstore.put(self._writable(), self._at(key), data, mode="create"))
        except _ExistsError:
            return False
        except JobDirError as error:
            if self._folder is not None and _NOT_LINKED.search(str(error)):
                raise JobDirError(f"{self.url}: creating {key} failed: {NO_LINKS}") from error
            if self._bucket is not None and is_lost(str(error.__cause__)):
                return False
            raise
        return True

    def _entries(self, prefix: str, after: str | None) -> Iterator[Entry]:
        offset = None if after is None else self._at(after)
        for batch in obstore.list(self._readable(), self._under(prefix), offset=offset, chunk_size=1_000):
            for meta in batch:
                yield Entry.of(meta, self._inside)

    def _entry(self, key: str) -> Entry:
        return Entry.of(obstore.head(self._readable(), self._at(key)), self._inside)

    def _at(self, key: str) -> str:
        """Return an object's key in the whole bucket; in a local folder its own."""
        return f"{self._inside}{key}"

    def _under(self, prefix: str) -> str:
        """Return how keys in a folder of this one begin, in the whole bucket."""
        return self._at(f"{prefix.rstrip('/')}/") if prefix else self._inside

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, ValueError, OSError, CredentialsError) as error:
            raise JobDirError(f"{self.url} cannot be used as a job dir: {_cause(error)}") from error

    def _open_folder(self) -> ObjectStore | None:
        """The store of a local folder, once the folder is there."""
        with self._opening():
            if self._local is None and self._folder is not None and self._folder.is_dir():
                self._local = LocalStore(prefix=self._folder)
        return self._local

    def _readable(self) -> ObjectStore:
        if self._bucket is not None:
            return self._connection("small")
        store = self._open_folder()
        # A file in the folder's place holds none of its objects.
        if store is None or (self._folder is not None and not self._folder.is_dir()):
            raise FileNotFoundError(self.url)
        return store

    def _connection(self, kind: Kind) -> ObjectStore:
        assert self._bucket is not None  # noqa: S101 - of object stores only
        with self._opening():
            return self._bucket.store(kind)

    def _writable(self) -> ObjectStore:
        was_there = self._local is not None  # asked first: another thread may make the folder meanwhile
        if self._folder is not None and not self._folder.is_dir():
            if self._folder.is_file():  # not exists(): another process may have made the folder since
                code = errno.ENOTDIR
                raise JobDirError(f"{self.url}: a file lies in its place") from OSError(code, os.strerror(code))
            if was_there or not self.make:
                raise JobDirError(f"{self.url}: the folder has been deleted")
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._readable()

    def _read_file(self, path: Path, most: int) -> bytes:
        """Return a local file's bytes, without waiting for what is no file: a pipe that nothing writes into."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except NotADirectoryError as error:  # a file lies where one of the key's folders should be
            raise FileNotFoundError(str(path)) from error
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise RecordError(f"{self.url}: {path} is no file")
            self._check_size(path.name, about.st_size, most)
            return os.read(handle, most)  # in one go: what is written here is another file, which takes its place
        finally:
            os.close(handle)

    def _check_size(self, key: str, size: int, most: int) -> None:
        if size > most:
            raise RecordError(f"{self.url}/{key} has {size} bytes, {most} at most are allowed")

    def _large(self, store: ObjectStore, way: Kind) -> ObjectStore:
        """Return the connection for requests that carry much data one way."""
        return store if self._bucket is None else self._connection(way)

    @property
    def rewrite_s(self) -> float:
        """So long after an object was written it had better not be written again."""
        return gcs.REWRITE_S if self._scheme == "gs" else 0.0

    @property
    def _scheme(self) -> str:
        return self.url.partition("://")[0]

    def _fetch(self, doing: str, key: str, call: Callable[[], _T]) -> _T:
        """Where a store is asked for what is not there, it answers 403 to whoever may not list the whole bucket."""

        def fetch() -> _T:
            try:
                return call()
            except PermissionDeniedError as error:
                if self._bucket is None or not self._hides_missing(self._connection("small"), key):
                    raise
                raise FileNotFoundError(key) from error

        return self._call(doing, fetch)

    def _hides_missing(self, store: ObjectStore, key: str) -> bool:
        """Return whether a refusal to read means that there is no such object, by a listing of where it would be.

        A listing costs a dozen times as much as a GET: for a key that is looked for again and again it is made
        once in _HIDDEN_S.
        """
        now = time.monotonic()
        if now < self._hidden.get(key, 0.0):
            return True
        try:
            listed = obstore.list_with_delimiter(store, self._at(key).rpartition("/")[0])["objects"]
        except (BaseError, OSError):
            return False
        if any(meta["path"] == self._at(key) for meta in listed):
            return False
        if len(self._hidden) >= _HIDDEN_KEYS:
            self._hidden.clear()
        self._hidden[key] = now + _HIDDEN_S
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
            except (MissingError, _ExistsError):
                raise
            except JobDirError as error:
                retrying = self._retrying
                if self._folder is not None or retrying is None or not retrying.allows(error, pause):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _RETRY_PAUSES_S[1])

    def _call_once(self, doing: str, call: Callable[[], _T], *, moved: bool = False) -> _T:
        """`moved`: the bucket has been looked for elsewhere already. Whether that was news for this process says
        nothing: others may have learnt it while this call was under way."""
        try:
            return call()
        except AlreadyExistsError as error:
            raise _ExistsError(f"{self.url}: {doing}: there is such an object already") from error
        except (NotFoundError, FileNotFoundError) as error:
            if any(code in str(error) for code in _NO_BUCKET):
                raise JobDirError(f"{self.url}: {doing} failed: {self._explain(error, doing)}") from error
            raise MissingError(f"{self.url}: {doing}: there is no such object") from error
        except (BaseError, OSError, ValueError) as error:
            if not moved and self._is_moved(error):
                return self._call_once(doing, call, moved=True)
            raise JobDirError(f"{self.url}: {doing} failed: {self._explain(error, doing)}") from error

    def _is_moved(self, error: Exception) -> bool:
        """Return whether the bucket was looked for in a wrong region; it is asked where it is from now on."""
        if self._bucket is None or self._scheme != "s3" or not s3.is_elsewhere(self.url, self._in_full(error)):
            return False
        self._bucket.reconnect()
        return True

    def _explain(self, error: Exception, doing: str) -> str:
        vendor = _EXPLAIN.get(self._scheme)
        return vendor(self.url, self._in_full(error), doing) if vendor else _cause(error)

    def _in_full(self, error: Exception) -> str:
        """All that the store says; an answer to HEAD says nothing, so it is asked again in another way.

        All of it: S3's word of what is wrong stands behind a line break of its XML.
        """
        text = str(error).strip()
        if self._bucket is None or code_of(text) or "Error performing HEAD" not in text:
            return text
        try:
            obstore.list_with_delimiter(self._bucket.store(), self._inside)
        except (BaseError, OSError, ValueError, CredentialsError) as told:
            return str(told).strip()
        return text


def is_permanent(error: JobDirError) -> bool:
    """Return whether trying again is useless until a person changes something: a mount, a file in the way, a bucket.

    A refusal of an object store is not: a right that was granted a moment ago takes minutes to come into effect.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _PERMANENT:
        return True
    # A missing object is a NotFoundError; a listing in a missing bucket has no error class of its own.
    return isinstance(cause, (BaseError, FileNotFoundError)) and any(code in str(cause) for code in _NO_BUCKET)


def is_login(error: JobDirError) -> bool:
    """Return whether the store does not accept the credentials any more, until they are renewed."""
    cause = error.__cause__
    if isinstance(cause, (CredentialsError, UnauthenticatedError)):
        return True
    text = str(cause)
    return code_of(text) in _LOGIN_CODES or any(known.search(text) for known in (_UNAUTHENTICATED, _PROVIDER))


class _ExistsError(JobDirError):
    """A create-only write came second."""


def _cause(error: Exception) -> str:
    """The first line: what follows in obstore's messages is for its own developers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def portable_url(url: str) -> str:
    """The URL with all in it that this computer's environment adds to it: it then means the same on every machine.

    Raises JobDirError.
    """
    if not url.startswith("az://"):
        return url
    try:
        return azure_blob.complete(url)
    except CredentialsError as error:
        raise JobDirError(f"{url} cannot be used as a job dir: {error}") from error


def local_url(path: Path) -> str:
    """The file:// URL of a folder, any character in its name quoted."""
    return "file://" + quote(str(path.resolve()))
