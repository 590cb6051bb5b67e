"""A job's folder in an object store or a file system, by URL. Standard library and obstore only.

Nothing else knows obstore; what is a store's own is in s3.py, gcs.py and azure_blob.py.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
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
from obstore.store import AzureStore, LocalStore, from_url

from . import azure_blob, azure_deletions, gcs, local_listing, s3
from .access import CredentialsError, code_of

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

log = logging.getLogger("cloudgpu.job_dir")

SCHEMES = ("file", "s3", "gs", "az")
PART = 8 << 20
"""Bytes per request of an upload, unless there would be more than PARTS."""
PARTS = 10_000
"""Requests of an upload, at most: S3 takes no more (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html), and
Cloud Storage, whose uploads in parts are made after S3's, neither."""
UPLOADS = 4
"""Requests of an upload that run at the same time."""

# `timeout` is of one request, from its connecting to the last byte of its answer; `read_timeout` is how long the server
# may send nothing. `retry_timeout` counts from the first try, and no try begins after it: it must exceed the timeouts,
# or a request that hangs is never repeated. Callers retry beyond that by their own rules.
# Plain http is used where an endpoint is set to it; each store's module refuses one on another host.
_CLIENT: ClientConfig = {"timeout": "30s", "read_timeout": "10s", "connect_timeout": "5s", "allow_http": True}
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=30)}
# Of large objects: the ranges that many threads read at a time share a slow link.
_DOWNLOAD_CLIENT: ClientConfig = _CLIENT | {"timeout": "90s"}
# Likewise UPLOADS parts; while one of them is being sent the server says nothing, so there is no `read_timeout`.
_UPLOAD_CLIENT: ClientConfig = {"timeout": "90s", "connect_timeout": "5s", "allow_http": True}
_BULK_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=120)}
_SMALL = 1 << 20  # bytes that can be sent within the `read_timeout`, over a slow link too

_PLAIN_KEY = re.compile(r"[\w./-]+", re.ASCII)
"""Keys whose files have the same name, in a local folder."""

