"""Buckets and objects with generations and preconditions, independent of the APIs.

It follows "Object versioning and generations", "Request preconditions", "Hashes and ETags", "Object naming" and "Quotas
& limits" (one update of an object per second) of cloud.google.com/storage/docs.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import google_crc32c

from ..gcp.platform import Policies
from ..gcp.service import RefusedError

NAME = "storage"
"""Name of both services in rules, permissions and control verbs."""
MIN_PART = 5 << 20
"""Minimum size in bytes of the parts of a multipart upload, except the last."""
MAX_NAME = 1_024
"""Maximum length of an object's name in UTF-8 bytes."""


@dataclass(frozen=True)
class ObjectVersion:
    """One generation of an object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    created: float
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)
    metageneration: int = 1
    parts: int = 0
    """Number of parts that it was composed of; such an object has no MD5."""

    @property
    def md5(self) -> bytes | None:
        return None if self.parts else hashlib.md5(self.data, usedforsecurity=False).digest()

    @property
    def crc32c(self) -> str:
        """Checksum in base64, big-endian."""
        return encoded(google_crc32c.value(self.data).to_bytes(4, "big"))

    @property
    def etag(self) -> str:
        """ETag of the XML API, without quotes. The JSON API's is derived from the generation."""
        if self.md5 is not None:
            return self.md5.hex()
        return f"{hashlib.md5(str(self.generation).encode(), usedforsecurity=False).hexdigest()}-{self.parts}"


