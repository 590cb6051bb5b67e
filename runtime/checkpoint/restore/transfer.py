"""Copy the newest intact checkpoint of a training, and its metrics, to another job dir.

COMMIT.json is copied last, so that a partial copy is not taken for a checkpoint. An interrupted copy can be resumed:
names of checkpoints are unique, so files that the target already has under a name belong to the same checkpoint.
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
from .verified_reads import DataFile, open_data, retry_if_damaged

_LONGEST_HEAD = 64 << 10
"""Maximum bytes read of a metrics segment to get its first line, which names the previous segment."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """A checkpoint that is in the source and, after the copy, in the target job dir."""

    step: int
    """Number of completed steps."""
    size: int
    """Size of the checkpoint's files in bytes."""
    copied: bool
    """False if the target had the checkpoint already."""
    source: str
    """URL of the job dir from which it was copied."""


Damaged = dict[tuple[str, Name], str]
"""Reason why each damaged checkpoint is damaged, by the URL of its job dir and its name."""


def transfer(
    folder: str,
    copier: Copier,
    attempt: int,
    damaged: Damaged,
    on_begin: Callable[[Transferred], None],
    *,
    marked: bool = False,
) -> Transferred | None:
    """Copy the newest intact checkpoint of a folder and return it; None if there is none.

    attempt   number of the attempt about to begin in the target; commits of older attempts are fenced off in the source
    damaged   checkpoints to skip; those that are found damaged are added, and marked in the source
    on_begin  called before the first file is copied, if any
    marked    True: try only the checkpoints marked as damaged, since an earlier reader may have been at fault; the mark
              of an intact one is removed

    Raises JobDirError if a job dir cannot be read or written, InterruptedCopyError if the copy is interrupted.
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
    """Copy of one checkpoint. Methods raise UnusableError if it cannot be read, or differs from what was saved."""

    def __init__(self, source: CheckpointStore, copier: Copier, name: Name) -> None:
        self._source, self._copier, self._name = source, copier, name
        self._target = CheckpointStore(copier.target, source.prefix)
        self._target_files = dict(copier.target.files(self._key()))

    def run(self, on_begin: Callable[[Transferred], None]) -> Transferred:
        if self._copier.source.url == self._copier.target.url:
            return self._verify_in_place()
        if DAMAGED in self._target_files:  # programs skip a marked checkpoint: replace it by the intact one
            self._target.discard(self._name)
            self._target_files = {}
        size, source = sum(self._copier.source.files(self._key()).values()), self._copier.source.url
        transferred = Transferred(self._name.step, size, COMMIT not in self._target_files, source)
        if not transferred.copied:
            return transferred
        commit = retry_if_damaged(lambda: self._source.read_commit(self._name), None)
        on_begin(transferred)
        for rank in range(len(commit.manifests)):
            self._copy_rank(commit, rank)
        self._copy_metrics()
        self._copier.check()
        if not self._copier.target.create(self._key(COMMIT), commit.to_bytes()):
            raise JobDirError(f"{self._target}: {self._name} has been committed by another process")
        return transferred

    def _verify_in_place(self) -> Transferred:
        if DAMAGED in self._target_files:
            commit = retry_if_damaged(lambda: self._source.read_commit(self._name), None)
            files = Files(self._source, self._name, commit)
            for rank in range(files.world):
                manifest = files.manifest(rank)
                with self._reader(manifest) as read:
                    for start in range(0, manifest.size, manifest.chunk_size):
                        self._copier.check()
                        read(start, min(start + manifest.chunk_size, manifest.size))
        return Transferred(
            self._name.step, sum(self._target_files.values()), copied=False, source=self._copier.source.url
        )

    def _copy_rank(self, commit: Commit, rank: int) -> None:
        """Copy a rank's data, verifying each chunk, then its manifest, whose presence marks the data as complete."""
        file, described = data_file(rank), manifest_file(rank)
        files = Files(self._source, self._name, commit)
        manifest = files.manifest(rank)
        if described in self._target_files and self._target_files.get(file) == manifest.size:
            return
        with self._reader(manifest) as read:
            self._copier.stream(self._key(file), manifest.size, manifest.chunk_size, read)
        self._copier.write(self._key(described), retry_if_damaged(lambda: files.content(rank), None))

    @contextmanager
    def _reader(self, manifest: RankManifest) -> Iterator[Callable[[int, int], memoryview]]:
        """Yield a function (start, end) that returns one chunk of a rank's data, verified; offsets in bytes."""
        data = open_data(self._source, self._name, manifest.rank, manifest.size)

        def read(start: int, end: int) -> memoryview:
            expected = manifest.chunks[start // manifest.chunk_size]
            return retry_if_damaged(lambda: _verified(data, start, end, expected, data_file(manifest.rank)), data.path)

        try:
            yield read
        finally:
            data.close()

    def _copy_metrics(self) -> None:
        """Copy the checkpoint's metrics segments, oldest first: a segment in the target implies all earlier ones."""
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
            except ValueError:  # damaged: reported by `cloudgpu metrics`; training does not need it
                break
            keys = [] if parent is None else [closed_key(parent)]
        for entry in reversed(missing):
            self._copier.copy(entry)

    def _find(self, keys: Sequence[str]) -> Entry | None:
        """Return the first of these segments that exists."""
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
