"""Checkpoints in a folder of the job dir: written once, committed last, verified when read, the old ones removed.

    <step>-<attempt>-<nonce>/rank-00000.pt     one rank's state; the name is never used twice
                             rank-00000.json   its size and the sha256 of each 8 MiB chunk: Shard
                             COMMIT.json       create-only, written when every rank's shard is there: Commit
                             DAMAGED.json      why verification failed: later runs pass over it
    fences/<attempt>.json                      create-only: this attempt has begun

A folder without COMMIT.json is no checkpoint: nobody restores it, a later attempt removes it. COMMIT.json carries the
hashes of the shards' records and its own, and names its folder: a bit flipped, cut off, missing or swapped is found.

Order and fencing. The newest checkpoint is that of the highest *attempt*, then of the highest step: not the highest
step alone. An attempt begins when the one before is believed dead. Should that one live on (a zombie), it may commit a
higher step than the new attempt has reached, in a history from which the new attempt has already branched off; by
attempt first, whatever the new one commits outranks it. Before the new attempt's first commit the zombie's checkpoint
may win: it is then simply the longest history there is, and nothing that was committed is lost by taking it. Besides,
a zombie that finds a newer fence before a commit stops by itself, and it never removes a newer attempt's checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..jobdir import JobDir, JobDirError, MissingError, Record
from .errors import CheckpointError, FencedError, UnusableError, logger
from .names import Name

FORMAT = "cloudgpu-checkpoint/1"
CHUNK = 8 << 20

_FENCE = re.compile(r"(\d{6,9})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard(Record):
    """rank-<i>.json: what rank-<i>.pt must be."""

    rank: int
    size: int
    chunks: list[str]
    """sha256 of each chunk of `chunk_size` bytes, in order."""
    chunk_size: int = CHUNK


@dataclass(frozen=True, slots=True)
class Commit(Record):
    """COMMIT.json."""

    name: str
    """Of the folder: a record in another checkpoint's folder is found out."""
    shards: list[str]
    """sha256 of each rank's record, in rank order; as many as there are ranks."""
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


def _file(rank: int, suffix: str) -> str:
    return f"rank-{rank:05d}.{suffix}"


