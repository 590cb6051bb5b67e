"""Store of checkpoints in a folder of the job dir: write, commit, verify and remove them.

docs/reference/checkpoint-format.md describes the files, and why a crash at any moment leaves the store consistent.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ...protocol.checkpoint_names import Name
from ...protocol.jobdir import JobDir, JobDirError, MissingError, Record
from ...protocol.metrics import Segment, closed_key
from ...protocol.records import read_json
from ...storage import durable
from .errors import FencedError, UnusableError
from .format.manifest import CHUNK, FORMAT, RankManifest, chunk_hash, chunk_hashes, data_file, manifest_file

COMMIT = "COMMIT.json"
DAMAGED = "DAMAGED.json"
READERS = 8
"""Maximum number of manifests read concurrently."""

_MANIFEST = re.compile(r"rank-(\d{5})\.json", re.ASCII)
_FENCE = re.compile(r"(\d{6,9})\.json", re.ASCII)
_MAX_COMMIT_BYTES = 64 << 20
"""Maximum bytes of a COMMIT.json to read, enough for more than half a million ranks."""
_T = TypeVar("_T")


class DiskFullError(JobDirError):
    """The disk is full, or this user's quota is exhausted."""


class Condition(enum.Enum):
    """Condition of a checkpoint, derived from which marker files exist; their content is not verified."""

    UNCOMMITTED = enum.auto()
    """No COMMIT.json: a save that is in progress or has failed."""
    GOOD = enum.auto()
    """Committed, and not known to be damaged."""
    DAMAGED = enum.auto()
    """Marked as damaged."""
    UNREADABLE = enum.auto()
    """The store cannot be read at the moment."""


