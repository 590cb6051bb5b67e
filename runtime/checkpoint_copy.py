"""Copy a job's newest intact checkpoint into a new job's folder, from which its first attempt then starts.

The copy belongs to attempt 0, which precedes all attempts of the new job; so its manifests and COMMIT.json are written
anew, with the copy's name. Each chunk of data is verified while it is copied. COMMIT.json is written last: a partial
copy is not a checkpoint. The source is only read, and may be a running job.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..protocol.checkpoint_names import Name
from ..protocol.jobdir import JobDir, JobDirError
from ..protocol.metrics import Segment, closed_key, find_segment, trainings
from ..storage.copying import Copier
from .checkpoint.errors import UnusableError
from .checkpoint.format.manifest import data_file, manifest_file
from .checkpoint.restore.loading import Files
from .checkpoint.restore.transfer import verified_chunks
from .checkpoint.restore.verified_reads import retry_if_damaged
from .checkpoint.store import CheckpointStore

_FOLDER = "checkpoints"
_FIRST = 0
"""Attempt number of a copy."""

OnBytes = Callable[[int, int], None]
"""(bytes copied, bytes in total), of one training."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The committed checkpoints of a job."""

    steps: tuple[int, ...]
    """Steps of those that may be restored, newest first; of several trainings, those that each has."""
    trainings: int
    """Number of trainings: several if each node trains separately."""
    newest_attempt: int
    """Highest attempt that ever saved or began to."""
    size: int
    """Size in bytes of the checkpoints that may be restored."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of copy_checkpoints()."""

    step: int
    size: int
    skipped: tuple[str, ...] = field(default=())
    """Damaged checkpoints that were passed over, each with the reason."""


def survey(job_dir: JobDir, since: int) -> Saved:
    """Return what a job has saved. `since`: number of the first attempt whose checkpoints may be restored.

    Raises JobDirError.
    """
    stores = [CheckpointStore(job_dir, folder, since=since) for folder in trainings(job_dir)]
    names = [store.committed() for store in stores]
    steps = [dict.fromkeys(name.step for name in found) for found in names]
    common = [step for step in steps[0] if all(step in other for other in steps)] if steps else []
    size = sum(store.size(name) for store, found in zip(stores, names, strict=True) for name in found)
    newest = max((store.newest_attempt() for store in stores), default=0)
    return Saved(tuple(common), len(stores), newest, size)


def copy_checkpoints(
    source: JobDir, target: JobDir, *, step: int | None, since: int, on_bytes: OnBytes
) -> Copied | None:
    """Copy the newest intact checkpoint of each training, or that of a step; None: a training has none.

    `since` as for survey(). Raises JobDirError.
    """
    copied: list[Copied] = []
    skipped: dict[str, str] = {}
    for folder in trainings(source):
        found = _copy_newest(CheckpointStore(source, folder, since=since), target, step, skipped, on_bytes)
        if found is None:
            _discard_all(target)  # the copies of other trainings
            return None
        copied.append(found)
    if not copied:
        return None
    reasons = tuple(f"{name}: {reason}" for name, reason in skipped.items())
    return Copied(min(one.step for one in copied), sum(one.size for one in copied), reasons)


def _discard_all(target: JobDir) -> None:
    """Remove all checkpoints of a new job's folder."""
    for folder in trainings(target):
        store = CheckpointStore(target, folder)
        for name in store.names():
            store.discard(name)


def _copy_newest(
    store: CheckpointStore, target: JobDir, step: int | None, skipped: dict[str, str], on_bytes: OnBytes
) -> Copied | None:
    tried: set[Name] = set()
    # List again after each pass: a running source removes old checkpoints, and commits newer ones.
    while names := [name for name in store.committed() if step in (None, name.step) and name not in tried]:
        for name in names:
            tried.add(name)
            try:
                return _Copy(store, target, name, on_bytes).run()
            except UnusableError as error:
                if not error.damaged:
                    raise JobDirError(f"{store}: checkpoint {name} cannot be copied: {error}") from error
                CheckpointStore(target, store.prefix).discard(_new_name(name))
                skipped[f"{store}/{name}"] = str(error)
    return None


def _new_name(name: Name) -> Name:
    return Name(name.step, _FIRST, name.nonce)


class _Copy:
    """Copy of one checkpoint."""

    def __init__(self, source: CheckpointStore, target: JobDir, name: Name, on_bytes: OnBytes) -> None:
        self._source, self._name, self._on_bytes = source, name, on_bytes
        self._target, self._new = CheckpointStore(target, source.prefix), _new_name(name)
        self._copier = Copier(source.job_dir, target, lambda: True, lambda: None)
        self._done, self._size = 0, source.size(name)
        self._lock = threading.Lock()
        """Guards `_done`: several threads read."""

    def run(self) -> Copied:
        """Copy it, COMMIT.json last. Raises UnusableError if it is not as it was saved."""
        commit = retry_if_damaged(lambda: self._source.read_commit(self._name), None)
        files = Files(self._source, self._name, commit)
        self._on_bytes(0, self._size)
        digests = [self._copy_rank(files, rank) for rank in range(files.world)]
        self._copy_metrics()
        self._target.commit(self._new, digests, finished=commit.finished, time=commit.time)
        return Copied(self._name.step, self._size)

    def _copy_rank(self, files: Files, rank: int) -> str:
        """Copy a rank's data, then its manifest under the new name; return the sha256 of that manifest."""
        manifest = files.manifest(rank)
        with verified_chunks(self._source, self._name, manifest) as read:

            def counted(start: int, end: int) -> memoryview:
                chunk = read(start, end)
                with self._lock:
                    self._done += end - start
                    self._on_bytes(min(self._done, self._size), self._size)
                return chunk

            key = f"{self._source.prefix}/{self._new}/{data_file(rank)}"
            self._copier.stream(key, manifest.size, manifest.chunk_size, counted)
        manifest.name = str(self._new)
        content = manifest.to_bytes()
        self._copier.write(f"{self._source.prefix}/{self._new}/{manifest_file(rank)}", content)
        return hashlib.sha256(content).hexdigest()

    def _copy_metrics(self) -> None:
        """Copy what was logged up to the checkpoint. A damaged part, with all before it, is left out, as training does
        not need it."""
        try:
            head = find_segment(self._source.find_metrics, str(self._name))
            if head is None:
                return
            parent, seen = head.parent, {head.name}
            while parent is not None and parent not in seen and Name.parse(parent):
                seen.add(parent)
                data = self._source.find_metrics(closed_key(parent))
                segment = None if data is None else Segment.from_bytes(data)
                if data is None or segment is None or segment.name != parent or not segment.closed:
                    break
                self._target.put_metrics(data)
                parent = segment.parent
            self._target.put_metrics(Segment(str(self._new), head.parent, head.closed, head.lines).to_bytes())
        except ValueError:
            return
