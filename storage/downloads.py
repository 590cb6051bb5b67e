"""Parallel, resumable download of objects to files: ranged reads, a journal of the parts on disk, atomic renames.

Each part written to disk is recorded in a journal, so a download that was killed fetches only missing parts when it is
repeated. A file is renamed to its final name once it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .errors import JobDirError
from .objects import JobDir
from .store import Entry

PART = 16 << 20
"""Size of a ranged read, in bytes."""
PARALLEL_PARTS = 16
"""Number of parallel ranged reads; each part is held in memory."""
PARTIAL = ".cloudgpu-partial"
"""Suffix of the name of a file that is not complete."""

_TRIES = 4
_PAUSE_S = 1.0
_AHEAD = 4 * PARALLEL_PARTS  # parts submitted to the pool at a time
_HASHED = 4 << 20  # bytes read at a time to compute a checksum

OnProgress = Callable[[int, int], None]
"""(bytes fetched now, bytes to fetch in total)."""


class DownloadError(Exception):
    """An object cannot be downloaded; the message says which and why."""


@dataclass
class Download:
    """One object and the file that it becomes."""

    store: JobDir
    entry: Entry
    path: Path
    sha256: frozenset[str] = frozenset()
    """Checksums, in hex, of which the content should have one; empty: its checksum is unknown."""
    differs: bool = False
    """The content has none of the checksums, although all parts are of the object that the store has."""
    left: int = 0
    """Number of parts still to fetch."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{self.path.name}{PARTIAL}")

    @property
    def parts(self) -> Sequence[int]:
        """Offset of each part; an empty file has one part."""
        return range(0, max(1, self.entry.size), PART)

    @property
    def needs(self) -> int:
        """Bytes of disk space that the file still needs."""
        there = (path.stat() for path in (self.path, self.partial) if path.exists())
        return max(0, self.entry.size - max((status.st_blocks * 512 for status in there), default=0))

    def identity(self, start: int) -> str:
        """Return a part's identity for the journal: the path, and the object's etag, size and offset."""
        return json.dumps([str(self.path), self.entry.etag, self.entry.size, start])

    def length(self, start: int) -> int:
        return min(PART, self.entry.size - start)

    def missing(self, done: Container[str]) -> Sequence[int]:
        """Return the offsets of the parts that are not on disk. `done`: identities of the parts in the journal."""
        absent = [start for start in self.parts if self.identity(start) not in done]
        if self.path.exists():
            return absent and self.parts  # the complete file is of another version, or of an unknown one
        return absent if self.partial.exists() else self.parts

    def finish(self) -> None:
        """Check the content and rename the complete file to its final name.

        A file without any of the checksums is kept if the object has an ETag, with which all parts were read: it is
        what the store has, e.g. written over later by something that records no checksum. Otherwise raises
        DownloadError.
        """
        os.truncate(self.partial, self.entry.size)  # parts of an earlier, longer version may have been written
        self.differs = bool(self.sha256) and sha256_of(self.partial) not in self.sha256
        if self.differs and not self.entry.etag:
            self.partial.unlink()
            raise DownloadError(
                f"{self.store.url}/{self.entry.key} is damaged: its SHA-256 is not the one that was recorded when it "
                "was written"
            )
        self.partial.replace(self.path)


class Journal:
    """File that lists the identities of the parts on disk, one per line. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read the file, if it exists, and open it for appending. Raises OSError."""
        self._lock = threading.Lock()
        self.done = set(path.read_text(errors="replace").splitlines()) if path.exists() else set()
        self._file = path.open("a")

    def note(self, identity: str) -> None:
        with self._lock:
            self._file.write(f"{identity}\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def fetch(files: Iterable[Download], journal: Path, check: Callable[[], None], on_progress: OnProgress) -> None:
    """Fetch the missing parts of all files.

    `check` is called several times a second; an exception from it stops the download. `on_progress` is called as often,
    and once before the first request. Raises DownloadError, JobDirError, OSError.
    """
    files = list(files)
    with contextlib.closing(Journal(journal)) as noted:
        missing = [(file, start) for file in files for start in file.missing(noted.done)]
        if missing:
            _Fetching(missing, noted).run(check, on_progress)
        for file in files:
            if not file.path.exists():  # the process was killed after the last part was written
                file.finish()


def sha256_of(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of a file's content, in hex. Raises OSError. An exception from `check`, which is called for
    each piece, stops it."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASHED):
            check()
            found.update(piece)
    return found.hexdigest()


def safe_parts(key: str) -> tuple[str, ...] | None:
    """Return the parts of a key as a path below a folder; None: it leads out of the folder, or names no file."""
    parts = PurePosixPath(key).parts
    is_bad = not parts or ".." in parts or key.startswith("/") or "\0" in key or key.endswith("/")
    return None if is_bad else parts


def without_markers(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the objects of a listing without the empty objects that mark folders, as cloud consoles create them."""
    folders = {str(folder) for entry in entries for folder in PurePosixPath(entry.key).parents}
    for entry in entries:
        if entry.size or not (entry.key.endswith("/") or entry.key in folders):
            yield entry


class _Fetching:
    """Download of parts by a thread pool; the thread that writes a file's last part renames the file."""

    def __init__(self, missing: Sequence[tuple[Download, int]], noted: Journal) -> None:
        self._missing, self._noted = missing, noted
        self._total = sum(file.length(start) for file, start in missing)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._fetched = 0
        self._damaged: list[str] = []
        for file, _ in missing:
            file.left += 1

    def run(self, check: Callable[[], None], on_progress: OnProgress) -> None:
        """Fetch all parts; raise the errors of damaged files when the others are there.

        Raises DownloadError, JobDirError, OSError, and what `check` raises.
        """
        waiting = iter(self._missing)
        running: set[Future[None]] = set()
        on_progress(0, self._total)
        pool = ThreadPoolExecutor(PARALLEL_PARTS, "download")
        try:
            while True:
                for file, start in waiting:
                    running.add(pool.submit(self._fetch, file, start))
                    if len(running) >= _AHEAD:
                        break
                if not running:
                    break
                done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                check()
                on_progress(self._fetched, self._total)
        finally:
            self._stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)  # a part that hangs must not delay a deadline
        if self._damaged:
            raise DownloadError("\n".join(sorted(self._damaged)))

    def _fetch(self, file: Download, start: int) -> None:
        if self._stopping.is_set():
            return
        data = self._get(file, start)
        file.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file.partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.pwrite(handle, data, start)
            os.fdatasync(handle)  # before the journal: after a reset, no part in the journal may be missing on disk
        finally:
            os.close(handle)
        self._noted.note(file.identity(start))
        with self._lock:
            self._fetched += len(data)
        with file.lock:
            file.left -= 1
            if file.left:
                return
        try:
            file.finish()
        except DownloadError as error:
            self._damaged.append(str(error))

    def _get(self, file: Download, start: int) -> bytes:
        """Return a part's content, with retries and backoff. Raises JobDirError, DownloadError."""
        length, tries = file.length(start), 0
        while True:
            try:
                data = file.store.get_range(file.entry.key, start, start + length, etag=file.entry.etag)
                break
            except JobDirError:
                tries += 1
                if tries >= _TRIES or self._stopping.wait(_PAUSE_S * 2**tries):
                    raise
        if len(data) != length:
            raise DownloadError(f"{file.store.url}/{file.entry.key}: {len(data)} bytes came instead of {length}")
        return data
