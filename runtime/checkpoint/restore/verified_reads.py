"""Reading ranks' data files so that what is used is what was verified: each byte is read once, into memory of our own.

Not through mmap: a bad sector, or a file that is cut off meanwhile, would kill the process by SIGBUS where pread() says
so; and what was verified could differ from what is used later. It would not be faster either: filling fresh memory with
pages is what costs, and pread() does so without holding the interpreter, so that two threads halve it.
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
"""Buffers per preadv(); the kernel takes 1024."""
_T = TypeVar("_T")


def confirmed(read: Callable[[], _T], path: Path | None) -> _T:
    """What it returns. What it finds damaged is read once more, for a checkpoint that is called so is never looked at
    again, and one answer of a store, or one page in memory, may be bad where the file is not.

    path: of the file that is read, where it is a local one: what the kernel keeps of it is dropped in between
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
    """Memory to be filled with what the data file holds from byte `at` on."""

    at: int
    view: memoryview
    """Of bytes, writable."""

    @property
    def end(self) -> int:
        return self.at + len(self.view)


class DataFile(Protocol):
    """A rank's data file; a method that fails raises UnusableError."""

    threads: int
    """How many reads at a time are fastest."""
    path: Path | None
    """On a mounted file system."""

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        """Fill the views, one after the other, with the bytes from `at` on."""
        ...

    def close(self) -> None: ...


class LocalFile:
    """On a mounted file system."""

    threads = 4
    """Two for the memory's pages; more keep a disk busy while chunks are hashed."""

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
    """In an object store: one request per read."""

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
        if len(data) != size:  # its size was the right one a moment ago
            raise UnusableError(f"{self._file}: {len(data)} bytes came instead of {size}", damaged=False)
        _scatter(data, 0, views)

    def close(self) -> None:
        """Nothing is held between two requests."""


class Memory:
    """What survived in a slot of this machine, in memory that may be written to; no shorter than the file."""

    threads = 4
    path: Path | None = None

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        _scatter(self._view, at, views)

    def close(self) -> None:
        """The slot is its owner's."""


def open_data(store: ReadableStore, name: Name, rank: int, size: int) -> DataFile:
    """Raises UnusableError if it is not there or not whole."""
    path = store.local_path(name, data_file(rank))
    return confirmed(lambda: LocalFile(path, size) if path else StoredObject(store, name, rank, size), path)


def read_verified(data: DataFile, manifest: RankManifest, targets: Sequence[Target]) -> None:
    """Fill the targets, which must not overlap; every chunk that one of them touches is read whole and verified.

    Raises UnusableError; what is in the targets then is not to be used.
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
            pool.submit(confirmed, partial(read, number), data.path)
            for number in _touched(targets, manifest.chunk_size)
        ]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _views(targets: Sequence[Target], index: int, start: int, end: int) -> Iterator[memoryview]:
    """Memory for the bytes from `start` to `end`, in order and without a gap; target `index` is the first to be in."""
    at = start
    while at < end:
        target = targets[index] if index < len(targets) else None
        if target is None or target.at >= end:
            yield memoryview(bytearray(end - at))  # nobody's: read for the hash's sake
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
    """Copy bytes or writable memory, from `at` on, into the views; by memmove, which lets other threads run."""
    if isinstance(data, bytes):
        source = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    else:
        source = ctypes.addressof(ctypes.c_char.from_buffer(data))
    for view in views:
        if len(view):
            ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view)), source + at, len(view))
            at += len(view)
