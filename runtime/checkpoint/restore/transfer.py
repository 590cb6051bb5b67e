"""The newest checkpoint of a training is copied into another job dir, verified on the way; and its metrics.

As when it is saved, COMMIT.json comes last: what is copied by half is no checkpoint, and whoever goes on with it copies
what is not there yet. Names are never used twice, so what is there under one is this checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ....protocol.checkpoint_names import Name
from ....protocol.jobdir import Entry, JobDirError
from ....protocol.metrics import Segment, closed_key, open_key
from ....storage.copying import Copier
from ..errors import UnusableError
from ..format.manifest import RankManifest, chunk_hash, data_file, manifest_file
from ..store import COMMIT, DAMAGED, CheckpointStore, Commit
from .loading import Files
from .verified_reads import DataFile, confirmed, open_data

_LONGEST_HEAD = 64 << 10
"""Limits the bytes that are read of a segment of metrics for its first line, which names the one before."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """A checkpoint that is in both job dirs."""

    step: int
    """Steps done in it."""
    size: int
    """Bytes of all its files."""
    copied: bool
    """False: it was there already."""
    source: str
    """URL of the job dir that it is from."""


Damaged = dict[tuple[str, Name], str]
"""Why each is damaged, by the URL of its job dir and its name."""


def transfer(
    folder: str,
    copier: Copier,
    attempt: int,
    damaged: Damaged,
    on_begin: Callable[[Transferred], None],
    *,
    marked: bool = False,
) -> Transferred | None:
    """Copy the newest checkpoint of a folder that is whole, and return it; None if there is none.

    damaged   gets what is found damaged, which is marked and which later runs pass over; what is in it is not read
    marked    try those that are marked as damaged, for what read them may have been at fault
    on_begin  called if there is something to copy

    `attempt` is about to begin, in the target: what is left of an older one can commit nothing more here. Raises
    JobDirError, InterruptedCopyError.
    """
    source = CheckpointStore(copier.source, folder)
    source.claim(attempt)
    for name in source.damaged() if marked else source.committed():
        key = copier.source.url, name
        if key in damaged:
            continue
        try:
            found = _Transfer(source, copier, name).run(on_begin)
        except UnusableError as error:
            if not error.damaged:
                raise JobDirError(f"{source}: checkpoint {name} cannot be copied: {error}") from error
            source.mark_damaged(name, str(error))
            damaged[key] = str(error)
            continue
        if marked:
            source.unmark_damaged(name)
        return found
    return None


class _Transfer:
    """One checkpoint. Methods raise UnusableError where it is not what was saved."""

    def __init__(self, source: CheckpointStore, copier: Copier, name: Name) -> None:
        self._source, self._copier, self._name = source, copier, name
        self._target = CheckpointStore(copier.target, source.prefix)
        self._there = dict(copier.target.files(self._key()))

    def run(self, on_begin: Callable[[Transferred], None]) -> Transferred:
        if self._copier.source.url == self._copier.target.url:
            return self._verify_in_place()
        if DAMAGED in self._there:  # programs pass over it there: what is whole here takes its place
            self._target.discard(self._name)
            self._there = {}
        size, source = sum(self._copier.source.files(self._key()).values()), self._copier.source.url
        told = Transferred(self._name.step, size, COMMIT not in self._there, source)
        if not told.copied:
            return told
        commit = confirmed(lambda: self._source.read_commit(self._name), None)
        on_begin(told)
        for rank in range(len(commit.manifests)):
            self._copy_rank(commit, rank)
        self._copy_metrics()
        self._copier.check()
        if not self._copier.target.create(self._key(COMMIT), commit.to_bytes()):
            raise JobDirError(f"{self._target}: {self._name} has been committed by another process")
        return told

    def _verify_in_place(self) -> Transferred:
        if DAMAGED in self._there:
            commit = confirmed(lambda: self._source.read_commit(self._name), None)
            files = Files(self._source, self._name, commit)
            for rank in range(files.world):
                manifest = files.manifest(rank)
                with self._reader(manifest) as read:
                    for start in range(0, manifest.size, manifest.chunk_size):
                        self._copier.check()
                        read(start, min(start + manifest.chunk_size, manifest.size))
        return Transferred(self._name.step, sum(self._there.values()), copied=False, source=self._copier.source.url)

    def _copy_rank(self, commit: Commit, rank: int) -> None:
        """Its data, each chunk compared with its hash, then the manifest: which says that the data is there."""
        file, described = data_file(rank), manifest_file(rank)
        files = Files(self._source, self._name, commit)
        manifest = files.manifest(rank)
        if described in self._there and self._there.get(file) == manifest.size:
            return
        with self._reader(manifest) as read:
            self._copier.stream(self._key(file), manifest.size, manifest.chunk_size, read)
        self._copier.write(self._key(described), confirmed(lambda: files.content(rank), None))

    @contextmanager
    def _reader(self, manifest: RankManifest) -> Iterator[Callable[[int, int], memoryview]]:
        """Yield a function that returns the bytes of one chunk, verified, of a rank's data."""
        data = open_data(self._source, self._name, manifest.rank, manifest.size)

        def read(start: int, end: int) -> memoryview:
            expected = manifest.chunks[start // manifest.chunk_size]
            return confirmed(lambda: _verified(data, start, end, expected, data_file(manifest.rank)), data.path)

        try:
            yield read
        finally:
            data.close()

    def _copy_metrics(self) -> None:
        """The segments of its history, the oldest first: so one that is there has all before it."""
        missing: list[Entry] = []
        keys = [open_key(str(self._name)), closed_key(str(self._name))]
        while keys:
            entry = self._find(keys)
            if entry is None or entry in missing or self._copier.target.size(entry.key) == entry.size:
                break
            missing.append(entry)
            try:
                head = self._copier.source.get_range(entry.key, 0, min(entry.size, _LONGEST_HEAD))
                parent = Segment.from_bytes(head.partition(b"\n")[0]).parent
            except ValueError:  # damaged: `cloudgpu metrics` says so, there as here, and the training does not need it
                break
            keys = [] if parent is None else [closed_key(parent)]
        for entry in reversed(missing):
            self._copier.copy(entry)

    def _find(self, keys: Sequence[str]) -> Entry | None:
        """The first of these segments that there is."""
        found = (self._copier.source.entry(f"{self._source.prefix}/{key}") for key in keys)
        return next((entry for entry in found if entry is not None), None)

    def _key(self, file: str = "") -> str:
        return f"{self._source.prefix}/{self._name}" + (f"/{file}" if file else "")


def _verified(data: DataFile, start: int, end: int, expected: str, file: str) -> memoryview:
    view = memoryview(bytearray(end - start))
    data.read(start, [view])
    if chunk_hash(view) != expected:
        raise UnusableError(f"{file} differs from what was saved, from byte {start}", damaged=True)
    return view
