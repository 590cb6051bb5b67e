"""Checkpoints in a folder of the job dir: written once, committed last, verified when read, the old ones removed.

docs/reference/checkpoint-format.md describes what lies there, and why a crash at any moment leaves nothing that
misleads.
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
"""Manifests that are read at the same time."""

_MANIFEST = re.compile(r"rank-(\d{5})\.json", re.ASCII)
_FENCE = re.compile(r"(\d{6,9})\.json", re.ASCII)
_LONGEST_COMMIT = 64 << 20
"""Bytes of a COMMIT.json that is read: more than half a million ranks need."""
_T = TypeVar("_T")


class NoRoomError(JobDirError):
    """The disk, or this user's share of it, is full."""


class Condition(enum.Enum):
    """The condition of a checkpoint's folder, as far as it shows without reading the checkpoint."""

    UNCOMMITTED = enum.auto()
    """A save that is under way, or that failed."""
    GOOD = enum.auto()
    """Committed, and not known to be damaged."""
    DAMAGED = enum.auto()
    """Marked as damaged."""
    UNREADABLE = enum.auto()
    """It cannot be looked at for now."""


@dataclass(frozen=True, slots=True)
class Commit(Record):
    """COMMIT.json."""

    name: str
    """Of the folder: a record in another checkpoint's folder is found out."""
    manifests: list[str]
    """sha256 of each rank's manifest, in rank order; as many as there are ranks."""
    finished: bool
    """The training reached its end with this step."""
    time: float
    """Epoch seconds, for people only."""
    format: str = FORMAT
    sha256: str = ""
    """Of this record with this field left empty."""

    def digest(self) -> str:
        fields = asdict(self) | {"sha256": ""}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class CheckpointStore:
    """The checkpoints of one training. Every method raises JobDirError where the job dir cannot be read or written."""

    def __init__(self, job_dir: JobDir, prefix: str) -> None:
        self.job_dir = job_dir
        self.prefix = prefix.strip("/")
        self._local = job_dir.folder / self.prefix if job_dir.folder else None

    def __str__(self) -> str:
        return str(self._local) if self._local else f"{self.job_dir.url}/{self.prefix}"

    # Attempts

    def claim(self, attempt: int | None) -> int:
        """Begin this attempt, or the one after the newest; from now on older ones are fenced off.

        The fence is created as a COMMIT.json is: where this raises JobDirError, nothing could be committed either.
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
        """The highest attempt that ever began here; 0 if none did."""
        fences = map(_FENCE.fullmatch, self.job_dir.files(self._key("fences")))
        return max([int(fence[1]) for fence in fences if fence] + [name.attempt for name in self.names()], default=0)

    def check_fence(self, attempt: int) -> None:
        """Raises FencedError if a newer attempt has begun."""
        newest = self.newest_attempt()
        if newest > attempt:
            raise FencedError(f"attempt {newest} has taken over {self} from this attempt {attempt}")

    # Saving

    def write_rank(self, manifest: RankManifest, data: memoryview) -> bytes:
        """Write one rank's part, its manifest last, both durable; the manifest with the data's hashes, as written.

        Writing the same part again, after the writer was killed, changes nothing that a reader may have seen already.
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
        """Whose parts are there, and durable."""
        return {int(file[1]) for file in map(_MANIFEST.fullmatch, self._sizes(name)) if file}

    def digests(self, name: Name, world: int) -> list[str]:
        """sha256 of each rank's manifest as the store has it; raises JobDirError if a part is missing or not whole."""
        sizes = self._sizes(name)

        def digest(rank: int) -> str:
            content = self.job_dir.get(self._key(name, manifest_file(rank)))
            expected, found = _size(content), sizes.get(data_file(rank))
            if found != expected:
                raise JobDirError(f"{self}: {name}/{data_file(rank)} has {found} bytes, {expected} were written")
            return hashlib.sha256(content).hexdigest()

        return _each(digest, range(world))

    def commit(self, name: Name, digests: Sequence[str], *, finished: bool, time: float) -> None:
        """Make it a checkpoint, all its parts being there; raises FencedError if a newer attempt has begun."""
        unsigned = Commit(name=str(name), manifests=list(digests), finished=finished, time=time)
        signed = Commit(**asdict(unsigned) | {"sha256": unsigned.digest()}).to_bytes()
        self.check_fence(name.attempt)
        if not self._create(name, COMMIT, signed):
            raise JobDirError(f"{self}: {name} has been committed by another process")

    def is_committed(self, name: Name) -> bool:
        return self._has(name, COMMIT)

    def put_rows(self, rows: bytes) -> None:
        """Metrics of the steps up to a checkpoint, in their place; before it is committed. Raises ValueError."""
        key = Segment.from_bytes(rows).key
        if self._local is None:
            return self.job_dir.put(self._key(key), rows)
        path = self._local / key
        self.job_dir.writable_folder()
        _checked(path, lambda: path.parent.mkdir(parents=True, exist_ok=True))
        _checked(path, lambda: durable.create(path, rows, replace=True))
        return None

    def find_rows(self, key: str) -> bytes | None:
        """A segment of metrics; None: there is none under this key."""
        return self.job_dir.find(self._key(key))

    # Removing

    def discard(self, name: Name) -> None:
        """Remove a checkpoint or what a failed save left of it: first of all what makes it one."""
        self.job_dir.delete(self._key(name, COMMIT))
        own = [self._key(name, file) for file in self._sizes(name) if file.endswith((".json", ".bin"))]
        for key in own if self._local else self.job_dir.list(self._key(name)):
            self.job_dir.delete(key)
        if self._local:  # a folder is no object, and a killed writer's half-written files are in no listing
            shutil.rmtree(self._local / str(name), ignore_errors=True)

    def discard_failed(self, name: Name) -> None:
        """Remove a save that never became a checkpoint, with its metrics: nobody follows their names."""
        self.discard(name)
        self.job_dir.delete(self._key(closed_key(str(name))))

    def discard_rank(self, name: Name, rank: int) -> None:
        """Remove one rank's part of a save that failed: its room is needed for the next one."""
        if self.is_committed(name):
            return
        for file in (manifest_file(rank), data_file(rank)):
            self.job_dir.delete(self._key(name, file))
        if self._local:
            with contextlib.suppress(OSError):  # other ranks' parts are in it, or it was never made
                (self._local / str(name)).rmdir()

    def clean(self, attempt: int) -> None:
        """Remove what dead writers left: uncommitted folders up to this attempt, and the fences of older attempts."""
        self.discard_uncommitted(lambda name: name.attempt <= attempt)
        for file in self.job_dir.files(self._key("fences")):
            fence = _FENCE.fullmatch(file)
            if fence and int(fence[1]) < attempt:
                self.job_dir.delete(self._key("fences", file))

    def discard_uncommitted(self, which: Callable[[Name], bool]) -> None:
        """Remove saves that never became checkpoints; if some cannot be removed, all others."""
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
        """Remove all but the `keep` newest, `newest` having just been committed, if it reads back as it was written.

        Damaged ones do not count and stay: they may be all that is left of a training, and a person decides. So do
        unreadable ones. Newer than `newest` is only what a newer attempt wrote, or what a restore passed over: then
        nothing is removed.
        """
        good = self.in_condition(Condition.GOOD)
        if good[:1] != [newest] or len(good) <= keep:
            return
        self._check_durable(newest)
        for name in good[keep:]:
            self.discard(name)

    def _check_durable(self, name: Name) -> None:
        """Raise JobDirError unless it is all there: older ones are given up for it."""
        try:
            commit = self.read_commit(name)
        except UnusableError as error:
            raise JobDirError(f"{self}: {name} cannot be read back: {error}") from error
        if self.digests(name, len(commit.manifests)) != commit.manifests:
            raise JobDirError(f"{self}: {name} reads back other than it was written")

    # Reading

    def names(self) -> list[Name]:
        """Every checkpoint and every save that is under way or failed, newest first."""
        names = [name for name in map(Name.parse, self.job_dir.folders(self.prefix)) if name]
        return sorted(names, key=lambda name: name.age, reverse=True)

    def conditions(self) -> dict[Name, Condition]:
        """Return the condition of each, newest first."""
        return {name: self._condition(name) for name in self.names()}

    def in_condition(self, *wanted: Condition) -> list[Name]:
        """Return those in one of these conditions, newest first."""
        return [name for name, condition in self.conditions().items() if condition in wanted]

    def committed(self) -> list[Name]:
        """Return every checkpoint not known to be damaged, newest first; also what cannot be looked at for now."""
        return self.in_condition(Condition.GOOD, Condition.UNREADABLE)

    def damaged(self) -> list[Name]:
        """Return every checkpoint that is marked as damaged, newest first."""
        return self.in_condition(Condition.DAMAGED)

    def _condition(self, name: Name) -> Condition:
        try:
            if not self._has(name, COMMIT):
                return Condition.UNCOMMITTED
            return Condition.DAMAGED if self._has(name, DAMAGED) else Condition.GOOD
        except JobDirError:
            return Condition.UNREADABLE

    def read_commit(self, name: Name) -> Commit:
        """The verified record; raises UnusableError."""
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
        """A whole small file; raises MissingError."""
        return self.job_dir.get(self._key(name, file))

    def get_range(self, name: Name, file: str, start: int, end: int) -> bytes:
        """Bytes of a file; raises MissingError. Fewer than asked for if the file is shorter, if the store says so."""
        return self.job_dir.get_range(self._key(name, file), start, end)

    def file_size(self, name: Name, file: str) -> int:
        """Bytes; raises MissingError."""
        size = self.job_dir.size(self._key(name, file))
        if size is None:
            raise MissingError(f"{self}: there is no {name}/{file}")
        return size

    def local_path(self, name: Name, file: str) -> Path | None:
        """Where the file lies on a mounted file system; None: in an object store."""
        return self._local / str(name) / file if self._local else None

    def mark_damaged(self, name: Name, reason: str) -> None:
        """Have later runs pass over it, and retention leave it alone: a person may want to look at it."""
        self.job_dir.put(self._key(name, DAMAGED), json.dumps({"reason": reason}).encode())

    def unmark_damaged(self, name: Name) -> None:
        """Make it a checkpoint again: it verifies now, so what read it before was at fault."""
        self.job_dir.delete(self._key(name, DAMAGED))

    def size(self, name: Name) -> int:
        """Return the bytes of all its files."""
        return sum(self._sizes(name).values())

    # The folder

    def _read(self, name: Name, file: str) -> bytes:
        try:
            self._check_file(name, file)
            if self.file_size(name, file) > _LONGEST_COMMIT:
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
        """Raise JobDirError if a folder lies in the file's place."""
        path = self.local_path(name, file)
        if path is not None and os.path.isdir(path):  # noqa: PTH112 - False where it cannot be looked at
            raise JobDirError(f"{path}: a folder lies in its place")

    def _sizes(self, name: Name) -> Mapping[str, int]:
        """Bytes of each file of a checkpoint."""
        return self.job_dir.files(self._key(name))

    def _key(self, *parts: object) -> str:
        return "/".join(str(part) for part in (self.prefix, *parts) if part != "")

    def _make_folder(self, name: Name) -> None:
        """Its entries in the folders above are durable too, or a power cut could take the whole checkpoint."""
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
        """Create only; True also if the very same is there: the answer to a write may have been lost."""
        if self._local is None:
            return self.job_dir.create(self._key(folder, file), content)
        path = self._local / str(folder) / file
        return _checked(path, lambda: durable.create(path, content, replace=False) or path.read_bytes() == content)


def _size(manifest: bytes) -> int:
    """Bytes of data according to a manifest, without making the pieces of all ranks into objects."""
    record = read_json(manifest, "not a rank's manifest")
    size = record.get("size") if isinstance(record, dict) else None
    if not isinstance(size, int):
        raise JobDirError("not a rank's manifest: it has no size")
    return size


def _each(call: Callable[[int], _T], numbers: Sequence[int]) -> list[_T]:
    """The call's results, made by several threads if there are many: each waits for the store."""
    if len(numbers) <= READERS:
        return [call(number) for number in numbers]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(call, numbers))


def _checked(path: Path, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except OSError as error:
        kind = NoRoomError if error.errno in (errno.ENOSPC, errno.EDQUOT) else JobDirError
        raise kind(f"{path}: writing failed: {error.strerror}") from error
