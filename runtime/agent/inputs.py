"""Download of a job's inputs before its setup: folders of an object store, with parallel ranged reads.

Each part written to disk is recorded in a journal, so a restarted machine fetches only missing parts. A file is renamed
to its final name once it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ...storage.errors import JobDirError
from ...storage.objects import JobDir
from ...storage.store import Entry

PART = 16 << 20
"""Size of a ranged read, in bytes."""
PARALLEL_PARTS = 16
"""Number of parallel ranged reads; each part is held in memory."""

_TRIES = 4
_PAUSE_S = 1.0
_REPORT_INTERVAL_S = 10.0
_SPARE = 1.02  # required free space per byte of input: file systems have overhead
_AHEAD = 4 * PARALLEL_PARTS  # parts submitted to the pool at a time


class InputsError(Exception):
    """The inputs cannot be fetched; the message says which and why."""


@dataclass
class _File:
    """One object that is being downloaded."""

    store: JobDir
    entry: Entry
    path: Path
    left: int = 0
    """Number of parts still to fetch."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{self.path.name}.cloudgpu-partial")

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
        """Rename the complete file to its final name."""
        os.truncate(self.partial, self.entry.size)  # parts of an earlier, longer version may have been written
        self.partial.replace(self.path)


class Journal:
    """File on the machine that lists the identities of the parts on disk, one per line. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read the file, if it exists, and open it for appending. Raises OSError."""
        self._lock = threading.Lock()
        self.done = set(path.read_text().splitlines()) if path.exists() else set()
        self._file = path.open("a")

    def note(self, identity: str) -> None:
        with self._lock:
            self._file.write(f"{identity}\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def fetch_inputs(
    inputs: Mapping[str, str], folder: Path, journal: Path, check: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Fetch every input (path -> URL; paths are relative to `folder`, or absolute).

    `journal` is the path of the journal file. `check` is called periodically; an exception that it raises stops the
    download. Raises InputsError, JobDirError, OSError.
    """
    begun = time.monotonic()
    files = [file for path, url in inputs.items() for file in _list(url, folder / path)]
    _check_space(folder / next(iter(inputs)), sum(file.needs for file in files))
    with contextlib.closing(Journal(journal)) as noted:
        missing = [(file, start) for file in files for start in file.missing(noted.done)]
        if missing:
            total = sum(file.length(start) for file, start in missing)
            say(f"inputs: {len(files):,} files; {_amount(total)} to fetch")
            _Fetching(missing, noted, total).run(check, say)
        for file in files:
            if not file.path.exists():  # the machine stopped after the last part was written
                file.finish()
    say(f"inputs: {len(files):,} files are there, after {time.monotonic() - begun:.1f} s")


class _Fetching:
    """Download of parts by a thread pool; the thread that writes a file's last part renames the file."""

    def __init__(self, missing: Sequence[tuple[_File, int]], noted: Journal, total: int) -> None:
        self._missing, self._noted, self._total = missing, noted, total
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._fetched = 0
        for file, _ in missing:
            file.left += 1

    def run(self, check: Callable[[], None], say: Callable[[str], None]) -> None:
        """Fetch all parts. Raises InputsError, JobDirError, OSError, and what `check` raises."""
        waiting = iter(self._missing)
        running: set[Future[None]] = set()
        told = time.monotonic()
        pool = ThreadPoolExecutor(PARALLEL_PARTS, "inputs")
        try:
            while True:
                for file, start in waiting:
                    running.add(pool.submit(self._fetch, file, start))
                    if len(running) >= _AHEAD:
                        break
                if not running:
                    return
                done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                check()
                if time.monotonic() - told > _REPORT_INTERVAL_S:
                    told = time.monotonic()
                    say(f"inputs: {_amount(self._fetched)} of {_amount(self._total)}")
        finally:
            self._stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)  # a part that hangs must not delay a deadline

    def _fetch(self, file: _File, start: int) -> None:
        if self._stopping.is_set():
            return
        data = self._get(file, start)
        file.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file.partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            if file.left == 0:
                file.finish()

    def _get(self, file: _File, start: int) -> bytes:
        """Return a part's content, with retries and backoff. Raises JobDirError, InputsError."""
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
            raise InputsError(f"{file.store.url}/{file.entry.key}: {len(data)} bytes came instead of {length}")
        return data


def _list(url: str, path: Path) -> Iterator[_File]:
    """Yield the objects below a URL, or the one object that it names. Raises InputsError, JobDirError."""
    store = JobDir(url, make=False)
    entries = store.entries("")
    folders = {str(folder) for entry in entries for folder in PurePosixPath(entry.key).parents}
    if not entries:
        parent, _, name = url.rstrip("/").rpartition("/")
        alone = JobDir(parent, make=False) if parent.partition("://")[2] else store
        found = alone.entry(name)
        if found is None:
            raise InputsError(f"there is nothing at {url}")
        yield _File(alone, found, path)
    for entry in entries:
        if entry.size == 0 and entry.key in folders:  # cloud consoles create a folder as an empty object
            continue
        parts = PurePosixPath(entry.key).parts
        if ".." in parts or entry.key.startswith("/"):
            raise InputsError(f"{url}: the object {entry.key!r} has a name that leads out of the folder")
        yield _File(store, entry, path.joinpath(*parts))


def _check_space(place: Path, needed: int) -> None:
    """Raise InputsError if the file system of `place`, the first input, has less free space than all inputs need."""
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed * _SPARE > free:
        raise InputsError(
            f"the inputs need {_amount(needed)} on {place}, where {_amount(free)} are free: "
            "write more in resources.disk"
        )


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