_CREATE_PAUSES_S = (0.1, 0.3, 1.0, 3.0)  # after a refusal by what is not there
_COPY_S = 120.0
_COPY_PAUSE_S = 0.5
REFUSED_S = 60.0
"""Seconds for which a refusal (403, 401) is repeated, at most: a role takes a while to be known everywhere."""
_RETRY_PAUSES_S = (0.2, 5.0)
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
    """What lies under a key is not what belongs there: it says nothing about the rest of the job dir."""


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
    def of(cls, meta: ObjectMeta) -> Entry:
        return cls(meta["path"], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


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

    def __init__(self, url: str, *, make: bool = True) -> None:
        self.url = url.rstrip("/")
        self.make = make
        self._folder: Path | None = None
        self._store: ObjectStore | None = None
        self._bulk: dict[str, ObjectStore] = {}
        """Connections for large objects, with longer timeouts, made on demand: "download" and "upload"."""
        self._deletions: azure_deletions.Deletions | None = None
        """How blobs are deleted where the store has refused a batch."""
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
        self._store = self._connect(_CLIENT, _RETRY)

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
            obstore.put(store if size <= _SMALL else self._large(store, "upload"), key, data)

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
                self._large(self._writable(), "upload"), key, pieces, chunk_size=part, max_concurrency=UPLOADS
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
        self._call(f"copying {key} to {to}", lambda: obstore.copy(self._large(self._writable(), "upload"), key, to))
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
                return bytes(obstore.get(store, key).bytes())
            if self._folder is not None and _PLAIN_KEY.fullmatch(key) and ".." not in key:
                return self._read_file(self._folder / key, most)
            found = obstore.get(store, key)
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
                found = obstore.get(self._readable(), key, options=options)
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
            return bytes(obstore.get(store, key, options=options).bytes())

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
            return self._fetch(f"looking for {key}", key, lambda: Entry.of(obstore.head(self._readable(), key)))
        except MissingError:
            return None

    def download(self, key: str, path: Path) -> None:
        """Write the object into a local file, a piece at a time. Raises MissingError; OSError is of the local file."""
        doing = f"reading {key}"
        begun = self._fetch(doing, key, lambda: obstore.get(self._large(self._readable(), "download"), key))
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
            listed = self._call(doing, lambda: obstore.list_with_delimiter(self._readable(), prefix.rstrip("/") + "/"))
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
                self._deletions.delete(key)
                return
            store = self._readable()
            try:
                obstore.delete(store, key)
            except BaseError as error:
                if not isinstance(store, AzureStore) or not azure_deletions.is_batch_refused(str(error)):
                    raise
                deletions = azure_deletions.Deletions(self.url, store)
                deletions.delete(key)
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
            self._call(f"creating {key}", lambda: obstore.put(self._writable(), key, data, mode="create"))
        except _ExistsError:
            return False
        except JobDirError as error:
            if self._folder is not None and _NOT_LINKED.search(str(error)):
                raise JobDirError(f"{self.url}: creating {key} failed: {NO_LINKS}") from error
            if self._scheme == "az" and azure_blob.is_lost(str(error.__cause__)):
                return False
            raise
        return True

    def _entries(self, prefix: str, after: str | None) -> Iterator[Entry]:
        for batch in obstore.list(self._readable(), prefix.rstrip("/") + "/", offset=after, chunk_size=1_000):
            for meta in batch:
                yield Entry.of(meta)

    def _open_folder(self) -> ObjectStore | None:
        """The store of a local folder, once the folder is there."""
        try:
            if self._store is None and self._folder is not None and self._folder.is_dir():
                self._store = LocalStore(prefix=self._folder)
        except (BaseError, OSError) as error:
            raise JobDirError(f"{self.url} cannot be used as a job dir: {_cause(error)}") from error
        return self._store

    def _readable(self) -> ObjectStore:
        store = self._open_folder()
        # What lies where the folder was, such as a file, has none of its objects.
        if store is None or (self._folder is not None and not self._folder.is_dir()):
            raise FileNotFoundError(self.url)
        return store

    def _writable(self) -> ObjectStore:
        was_there = self._store is not None  # asked first: another thread may make the folder meanwhile
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

    def _large(self, store: ObjectStore, way: Literal["download", "upload"]) -> ObjectStore:
        """Return the connection for requests that carry much data one way."""
        if self._folder is not None:
            return store
        if way not in self._bulk:
            client = _UPLOAD_CLIENT if way == "upload" else _DOWNLOAD_CLIENT
            self._bulk[way] = self._connect(client, _BULK_RETRY)
        return self._bulk[way]

    @property
    def rewrite_s(self) -> float:
        """So long after an object was written it had better not be written again."""
        return gcs.REWRITE_S if self._scheme == "gs" else 0.0

    @property
    def _scheme(self) -> str:
        return self.url.partition("://")[0]

    def _connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        try:
            if self._scheme == "s3":
                return from_url(self.url, client_options=client, retry_config=retry, **s3.connection(self.url))
            if self._scheme == "gs":
                client, retry = gcs.adapt(client, retry)
                return from_url(self.url, client_options=client, retry_config=retry, **gcs.connection())
            return AzureStore(retry_config=retry, **azure_blob.connection(self.url, client))
        except (BaseError, ValueError, OSError, CredentialsError) as error:
            raise JobDirError(f"{self.url} cannot be used as a job dir: {_cause(error)}") from error

    def _fetch(self, doing: str, key: str, call: Callable[[], _T]) -> _T:
        """Where a store is asked for what is not there, it answers 403 to whoever may not list the whole bucket."""

        def fetch() -> _T:
            try:
                return call()
            except PermissionDeniedError as error:
                if self._store is None or not self._hides_missing(self._store, key):
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
            listed = obstore.list_with_delimiter(store, key.rpartition("/")[0])["objects"]
        except (BaseError, OSError):
            return False
        if any(meta["path"] == key for meta in listed):
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
        if self._scheme != "s3" or not s3.is_elsewhere(self.url, self._in_full(error)):
            return False
        self._store, self._bulk = self._connect(_CLIENT, _RETRY), {}
        return True

    def _explain(self, error: Exception, doing: str) -> str:
        vendor = _EXPLAIN.get(self._scheme)
        return vendor(self.url, self._in_full(error), doing) if vendor else _cause(error)

    def _in_full(self, error: Exception) -> str:
        """All that the store says; an answer to HEAD says nothing, so it is asked again in another way.

        All of it: S3's word of what is wrong stands behind a line break of its XML.
        """
        text = str(error).strip()
        if self._store is None or code_of(text) or "Error performing HEAD" not in text:
            return text
        try:
            obstore.list_with_delimiter(self._store, "")
        except (BaseError, OSError) as told:
            return str(told).strip()
        return text


def is_permanent(error: JobDirError) -> bool:
    """Return whether trying again is useless until a person changes something: a mount, a file in the way, a bucket.

    A refusal of an object store is not: a right that was granted a moment ago takes minutes to come into effect.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _PERMANENT:
        return True
    return isinstance(cause, (NotFoundError, FileNotFoundError)) and any(code in str(cause) for code in _NO_BUCKET)


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