class CheckpointStore:
    """The checkpoints of one training. Every method raises JobDirError where the job dir cannot be read or written."""

    def __init__(self, job_dir: JobDir, prefix: str) -> None:
        self._dir = job_dir
        self._prefix = prefix.strip("/")
        self._local: Path | None = None
        if job_dir.url.startswith("file://"):
            self._local = Path(unquote(job_dir.url.removeprefix("file://"))) / self._prefix

    def __str__(self) -> str:
        return str(self._local) if self._local else f"{self._dir.url}/{self._prefix}"

    # Attempts

    def claim(self, attempt: int | None) -> int:
        """Begin this attempt, or the one after the newest; from now on older ones are fenced off."""
        if attempt is not None:
            self._dir.create(self._key("fences", f"{attempt:06d}.json"), b"{}")
            return attempt
        while True:
            attempt = self.newest_attempt() + 1
            claim = json.dumps({"process": os.getpid(), "nonce": os.urandom(8).hex()}).encode()
            if self._dir.create(self._key("fences", f"{attempt:06d}.json"), claim):
                return attempt

    def newest_attempt(self) -> int:
        """The highest attempt that ever began here; 0 if none did."""
        fences = (_FENCE.fullmatch(key.rpartition("/")[2]) for key in self._dir.list(self._key("fences")))
        return max([int(fence[1]) for fence in fences if fence] + [name.attempt for name in self._names()], default=0)

    # Saving

    def write_shard(self, name: Name, rank: int, data: bytes) -> str:
        """Write one rank's state and its record; the record's sha256."""
        view = memoryview(data)
        hashes = [hashlib.sha256(view[at : at + CHUNK]).hexdigest() for at in range(0, len(view), CHUNK)]
        record = Shard(rank=rank, size=len(view), chunks=hashes).to_bytes()
        self._write(name, _file(rank, "pt"), data)
        self._write(name, _file(rank, "json"), record)
        return hashlib.sha256(record).hexdigest()

    def commit(self, name: Name, shards: Sequence[str], *, finished: bool, time: float) -> None:
        """Make it a checkpoint, all its shards being there; raises FencedError if a newer attempt has begun."""
        newest = self.newest_attempt()
        if newest > name.attempt:
            raise FencedError(f"attempt {newest} has taken over {self} from this attempt {name.attempt}")
        self._check_sizes(name, len(shards))
        unsigned = Commit(name=str(name), shards=list(shards), finished=finished, time=time)
        signed = Commit(**asdict(unsigned) | {"sha256": unsigned.digest()})
        if not self._dir.create(self._key(name, "COMMIT.json"), signed.to_bytes()):
            raise JobDirError(f"{self}: {name} has been committed by another process")
        self._sync(self._key(name, "COMMIT.json"))

    def discard(self, name: Name) -> None:
        """Remove a checkpoint or what a failed save left of it: first of all what makes it one."""
        self._dir.delete(self._key(name, "COMMIT.json"))
        for key in self._dir.list(self._key(name)):
            self._dir.delete(key)
        if self._local:  # a folder is no object, and a killed writer's half-written files are in no listing
            shutil.rmtree(self._local / str(name), ignore_errors=True)

    def clean(self, attempt: int) -> None:
        """Remove what dead writers left behind: uncommitted folders up to this attempt, and older attempts' fences."""
        for name in self._names():
            if name.attempt <= attempt and not self._has(name, "COMMIT.json"):
                self.discard(name)
        for key in self._dir.list(self._key("fences")):
            fence = _FENCE.fullmatch(key.rpartition("/")[2])
            if fence and int(fence[1]) < attempt:
                self._dir.delete(key)

    def retain(self, newest: Name, keep: int) -> None:
        """Remove all but the `keep` newest, `newest` having just been committed.

        Damaged ones do not count and go once they are older than those kept. Newer than `newest` is only what a newer
        attempt wrote: then nothing is ours to remove.
        """
        names = sorted(self._names(), key=lambda name: name.age, reverse=True)
        if not names or names[0] != newest:
            return
        good = [name for name in names if self._has(name, "COMMIT.json") and not self._has(name, "DAMAGED.json")]
        if newest not in good or len(good) <= keep:
            return
        for name in names:
            if name.age < good[keep - 1].age:
                self.discard(name)

    # Restoring

    def committed(self) -> list[Name]:
        """Every checkpoint not known to be damaged, newest first."""
        names = sorted(self._names(), key=lambda name: name.age, reverse=True)
        return [name for name in names if self._has(name, "COMMIT.json") and not self._has(name, "DAMAGED.json")]

    def read(self, name: Name, rank: int, world: int) -> tuple[Commit, bytes]:
        """The commit and one rank's verified state; raises UnusableError, or CheckpointError if the ranks differ."""
        commit = self._read_commit(name)
        if len(commit.shards) != world:
            raise CheckpointError(
                f"{self}: checkpoint {name} was saved by {len(commit.shards)} ranks, this run has {world}: run it with "
                "as many, or give another folder to begin anew"
            )
        record = self._read(name, _file(rank, "json"))
        if hashlib.sha256(record).hexdigest() != commit.shards[rank]:
            raise UnusableError(f"{_file(rank, 'json')} is not the one that was committed", damaged=True)
        shard = Shard.from_bytes(record)
        data = self._read(name, _file(rank, "pt"))
        if len(data) != shard.size:
            raise UnusableError(f"{_file(rank, 'pt')} has {len(data)} bytes instead of {shard.size}", damaged=True)
        view = memoryview(data)
        for number, expected in enumerate(shard.chunks):
            start = number * shard.chunk_size
            if hashlib.sha256(view[start : start + shard.chunk_size]).hexdigest() != expected:
                raise UnusableError(f"{_file(rank, 'pt')} differs from what was saved, from byte {start}", damaged=True)
        return commit, data

    def mark_damaged(self, name: Name, reason: str) -> None:
        """So that later runs pass over it, and a person can look at it meanwhile."""
        self._dir.put(self._key(name, "DAMAGED.json"), json.dumps({"reason": reason}).encode())

    def _read_commit(self, name: Name) -> Commit:
        try:
            commit = Commit.from_bytes(self._read(name, "COMMIT.json"))
        except JobDirError as error:
            raise UnusableError(f"COMMIT.json: {error}", damaged=True) from error
        if commit.format != FORMAT:
            raise UnusableError(f"it has another format, {commit.format!r:.80}, than {FORMAT}", damaged=False)
        if commit.digest() != commit.sha256 or commit.name != str(name):
            raise UnusableError("COMMIT.json is not the one that was written there", damaged=True)
        return commit

    def _read(self, name: Name, file: str) -> bytes:
        try:
            return self._dir.get(self._key(name, file))
        except MissingError as error:
            raise UnusableError(f"{file} is missing", damaged=True) from error
        except JobDirError as error:
            raise UnusableError(str(error), damaged=False) from error

    # The folder

    def _key(self, *parts: object) -> str:
        return "/".join(str(part) for part in (self._prefix, *parts) if part != "")

    def _names(self) -> list[Name]:
        return [name for name in map(Name.parse, self._dir.folders(self._prefix)) if name]

    def _has(self, name: Name, file: str) -> bool:
        return self._dir.exists(self._key(name, file))

    def _check_sizes(self, name: Name, world: int) -> None:
        """That every shard arrived whole, before any older checkpoint may be given up for this one."""
        sizes = {entry.key.rpartition("/")[2]: entry.size for entry in self._dir.entries(self._key(name))}
        for rank in range(world):
            shard = Shard.from_bytes(self._dir.get(self._key(name, _file(rank, "json"))))
            if sizes.get(_file(rank, "pt")) != shard.size:
                raise JobDirError(
                    f"{self}: {name}/{_file(rank, 'pt')} has {sizes.get(_file(rank, 'pt'))} bytes, "
                    f"{shard.size} were written"
                )

    def _write(self, name: Name, file: str, data: bytes) -> None:
        self._dir.put(self._key(name, file), data)
        self._sync(self._key(name, file))

    def _sync(self, key: str) -> None:
        """Local files: to the disk, so that a power cut leaves what was committed. Object stores do so themselves."""
        if self._local is None:
            return
        path = self._local / key.removeprefix(self._prefix).strip("/")
        try:
            for item in (path, path.parent, path.parent.parent):
                descriptor = os.open(item, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise JobDirError(f"{path}: flushing it to the disk failed: {error.strerror}") from error


def read_newest(store: CheckpointStore, ranks: Any) -> tuple[Name, Commit, bytes] | None:  # noqa: ANN401
    """The newest checkpoint of which every rank verified its own shard; None if there has never been one.

    Raises CheckpointError if there are some, none can be used, and one of them only for now: beginning anew would then
    throw away what may be readable again in a minute.
    """
    unreadable: list[str] = []
    names = ranks.from_first(store.committed)
    for name in names:
        problem: tuple[str, bool] | None = None
        try:
            commit, data = store.read(name, ranks.rank, ranks.world)
        except UnusableError as error:
            problem = str(error), error.damaged
        except JobDirError as error:
            problem = str(error), False
        verdicts = ranks.gather(problem)
        if not any(verdicts):
            return name, commit, data
        if ranks.rank == 0:
            _report(store, name, verdicts)
        if any(not verdict[1] for verdict in verdicts if verdict):
            unreadable.append(str(name))
    if unreadable:
        raise CheckpointError(f"{store}: no checkpoint could be restored ({', '.join(unreadable)}): see above")
    if names and ranks.rank == 0:
        logger().warning(f"{store}: every checkpoint is damaged: training begins anew")
    return None


def _report(store: CheckpointStore, name: Name, verdicts: Sequence[tuple[str, bool] | None]) -> None:
    rank, (reason, damaged) = next((rank, verdict) for rank, verdict in enumerate(verdicts) if verdict)
    logger().warning(f"checkpoint {name} is passed over (rank {rank}): {reason}")
    if not damaged:
        return
    try:
        store.mark_damaged(name, reason)
    except JobDirError as error:
        logger().warning(f"checkpoint {name} could not be marked as damaged: {error}")
