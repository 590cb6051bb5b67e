"""Objects on their way from one job dir into another, which may be in another cloud: a piece at a time.

Memory is bounded however large an object is. One that is cut off midway leaves nothing under its key: an object appears
when all of it is there, so a copy that is resumed begins with the first one that is not.
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
"""Pieces that are read at the same time; as many are being written meanwhile."""
STREAMS = 16
"""Large objects that this process copies at the same time, however many jobs move: so its memory is bounded, and they
share one line in any case."""

_TURNS = threading.BoundedSemaphore(STREAMS)
_LOOK_S = 1.0
"""Seconds after which a copy that waits for its turn checks whether it is still wanted."""


class InterruptedCopyError(Exception):
    """The caller does not want the copy any more, or has something else to do first."""


class Copier:
    """Copies objects of `source` to the same key of `target`.

    `keep_going` is asked before each piece; once it says no, InterruptedCopyError is raised. `on_copied` is called when
    an object is there, and durable.
    """

    def __init__(
        self, source: JobDir, target: JobDir, keep_going: Callable[[], bool], on_copied: Callable[[], None]
    ) -> None:
        self.source, self.target = source, target
        self._keep_going, self._on_copied = keep_going, on_copied

    def copy(self, entry: Entry) -> None:
        """An object as the source lists it, replacing what is there. Raises JobDirError."""
        if entry.size <= PART:
            self.write(entry.key, self.source.get(entry.key))
            return

        def read(start: int, end: int) -> bytes:
            return self.source.get_range(entry.key, start, end, entry.etag)

        self.stream(entry.key, entry.size, PART, read)

    def copy_new(self, entry: Entry) -> None:
        """The same where the key names the content: what is there in full already is left alone."""
        if self.target.size(entry.key) != entry.size:
            self.copy(entry)

    def write(self, key: str, data: bytes) -> None:
        """A small object, durable when this returns."""
        self.check()
        self.target.put(key, data)
        self._arrived(key)

    def stream(self, key: str, size: int, piece: int, read: Callable[[int, int], bytes | memoryview]) -> None:
        """Write an object of `size` bytes, durable when this returns; `read` gives the bytes from start up to end, of
        at most `piece` bytes, and is called by several threads."""
        self.check()
        while not _TURNS.acquire(timeout=_LOOK_S):
            self.check()
        try:
            self.target.upload(key, self._pieces(size, piece, read), size)
        finally:
            _TURNS.release()
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
        """Make a local file durable, as an object is that a store has accepted; then report it."""
        if (folder := self.target.folder) is not None:
            path = folder / key
            try:
                durable.flush_file(path)
                durable.flush_folder(path.parent)
            except OSError as error:
                raise JobDirError(f"{path}: writing failed: {error.strerror}") from error
        self._on_copied()
