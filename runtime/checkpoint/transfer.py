"""The newest checkpoint of a training, on its way into another job dir, verified on the way; and its metrics.

As when it is saved, COMMIT.json comes last: what is copied by half is no checkpoint, and whoever goes on with it copies
what is not there yet. Names are never used twice, so what is there under one is this checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..copying import Copier
from ..jobdir import Entry, JobDirError
from ..metrics import Segment, closed_key, open_key
from .errors import UnusableError
from .loading import Files
from .manifest import chunk_hash, data_file, manifest_file
from .names import Name
from .store import COMMIT, DAMAGED, CheckpointStore, Commit
from .verified import DataFile, confirmed, open_data


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


def transfer(
    folder: str, copier: Copier, attempt: int, on_begin: Callable[[Transferred], None]
) -> tuple[Transferred | None, list[str]]:
    """The newest checkpoint in a folder that is whole, once it is there in the target too; None: there is none. And
    what was found damaged meanwhile, which later runs pass over.

    `attempt` is about to begin, in the target: whoever is left of an older one can commit nothing more here.
    `on_begin`: called if there is something to copy. Raises JobDirError, InterruptedCopyError.
    """
    source = CheckpointStore(copier.source, folder)
    source.claim(attempt)
    damaged: list[str] = []
    for name in source.committed():
        try:
            return _Transfer(source, copier, name).run(on_begin), damaged
        except UnusableError as error:
            if not error.damaged:
                raise JobDirError(f"{source}: checkpoint {name} cannot be copied: {error}") from error
            source.mark_damaged(name, str(error))
            damaged.append(f"{name}: {error}")
    return None, damaged


class _Transfer:
    """One checkpoint. Methods raise UnusableError where it is not what was saved."""

    def __init__(self, source: CheckpointStore, copier: Copier, name: Name) -> None:
        self._source, self._copier, self._name = source, copier, name
        self._target = CheckpointStore(copier.target, source.prefix)
        self._there = {_file(entry): entry.size for entry in copier.target.entries(self._key())}

    def run(self, on_begin: Callable[[Transferred], None]) -> Transferred:
        if DAMAGED in self._there:  # programs pass over it there: what is whole here takes its place
            self._target.discard(self._name)
            self._there = {}
        entries = self._copier.source.entries(self._key())
        size, source = sum(entry.size for entry in entries), self._copier.source.url
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

    def _copy_rank(self, commit: Commit, rank: int) -> None:
        """Its data, each chunk compared with its hash, then the manifest: which says that the data is there."""
        file, described = data_file(rank), manifest_file(rank)
        files = Files(self._source, self._name, commit)
        manifest = files.manifest(rank)
        if described in self._there and self._there.get(file) == manifest.size:
            return
        data = open_data(self._source, self._name, rank, manifest.size)

        def read(start: int, end: int) -> memoryview:
            expected = manifest.chunks[start // manifest.chunk_size]
            return confirmed(lambda: _verified(data, start, end, expected, file), data.path)

        try:
            self._copier.stream(self._key(file), manifest.size, manifest.chunk_size, read)
        finally:
            data.close()
        self._copier.write(self._key(described), confirmed(lambda: files.content(rank), None))

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
                parent = Segment.from_bytes(self._copier.source.get(entry.key).partition(b"\n")[0]).parent
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


def _file(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]


def _verified(data: DataFile, start: int, end: int, expected: str, file: str) -> memoryview:
    view = memoryview(bytearray(end - start))
    data.read(start, [view])
    if chunk_hash(view) != expected:
        raise UnusableError(f"{file} differs from what was saved, from byte {start}", damaged=True)
    return view
