"""Verified reads of data files: each byte is read once, into private memory, and verified there before use.

mmap is not used: a bad sector or a truncated file would kill the process by SIGBUS, where pread() returns an error, and
the content could change after the verification. mmap would not be faster either: most of the time is spent on page
faults in new memory, and two threads halve it, because pread() does not hold the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ....protocol.jobdir import JobDirError, MissingError
from ..errors import UnusableError
from ..format.manifest import RankManifest, data_file

if TYPE_CHECKING:
    from ....protocol.checkpoint_names import Name
    from .readable_store import ReadableStore

_SCATTERED = 512
"""Buffers per preadv(); the kernel's limit is 1024."""
_T = TypeVar("_T")


def retry_if_damaged(read: Callable[[], _T], path: Path | None) -> _T:
    """Call `read`, and retry it once if it finds damage; return its result.

    A single response of a store, or a page in memory, may be bad while the file is intact. Later runs skip a checkpoint
    that is reported as damaged.

    path  local file that is read, if any; its page cache is dropped before the retry
    """
    try:
        return read()
    except UnusableError as error:
        if not error.damaged:
            raise
    if path is not None:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return read()


@dataclass(frozen=True, slots=True)
class Target:
    """Memory to fill with the data file's content from offset `at` on."""

    at: int
    view: memoryview
    """Writable view of bytes."""

    @property
    def end(self) -> int:
        return self.at + len(self.view)


class DataFile(Protocol):
    """Reader of a rank's data file. Methods raise UnusableError."""

    threads: int
    """Number of concurrent reads that gives the best throughput."""
    path: Path | None
    """Path on a mounted file system; None: not a local file."""

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        """Fill the views, in order, with the content from offset `at` on."""
        ...

    def close(self) -> None: ...


class LocalFile:
    """Data file on a mounted file system. Raises UnusableError if it is missing or of another size."""

    threads = 4
    """Two threads suffice for the page faults in new memory; two more keep a disk busy while chunks are hashed."""

    def __init__(self, path: Path, size: int) -> None:
        self.path: Path | None = path
        self._name = path.name
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise UnusableError(f"{path.name} is missing", damaged=True) from error
        except OSError as error:
            raise UnusableError(f"{path}: {error.strerror}", damaged=False) from error
        found = os.fstat(self._descriptor).st_size
        if found != size:
            os.close(self._descriptor)
            raise UnusableError(f"{path.name} has {found} bytes instead of {size}", damaged=True)

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        waiting = [view for view in reversed(views) if len(view)]
        while waiting:
            try:
                count = os.preadv(self._descriptor, waiting[: -_SCATTERED - 1 : -1], at)
            except OSError as error:
                raise UnusableError(f"{self._name}, byte {at}: {error.strerror}", damaged=False) from error
            if not count:
                raise UnusableError(f"{self._name} ends at byte {at}", damaged=True)
            at += count
            while count:
                view = waiting.pop()
                if count < len(view):
                    waiting.append(view[count:])
                    break
                count -= len(view)

    def close(self) -> None:
        os.close(self._descriptor)


class StoredObject:
    """Data file in an object store; each read is one request."""

    threads = 16
    path: Path | None = None

    def __init__(self, store: ReadableStore, name: Name, rank: int, size: int) -> None:
        self._store, self._name, self._file = store, name, data_file(rank)
        try:
            found = store.file_size(name, self._file)
        except MissingError as error:
            raise UnusableError(f"{self._file} is missing", damaged=True) from error
        except JobDirError as error:
            raise UnusableError(str(error), damaged=False) from error
        if found != size:
            raise UnusableError(f"{self._file} has {found} bytes instead of {size}", damaged=True)

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        size = sum(map(len, views))
        try:
            data = self._store.get_range(self._name, self._file, at, at + size)
        except MissingError as error:
            raise UnusableError(f"{self._file} is missing", damaged=True) from error
        except JobDirError as error:
            raise UnusableError(str(error), damaged=False) from error
        if len(data) != size:  # not damage: the file's size was correct when it was opened
            raise UnusableError(f"{self._file}: {len(data)} bytes came instead of {size}", damaged=False)
        _scatter(data, 0, views)

    def close(self) -> None:
        """Do nothing: no connection is held between requests."""


class Memory:
    """Copy of a data file in a slot, a shared memory of this machine: writable, at least as long as the file."""

    threads = 4
    path: Path | None = None

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        _scatter(self._view, at, views)

    def close(self) -> None:
        """Do nothing: the slot belongs to the caller."""


def open_data(store: ReadableStore, name: Name, rank: int, size: int) -> DataFile:
    """Open a rank's data file. Raises UnusableError if it is missing or not `size` bytes long."""
    path = store.local_path(name, data_file(rank))
    return retry_if_damaged(lambda: LocalFile(path, size) if path else StoredObject(store, name, rank, size), path)


def read_verified(data: DataFile, manifest: RankManifest, targets: Sequence[Target]) -> None:
    """Fill the targets, which must not overlap; every chunk that overlaps a target is read whole and verified.

    Raises UnusableError if a chunk cannot be read or is damaged; the content of the targets is undefined then.
    """
    targets = sorted((target for target in targets if len(target.view)), key=lambda target: target.at)
    ends = [target.end for target in targets]

    def read(number: int) -> None:
        start = number * manifest.chunk_size
        views = list(_views(targets, bisect_right(ends, start), start, min(start + manifest.chunk_size, manifest.size)))
        data.read(start, views)
        if _hash(views) != manifest.chunks[number]:
            file = data_file(manifest.rank)
            raise UnusableError(f"{file} differs from what was saved, from byte {start}", damaged=True)

    with ThreadPoolExecutor(data.threads, thread_name_prefix="cloudgpu-restore") as pool:
        futures = [
            pool.submit(retry_if_damaged, partial(read, number), data.path)
            for number in _touched(targets, manifest.chunk_size)
        ]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _views(targets: Sequence[Target], index: int, start: int, end: int) -> Iterator[memoryview]:
    """Yield memory for bytes `start` to `end` of the file, in order: parts of targets, and new buffers between them.

    index  number of the first target in this range
    """
    at = start
    while at < end:
        target = targets[index] if index < len(targets) else None
        if target is None or target.at >= end:
            yield memoryview(bytearray(end - at))  # outside of the targets: read for the hash only
            return
        if target.at > at:
            yield memoryview(bytearray(target.at - at))
        low, high = max(target.at, start), min(target.end, end)
        yield target.view[low - target.at : high - target.at]
        at, index = high, index + 1


def _touched(targets: Sequence[Target], chunk_size: int) -> list[int]:
    numbers: set[int] = set()
    for target in targets:
        numbers.update(range(target.at // chunk_size, (target.end - 1) // chunk_size + 1))
    return sorted(numbers)


def _hash(views: Sequence[memoryview]) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    for view in views:
        digest.update(view)
    return digest.hexdigest()


def _scatter(data: bytes | memoryview, at: int, views: Sequence[memoryview]) -> None:
    """Copy data from offset `at` on into the views, by memmove, which releases the GIL."""
    if isinstance(data, bytes):
        source = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    else:
        source = ctypes.addressof(ctypes.c_char.from_buffer(data))
    for view in views:
        if len(view):
            ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view)), source + at, len(view))
            at += len(view)