@dataclass(frozen=True, slots=True)
class Commit(Record):
    """The record COMMIT.json, which makes a save a checkpoint."""

    name: str
    """Name of the checkpoint's folder; another name shows that the record was copied from another checkpoint."""
    manifests: list[str]
    """sha256 of each rank's manifest, in rank order; the length is the number of ranks."""
    finished: bool
    """True if the training reached its end with this step."""
    time: float
    """Time of the commit in epoch seconds; informational."""
    format: str = FORMAT
    sha256: str = ""
    """sha256 of this record with this field empty."""

    def digest(self) -> str:
        fields = asdict(self) | {"sha256": ""}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class CheckpointStore:
    """The checkpoints of one training. Every method raises JobDirError if the job dir cannot be read or written."""

    def __init__(self, job_dir: JobDir, prefix: str) -> None:
        self.job_dir = job_dir
        self.prefix = prefix.strip("/")
        self._local = job_dir.folder / self.prefix if job_dir.folder else None

    def __str__(self) -> str:
        return str(self._local) if self._local else f"{self.job_dir.url}/{self.prefix}"

    # Attempts

    def claim(self, attempt: int | None) -> int:
        """Begin an attempt, which fences off older ones, and return its number.

        attempt  number of the attempt; None: the number after the newest

        The fence is created in the same way as a COMMIT.json, so a JobDirError raised here means that no commit would
        succeed either.
        """
        if attempt is not None:
            self._create_fence(attempt, b"{}")
            return attempt
        while True:
            attempt = self.newest_attempt() + 1
            claim = json.dumps({"process": os.getpid(), "nonce": os.urandom(8).hex()}).encode()
            if self._create_fence(attempt, claim):
                return attempt

    def _create_fence(self, attempt: int, content: bytes) -> bool:
        self.job_dir.writable_folder()
        if self._local:
            folder = self._local / "fences"
            _checked(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
        return self._create("fences", f"{attempt:06d}.json", content)

    def newest_attempt(self) -> int:
        """Return the highest attempt number in this store; 0 if there is none."""
        fences = map(_FENCE.fullmatch, self.job_dir.files(self._key("fences")))
        return max([int(fence[1]) for fence in fences if fence] + [name.attempt for name in self.names()], default=0)

    def check_fence(self, attempt: int) -> None:
        """Raise FencedError if a newer attempt has begun."""
        newest = self.newest_attempt()
        if newest > attempt:
            raise FencedError(f"attempt {newest} has taken over {self} from this attempt {attempt}")

    # Saving

    def write_rank(self, manifest: RankManifest, data: memoryview) -> bytes:
        """Write one rank's data durably, then its manifest; return the serialized manifest with the data's hashes.

        Idempotent: if the manifest exists already, nothing is written. Raises JobDirError if it exists with another
        content, ValueError if the data has another size than the manifest says.
        """
        name, rank = Name.parse(manifest.name), manifest.rank
        if name is None or manifest.size != len(data):
            raise ValueError(f"the manifest of {manifest.name} is about {manifest.size} bytes, not {len(data)}")
        written = self._find(name, manifest_file(rank))
        if written is None:
            return self._write_rank(name, manifest, data)
        manifest.chunks = chunk_hashes(data, CHUNK)
        if manifest.to_bytes() != written:
            raise JobDirError(f"{self}: {name}/{manifest_file(rank)} is there already, and of another content")
        return written

    def _write_rank(self, name: Name, manifest: RankManifest, data: memoryview) -> bytes:
        manifest.chunks, manifest.chunk_size = [], CHUNK

        def each(piece: memoryview) -> None:
            manifest.chunks.append(chunk_hash(piece))

        def hashed() -> Iterator[memoryview]:
            for at in range(0, len(data), CHUNK):
                each(data[at : at + CHUNK])
                yield data[at : at + CHUNK]

        self._make_folder(name)
        path = self.local_path(name, data_file(manifest.rank))
        if path:
            _checked(path, lambda: durable.write_data(path, data, each))
        else:
            self.job_dir.upload(self._key(name, data_file(manifest.rank)), hashed(), len(data))
        content = manifest.to_bytes()
        self._put(name, manifest_file(manifest.rank), content)
        return content

    def ranks_written(self, name: Name) -> set[int]:
        """Return the ranks whose parts are complete and durable, i.e. whose manifests exist."""
        return {int(file[1]) for file in map(_MANIFEST.fullmatch, self._sizes(name)) if file}

    def digests(self, name: Name, world: int) -> list[str]:
        """Return the sha256 of each rank's stored manifest. Raises JobDirError if a part is missing or incomplete."""
        sizes = self._sizes(name)

        def digest(rank: int) -> str:
            content = self.job_dir.get(self._key(name, manifest_file(rank)))
            expected, found = _size(content), sizes.get(data_file(rank))
            if found != expected:
                raise JobDirError(f"{self}: {name}/{data_file(rank)} has {found} bytes, {expected} were written")
            return hashlib.sha256(content).hexdigest()

        return _each(digest, range(world))

    def commit(self, name: Name, digests: Sequence[str], *, finished: bool, time: float) -> None:
        """Commit a save whose parts are all written. Raises FencedError if a newer attempt has begun."""
        unsigned = Commit(name=str(name), manifests=list(digests), finished=finished, time=time)
        signed = Commit(**asdict(unsigned) | {"sha256": unsigned.digest()}).to_bytes()
        self.check_fence(name.attempt)
        if not self._create(name, COMMIT, signed):
            raise JobDirError(f"{self}: {name} has been committed by another process")

    def is_committed(self, name: Name) -> bool:
        return self._has(name, COMMIT)

    def put_metrics(self, rows: bytes) -> None:
        """Write a serialized segment of metrics, before its checkpoint is committed. Raises ValueError if invalid."""
        key = Segment.from_bytes(rows).key
        if self._local is None:
            return self.job_dir.put(self._key(key), rows)
        path = self._local / key
        self.job_dir.writable_folder()
        _checked(path, lambda: path.parent.mkdir(parents=True, exist_ok=True))
        _checked(path, lambda: durable.create(path, rows, replace=True))
        return None

    def find_metrics(self, key: str) -> bytes | None:
        """Return a segment of metrics; None if there is none under this key."""
        return self.job_dir.find(self._key(key))

    # Removing

    def discard(self, name: Name) -> None:
        """Remove a checkpoint or an unfinished save. COMMIT.json is removed first: no partial checkpoint remains."""
        self.job_dir.delete(self._key(name, COMMIT))
        own = [self._key(name, file) for file in self._sizes(name) if file.endswith((".json", ".bin"))]
        for key in own if self._local else self.job_dir.list(self._key(name)):
            self.job_dir.delete(key)
        if self._local:  # folders, and temporary files of a killed writer, are not listed as objects
            shutil.rmtree(self._local / str(name), ignore_errors=True)

    def discard_failed(self, name: Name) -> None:
        """Remove an unfinished save and its closed metrics segment, to which no other segment refers."""
        self.discard(name)
        self.job_dir.delete(self._key(closed_key(str(name))))

    def discard_rank(self, name: Name, rank: int) -> None:
        """Remove one rank's part of a failed save, to free disk space for the next save."""
        if self.is_committed(name):
            return
        for file in (manifest_file(rank), data_file(rank)):
            self.job_dir.delete(self._key(name, file))
        if self._local:
            with contextlib.suppress(OSError):  # it holds other ranks' parts, or does not exist
                (self._local / str(name)).rmdir()

    def clean(self, attempt: int) -> None:
        """Remove uncommitted saves of attempts up to this one, and the fences of older attempts."""
        self.discard_uncommitted(lambda name: name.attempt <= attempt)
        for file in self.job_dir.files(self._key("fences")):
            fence = _FENCE.fullmatch(file)
            if fence and int(fence[1]) < attempt:
                self.job_dir.delete(self._key("fences", file))

    def discard_uncommitted(self, which: Callable[[Name], bool]) -> None:
        """Remove the uncommitted saves that `which` selects. Raises the last JobDirError after trying all of them."""
        failure: JobDirError | None = None
        for name in filter(which, self.names()):
            try:
                if not self._has(name, COMMIT):
                    self.discard_failed(name)
            except JobDirError as error:
                failure = error
        if failure:
            raise failure

    def retain(self, newest: Name, keep: int) -> None:
        """Remove all but the `keep` newest checkpoints, after `newest` was committed.

        Damaged and unreadable checkpoints are kept and not counted, since they may be the only ones left. Nothing is
        removed if there is a checkpoint newer than `newest`: a newer attempt wrote it, or the restore skipped it.
        Raises JobDirError if `newest` does not read back as written.
        """
        good = self.in_condition(Condition.GOOD)
        if good[:1] != [newest] or len(good) <= keep:
            return
        self._check_durable(newest)
        for name in good[keep:]:
            self.discard(name)

    def _check_durable(self, name: Name) -> None:
        """Raise JobDirError unless the checkpoint reads back complete, since older ones will be removed."""
        try:
            commit = self.read_commit(name)
        except UnusableError as error:
            raise JobDirError(f"{self}: {name} cannot be read back: {error}") from error
        if self.digests(name, len(commit.manifests)) != commit.manifests:
            raise JobDirError(f"{self}: {name} reads back other than it was written")

    # Reading

    def names(self) -> list[Name]:
        """Return all checkpoints and unfinished saves, newest first."""
        names = [name for name in map(Name.parse, self.job_dir.folders(self.prefix)) if name]
        return sorted(names, key=lambda name: name.age, reverse=True)

    def conditions(self) -> dict[Name, Condition]:
        """Return the condition of each checkpoint and unfinished save, newest first."""
        return {name: self._condition(name) for name in self.names()}

    def in_condition(self, *wanted: Condition) -> list[Name]:
        """Return the names in one of these conditions, newest first."""
        return [name for name, condition in self.conditions().items() if condition in wanted]

    def committed(self) -> list[Name]:
        """Return the checkpoints not known to be damaged, newest first, including unreadable ones."""
        return self.in_condition(Condition.GOOD, Condition.UNREADABLE)

    def damaged(self) -> list[Name]:
        """Return the checkpoints that are marked as damaged, newest first."""
        return self.in_condition(Condition.DAMAGED)

    def _condition(self, name: Name) -> Condition:
        try:
            if not self._has(name, COMMIT):
                return Condition.UNCOMMITTED
            return Condition.DAMAGED if self._has(name, DAMAGED) else Condition.GOOD
        except JobDirError:
            return Condition.UNREADABLE

    def read_commit(self, name: Name) -> Commit:
        """Return the verified COMMIT.json. Raises UnusableError if it cannot be read or is damaged."""
        content = self._read(name, COMMIT)
        try:
            commit = Commit.from_bytes(content)
        except (JobDirError, RecursionError) as error:
            raise UnusableError(f"{COMMIT}: {error}", damaged=True) from error
        if commit.format != FORMAT:
            raise UnusableError(f"it has another format, {commit.format!r:.80}, than {FORMAT}", damaged=False)
        if commit.digest() != commit.sha256 or commit.name != str(name):
            raise UnusableError(f"{COMMIT} is not the one that was written there", damaged=True)
        return commit

    def get(self, name: Name, file: str) -> bytes:
        """Return the content of a small file. Raises MissingError."""
        return self.job_dir.get(self._key(name, file))

    def get_range(self, name: Name, file: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of a file, fewer if the file ends before. Raises MissingError."""
        return self.job_dir.get_range(self._key(name, file), start, end)

    def file_size(self, name: Name, file: str) -> int:
        """Return the size of a file in bytes. Raises MissingError."""
        size = self.job_dir.size(self._key(name, file))
        if size is None:
            raise MissingError(f"{self}: there is no {name}/{file}")
        return size

    def local_path(self, name: Name, file: str) -> Path | None:
        """Return the path of a file on a mounted file system; None: it is in an object store."""
        return self._local / str(name) / file if self._local else None

    def mark_damaged(self, name: Name, reason: str) -> None:
        """Mark a checkpoint as damaged: later runs skip it, and retention keeps it for inspection."""
        self.job_dir.put(self._key(name, DAMAGED), json.dumps({"reason": reason}).encode())

    def unmark_damaged(self, name: Name) -> None:
        """Remove the mark of a checkpoint that verifies now: the read that found the damage was at fault."""
        self.job_dir.delete(self._key(name, DAMAGED))

    def size(self, name: Name) -> int:
        """Return the total size of a checkpoint's files in bytes."""
        return sum(self._sizes(name).values())

    # The folder

    def _read(self, name: Name, file: str) -> bytes:
        try:
            self._check_file(name, file)
            if self.file_size(name, file) > _MAX_COMMIT_BYTES:
                raise UnusableError(f"{file} is longer than any that was written", damaged=True)
            return self.job_dir.get(self._key(name, file))
        except MissingError as error:
            raise UnusableError(f"{file} is missing", damaged=True) from error
        except JobDirError as error:
            raise UnusableError(str(error), damaged=False) from error

    def _find(self, name: Name, file: str) -> bytes | None:
        return self.job_dir.find(self._key(name, file))

    def _has(self, name: Name, file: str) -> bool:
        self._check_file(name, file)
        return self.job_dir.exists(self._key(name, file))

    def _check_file(self, name: Name, file: str) -> None:
        """Raise JobDirError if there is a folder at the file's path."""
        path = self.local_path(name, file)
        if path is not None and os.path.isdir(path):  # noqa: PTH112 - False for an OSError
            raise JobDirError(f"{path}: a folder lies in its place")

    def _sizes(self, name: Name) -> Mapping[str, int]:
        """Return the size of each file of a checkpoint, in bytes."""
        return self.job_dir.files(self._key(name))

    def _key(self, *parts: object) -> str:
        return "/".join(str(part) for part in (self.prefix, *parts) if part != "")

    def _make_folder(self, name: Name) -> None:
        """Create a checkpoint's folder, and flush its parent folders to disk, so that it survives a power failure."""
        self.job_dir.writable_folder()
        if not self._local:
            return
        folder = self._local / str(name)
        above = [folder.parent, *([self._local.parent] if self.prefix else [])]
        _checked(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
        for parent in above:
            _checked(parent, lambda parent=parent: durable.flush_folder(parent))  # type: ignore[misc]

    def _put(self, name: Name, file: str, content: bytes) -> None:
        path = self.local_path(name, file)
        if path:
            _checked(path, lambda: durable.create(path, content, replace=True))
        else:
            self.job_dir.put(self._key(name, file), content)

    def _create(self, folder: Name | str, file: str, content: bytes) -> bool:
        """Create a file; return False if it exists with other content.

        A file with the same content is this one: the response to an earlier request may have been lost.
        """
        if self._local is None:
            return self.job_dir.create(self._key(folder, file), content)
        path = self._local / str(folder) / file
        return _checked(path, lambda: durable.create(path, content, replace=False) or path.read_bytes() == content)


def _size(manifest: bytes) -> int:
    """Return the size of the data file in bytes, from a serialized manifest, without creating Piece objects."""
    record = read_json(manifest, "not a rank's manifest")
    size = record.get("size") if isinstance(record, dict) else None
    if not isinstance(size, int):
        raise JobDirError("not a rank's manifest: it has no size")
    return size


def _each(call: Callable[[int], _T], numbers: Sequence[int]) -> list[_T]:
    """Return the result of `call` for each number; more than READERS calls are made by READERS threads."""
    if len(numbers) <= READERS:
        return [call(number) for number in numbers]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(call, numbers))


def _checked(path: Path, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except OSError as error:
        kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else JobDirError
        raise kind(f"{path}: writing failed: {error.strerror}") from error