@dataclass(frozen=True)
class Conditions:
    """Preconditions on the existing object; generation 0: it must not exist."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None

    def check(self, found: ObjectVersion | None) -> None:
        """Check the existing object. Raises RefusedError: 412, or 304 for a read."""
        there = found.generation if found else 0
        if self.generation is not None and there != self.generation:
            refuse_condition()
        if self.not_generation is not None and there == self.not_generation:
            refuse_condition()
        if self.metageneration is not None and (found is None or found.metageneration != self.metageneration):
            refuse_condition()


ALWAYS = Conditions()


@dataclass
class Upload:
    """An unfinished multipart upload (XML) or resumable upload (JSON)."""

    bucket: str
    name: str
    content_type: str
    conditions: Conditions = ALWAYS
    metadata: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    done: ObjectVersion | None = None
    """Result of a completed resumable upload, returned again if the client lost the response."""


@dataclass(frozen=True)
class Page:
    """One page of a listing, in byte order of names."""

    things: Sequence[ObjectVersion]
    folders: Sequence[str]
    after: str
    """Start of the next page; "": this is the last one."""


class Store:
    """Thread-safe store of a project's objects; every method is atomic."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, ObjectVersion]] = {}
        self.locations: dict[str, str] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        """Bucket -> settings from its creator."""
        self.policies = Policies()
        """IAM policies of buckets."""
        self.uploads: dict[str, Upload] = {}
        self.update_limit_s = 0.0
        """Seconds after a change of an object during which another is refused; 0: no limit."""
        self.no_list_accounts: set[str] = set()
        """Accounts that may not list: a missing object is reported as forbidden to them."""
        self.public: set[str] = set()
        """Buckets with full access for everyone, like `allUsers` in a bucket's policy."""
        self._numbers = itertools.count(1)
        self._last = 0

    def clear(self) -> None:
        """Restore the initial state."""
        with self.lock:
            for kept in (self.buckets, self.locations, self.settings, self.uploads, self.no_list_accounts, self.public):
                kept.clear()
            self.policies = Policies()
            self.update_limit_s = 0.0

    def make_bucket(self, name: str, location: str = "US", *, public: bool = False) -> None:
        """Create a bucket. Raises RefusedError."""
        with self.lock:
            if name in self.buckets:
                raise RefusedError("conflict", 409, "The requested bucket name is not available.")
            self.buckets[name], self.locations[name] = {}, location
            if public:
                self.public.add(name)

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket. Raises RefusedError."""
        with self.lock:
            if self.bucket(name):
                raise RefusedError("conflict", 409, "The bucket you tried to delete is not empty.")
            for kept in (self.buckets, self.locations, self.settings):
                kept.pop(name, None)
            self.policies.forget(name)

    def bucket(self, name: str) -> dict[str, ObjectVersion]:
        """Return a bucket's objects. Raises RefusedError."""
        if name not in self.buckets:
            raise RefusedError("NoSuchBucket", 404, "The specified bucket does not exist.")
        return self.buckets[name]

    def find(self, bucket: str, name: str) -> ObjectVersion | None:
        """Return an object; None if it or its bucket does not exist."""
        with self.lock:
            return self.buckets.get(bucket, {}).get(name)

    def get(self, bucket: str, name: str, caller: str, conditions: Conditions = ALWAYS) -> ObjectVersion:
        """Return an object. Raises RefusedError."""
        with self.lock:
            found = self.bucket(bucket).get(name)
            if found is None and caller in self.no_list_accounts:
                raise RefusedError(
                    "AccessDenied", 403, f"{caller} does not have storage.objects.get access (or it may not exist)."
                )
            if found is None:
                raise RefusedError("NoSuchKey", 404, f"No such object: {bucket}/{name}")
            conditions.check(found)
            return found

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        conditions: Conditions = ALWAYS,
        *,
        content_type: str = "application/octet-stream",
        metadata: Mapping[str, str] | None = None,
        hashes: Mapping[str, str] | None = None,
        parts: int = 0,
    ) -> ObjectVersion:
        """Store a new generation. `hashes`: the writer's hashes of the content, `md5` and `crc32c` -> base64."""
        self.check_name(name)
        with self.lock:
            found = self.bucket(bucket).get(name)
            conditions.check(found)
            self._limit(found)
            made = ObjectVersion(
                bucket, name, data, self._generation(), self._clock(), content_type, metadata or {}, parts=parts
            )
            check_hashes(made, hashes or {})
            self.buckets[bucket][name] = made
            return made

    def patch(self, thing: ObjectVersion, metadata: Mapping[str, str], content_type: str) -> ObjectVersion:
        """Change the metadata; the generation stays the same."""
        with self.lock:
            changed = replace(
                thing, metadata=metadata, content_type=content_type, metageneration=thing.metageneration + 1
            )
            self.buckets[thing.bucket][thing.name] = changed
            return changed

    def delete(self, bucket: str, name: str, caller: str, conditions: Conditions = ALWAYS) -> None:
        """Delete an object. Raises RefusedError."""
        with self.lock:
            found = self.get(bucket, name, caller, conditions)
            self._limit(found)
            del self.buckets[bucket][name]

    def listed(self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, *, first: str = "") -> Page:
        """List names after `after`, from `first` on. A folder counts as one entry."""
        with self.lock:
            names = sorted(self.bucket(bucket), key=lambda name: name.encode())
            things: list[ObjectVersion] = []
            folders: list[str] = []
            last = ""
            for name in names:
                if not name.startswith(prefix) or name.encode() < first.encode():
                    continue
                rest = name[len(prefix) :]
                folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
                if (folder or name).encode() <= after.encode() or (folder and folder == last):
                    continue
                if len(things) + len(folders) == limit:
                    return Page(things, folders, last)
                if folder:
                    folders.append(folder)
                else:
                    things.append(self.buckets[bucket][name])
                last = folder or name
            return Page(things, folders, "")

    # -- uploads

    def begin(self, upload: Upload) -> str:
        """Begin an upload; return its id."""
        self.check_name(upload.name)
        with self.lock:
            upload.conditions.check(self.bucket(upload.bucket).get(upload.name))
            identity = f"upload-{next(self._numbers)}"
            self.uploads[identity] = upload
            return identity

    def upload(self, identity: str) -> Upload:
        """Return an unfinished upload. Raises RefusedError."""
        found = self.uploads.get(identity)
        if found is None:
            raise RefusedError("NoSuchUpload", 404, "The requested upload was not found.")
        return found

    def complete(self, identity: str, wanted: Sequence[tuple[int, str]]) -> ObjectVersion:
        """Complete an upload from its list of (number, ETag without quotes). Raises RefusedError."""
        with self.lock:
            upload = self.upload(identity)
            numbers = [number for number, _ in wanted]
            if not wanted or numbers != sorted(set(numbers)):
                raise RefusedError("InvalidPartOrder", 400, "The list of parts was not in ascending order.")
            for number, etag in wanted:
                part = upload.parts.get(number)
                if part is None or hashlib.md5(part, usedforsecurity=False).hexdigest() != etag:
                    raise RefusedError("InvalidPart", 400, f"Part {number} is not there, or has another ETag.")
                if len(part) < MIN_PART and number != numbers[-1]:
                    raise RefusedError("EntityTooSmall", 400, "Your proposed upload is smaller than the minimum size.")
            data = b"".join(upload.parts[number] for number in numbers)
            made = self.put(upload.bucket, upload.name, data, content_type=upload.content_type, parts=len(wanted))
            del self.uploads[identity]
            return made

    # -- helpers

    def check_name(self, name: str) -> None:
        """Raise RefusedError for an invalid object name."""
        if not 0 < len(name.encode()) <= MAX_NAME or set(name) & set("\r\n") or name in (".", ".."):
            raise RefusedError("InvalidObjectName", 400, f"The object name {name[:80]!r} is not valid.")

    def _limit(self, found: ObjectVersion | None) -> None:
        if found is not None and self._clock() < found.created + self.update_limit_s:
            raise RefusedError(
                "SlowDown",
                429,
                f"The object {found.bucket}/{found.name} exceeded the rate limit for object mutation operations "
                "(create, update, and delete). Please reduce your request rate.",
            )

    def _generation(self) -> int:
        """Return a strictly increasing number of microseconds."""
        self._last = max(self._last + 1, int(self._clock() * 1e6))
        return self._last


def refuse_condition() -> NoReturn:
    """Raise the error of a failed precondition."""
    raise RefusedError("PreconditionFailed", 412, "At least one of the pre-conditions you specified did not hold.")


def check_hashes(thing: ObjectVersion, hashes: Mapping[str, str]) -> None:
    """Raise RefusedError if the content does not match the writer's hashes."""
    true = {"crc32c": thing.crc32c} | ({"md5": encoded(thing.md5)} if thing.md5 is not None else {})
    for kind, claimed in hashes.items():
        if kind in true and claimed != true[kind]:
            text = f"The {kind} you specified ({claimed}) did not match what we received ({true[kind]})."
            raise RefusedError("BadDigest", 400, text)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
