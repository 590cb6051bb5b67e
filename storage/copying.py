"""Copy objects in pieces between two job dirs, which may be in different clouds.

Memory is bounded for objects of any size. An interrupted copy leaves nothing under its key, as an object appears
only when it is complete. A resumed copy therefore begins with the first missing object.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from . import durable
from .errors import JobDirError
from .objects import PART, JobDir
from .store import Entry

READS = 4
"""Number of pieces that are read concurrently; as many are written meanwhile."""
STREAMS = 16
"""Maximum number of large objects that this process copies concurrently, for all jobs together: bounds its memory;
all of them share the network anyway."""

_copy_slots = threading.BoundedSemaphore(STREAMS)
_LOOK_S = 1.0
"""Interval in seconds at which a copy that waits for its turn checks whether it is still wanted."""


class InterruptedCopyError(Exception):
    """The copy was ended because `keep_going` returned False."""


class Copier:
    """Copies objects of `source` to the same key of `target`.

    `keep_going` is called before each piece; once it returns False, InterruptedCopyError is raised. `on_copied` is
    called when an object is copied and durable.
    """

    def __init__(
        self, source: JobDir, target: JobDir, keep_going: Callable[[], bool], on_copied: Callable[[], None]
    ) -> None:
        self.source, self.target = source, target
        self._keep_going, self._on_copied = keep_going, on_copied

    def copy(self, entry: Entry) -> None:
        """Copy an object, given by its entry in the source; replace an existing one. Raises JobDirError."""
        if entry.size <= PART:
            self.write(entry.key, self.source.get(entry.key))
            return

        def read(start: int, end: int) -> bytes:
            return self.source.get_range(entry.key, start, end, entry.etag)

        self.stream(entry.key, entry.size, PART, read)

    def copy_new(self, entry: Entry) -> None:
        """Copy an object whose key names its content, unless the target has it with the same size."""
        if self.target.size(entry.key) != entry.size:
            self.copy(entry)

    def write(self, key: str, data: bytes) -> None:
        """Write a small object, which is durable on return."""
        self.check()
        self.target.put(key, data)
        self._arrived(key)

    def stream(self, key: str, size: int, piece: int, read: Callable[[int, int], bytes | memoryview]) -> None:
        """Write an object of `size` bytes, which is durable on return. `read` returns the bytes from start up to
        end, at most `piece` bytes, and is called by several threads."""
        self.check()
        while not _copy_slots.acquire(timeout=_LOOK_S):
            self.check()
        try:
            self.target.upload(key, self._pieces(size, piece, read), size)
        finally:
            _copy_slots.release()
        self._arrived(key)

    def check(self) -> None:
        if not self._keep_going():
            raise InterruptedCopyError

    def _pieces(self, size: int, piece: int, read: Callable[[int, int], bytes | memoryview]) -> Iterator[memoryview]:
        with ThreadPoolExecutor(READS, thread_name_prefix="cloudgpu-copy") as pool:
            begun = (pool.submit(read, at, min(at + piece, size)) for at in range(0, size, piece))
            waiting: deque[Future[bytes | memoryview]] = deque(islice(begun, READS))
            try:
                while waiting:
                    data = waiting.popleft().result()
                    waiting.extend(islice(begun, 1))
                    self.check()
                    yield memoryview(data)
            finally:
                pool.shutdown(cancel_futures=True)

    def _arrived(self, key: str) -> None:
        """Call `on_copied` after an object was written. A local file is made durable first."""
        if (folder := self.target.folder) is not None:
            path = folder / key
            try:
                durable.flush_file(path)
                durable.flush_folder(path.parent)
            except OSError as error:
                raise JobDirError(f"{path}: writing failed: {error.strerror}") from error
        self._on_copied()
