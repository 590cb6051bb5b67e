"""Buckets and objects with generations: what is kept, and under which conditions it changes. Of no API.

After "Object versioning and generations", "Request preconditions", "Hashes and ETags", "Object naming" and "Quotas &
limits" (one update of an object a second) of cloud.google.com/storage/docs.
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
"""Of both services, as rules, permissions and the control's verbs have it."""
MIN_PART = 5 << 20
"""Of all parts of a multipart upload but the last."""
MAX_NAME = 1_024
"""Bytes of an object's name, in UTF-8."""


@dataclass(frozen=True)
class Thing:
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
    """That it was put together of: then it has no MD5."""

    @property
    def md5(self) -> bytes | None:
        return None if self.parts else hashlib.md5(self.data, usedforsecurity=False).digest()

    @property
    def crc32c(self) -> str:
        """In base64, big-endian."""
        return encoded(google_crc32c.value(self.data).to_bytes(4, "big"))

    @property
    def etag(self) -> str:
        """Of the XML API, without its quotes. That of the JSON API is of the generation."""
        if self.md5 is not None:
            return self.md5.hex()
        return f"{hashlib.md5(str(self.generation).encode(), usedforsecurity=False).hexdigest()}-{self.parts}"


@dataclass(frozen=True)
class Conditions:
    """What must hold of the object that is there; generation 0: there is none."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None

    def check(self, found: Thing | None) -> None:
        """Raises RefusedError: 412, or 304 for a read."""
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
    """A multipart upload (XML), or a resumable one (JSON), that is not complete."""

    bucket: str
    name: str
    content_type: str
    conditions: Conditions = ALWAYS
    metadata: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    done: Thing | None = None
    """Of a resumable upload whose last answer may have been lost: it is given again."""


@dataclass(frozen=True)
class Page:
    """One page of a listing, in the order of names' bytes."""

    things: Sequence[Thing]
    folders: Sequence[str]
    after: str
    """Where the next page begins; "": there is none."""


class Store:
    """All of a project's. Any thread may use it; every method is atomic."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Thing]] = {}
        self.locations: dict[str, str] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        """By bucket, as its maker said them."""
        self.policies = Policies()
        """Of buckets."""
        self.uploads: dict[str, Upload] = {}
        self.update_limit_s = 0.0
        """So long after a change of an object the next one is refused; 0: never."""
        self.blind: set[str] = set()
        """Accounts that may not list: to them what is not there is forbidden."""
        self.public: set[str] = set()
        """Buckets in which everybody may do everything, as `allUsers` of a bucket's policy."""
        self._numbers = itertools.count(1)
        self._last = 0

    def clear(self) -> None:
        """As at the start."""
        with self.lock:
            for kept in (self.buckets, self.locations, self.settings, self.uploads, self.blind, self.public):
                kept.clear()
            self.policies = Policies()
            self.update_limit_s = 0.0

    def make_bucket(self, name: str, location: str = "US", *, public: bool = False) -> None:
        """Raises RefusedError."""
        with self.lock:
            if name in self.buckets:
                raise RefusedError("conflict", 409, "The requested bucket name is not available.")
            self.buckets[name], self.locations[name] = {}, location
            if public:
                self.public.add(name)

    def delete_bucket(self, name: str) -> None:
        """Only an empty one. Raises RefusedError."""
        with self.lock:
            if self.bucket(name):
                raise RefusedError("conflict", 409, "The bucket you tried to delete is not empty.")
            for kept in (self.buckets, self.locations, self.settings):
                kept.pop(name, None)
            self.policies.forget(name)

    def bucket(self, name: str) -> dict[str, Thing]:
        """Raises RefusedError."""
        if name not in self.buckets:
            raise RefusedError("NoSuchBucket", 404, "The specified bucket does not exist.")
        return self.buckets[name]

    def find(self, bucket: str, name: str) -> Thing | None:
        """None also where there is no such bucket."""
        with self.lock:
            return self.buckets.get(bucket, {}).get(name)

    def get(self, bucket: str, name: str, caller: str, conditions: Conditions = ALWAYS) -> Thing:
        """Raises RefusedError."""
        with self.lock:
            found = self.bucket(bucket).get(name)
            if found is None and caller in self.blind:
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
    ) -> Thing:
        """A new generation. `hashes`: what the writer says of the content, `md5` and `crc32c` -> base64."""
        self.check_name(name)
        with self.lock:
            found = self.bucket(bucket).get(name)
            conditions.check(found)
            self._limit(found)
            made = Thing(
                bucket, name, data, self._generation(), self._clock(), content_type, metadata or {}, parts=parts
            )
            check_hashes(made, hashes or {})
            self.buckets[bucket][name] = made
            return made

    def patch(self, thing: Thing, metadata: Mapping[str, str], content_type: str) -> Thing:
        """The same generation with other metadata."""
        with self.lock:
            changed = replace(
                thing, metadata=metadata, content_type=content_type, metageneration=thing.metageneration + 1
            )
            self.buckets[thing.bucket][thing.name] = changed
            return changed

    def delete(self, bucket: str, name: str, caller: str, conditions: Conditions = ALWAYS) -> None:
        """Raises RefusedError."""
        with self.lock:
            found = self.get(bucket, name, caller, conditions)
            self._limit(found)
            del self.buckets[bucket][name]

    def listed(self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, *, first: str = "") -> Page:
        """Names after `after` and from `first` on. A folder counts as one entry."""
        with self.lock:
            names = sorted(self.bucket(bucket), key=lambda name: name.encode())
            things: list[Thing] = []
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
        """Its id."""
        self.check_name(upload.name)
        with self.lock:
            upload.conditions.check(self.bucket(upload.bucket).get(upload.name))
            identity = f"upload-{next(self._numbers)}"
            self.uploads[identity] = upload
            return identity

    def upload(self, identity: str) -> Upload:
        """Raises RefusedError."""
        found = self.uploads.get(identity)
        if found is None:
            raise RefusedError("NoSuchUpload", 404, "The requested upload was not found.")
        return found

    def complete(self, identity: str, wanted: Sequence[tuple[int, str]]) -> Thing:
        """Of (number, ETag without quotes), as the uploader lists them. Raises RefusedError."""
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
        """Raises RefusedError."""
        if not 0 < len(name.encode()) <= MAX_NAME or set(name) & set("\r\n") or name in (".", ".."):
            raise RefusedError("InvalidObjectName", 400, f"The object name {name[:80]!r} is not valid.")

    def _limit(self, found: Thing | None) -> None:
        if found is not None and self._clock() < found.created + self.update_limit_s:
            raise RefusedError(
                "SlowDown",
                429,
                f"The object {found.bucket}/{found.name} exceeded the rate limit for object mutation operations "
                "(create, update, and delete). Please reduce your request rate.",
            )

    def _generation(self) -> int:
        """Microseconds, ever greater."""
        self._last = max(self._last + 1, int(self._clock() * 1e6))
        return self._last


def refuse_condition() -> NoReturn:
    """A precondition does not hold."""
    raise RefusedError("PreconditionFailed", 412, "At least one of the pre-conditions you specified did not hold.")


def check_hashes(thing: Thing, hashes: Mapping[str, str]) -> None:
    """Raises RefusedError if the content is not what its writer said."""
    true = {"crc32c": thing.crc32c} | ({"md5": encoded(thing.md5)} if thing.md5 is not None else {})
    for kind, claimed in hashes.items():
        if kind in true and claimed != true[kind]:
            text = f"The {kind} you specified ({claimed}) did not match what we received ({true[kind]})."
            raise RefusedError("BadDigest", 400, text)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
