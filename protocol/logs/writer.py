"""Writer of a node's log."""

from __future__ import annotations

import gzip
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from ..jobdir import JobDir, JobDirError
from ..pace import LOG_S, Pace
from .format import MEMBER_BYTES, Stream, chunk_key, encode

CHUNK_BYTES = 128 << 10
"""Compressed size in bytes at which an object is complete."""
GATHERED_BYTES = 2 << 20
"""Bytes of JSON that are written at once, without waiting for the interval of the steady state."""
BUFFER_BYTES = 8 << 20
"""Maximum bytes of JSON in the queue."""

_GATHER_S = 0.05  # seconds for which a line waits for further lines, to be written with them
_INTERVAL_S = (0.15, 1.0)  # seconds between two writes: after silence, and at most, with continuous output
_FAR_INTERVAL_S = (0.15, 1.5)  # the same for an object store, where each write costs money
_IDLE_S = 3.0  # seconds without lines after which the interval is short again
_RETRY_S = (0.2, 5.0)


class SteadyClock:
    """Epoch seconds that never go back: the wall clock is read once, then the monotonic clock is used."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


class LineFilter(Protocol):
    """Filter of lines before they are written, such as one that masks secrets."""

    def mask(self, text: str) -> str:
        """Return what is written of a whole text."""

    def mask_piece(self, stream: Stream, rank: int | None, text: str, *, partial: bool) -> str | None:
        """Return what is written of a line or of a piece of one; None: nothing yet."""

    def rest(self) -> Iterable[tuple[Stream, int | None, str]]:
        """Return stream, rank and text of what was not written yet."""


class LogWriter:
    """Uploads a node's lines from a background thread, with bounded memory.

    While the job dir is writable, add() blocks, and thereby the program, if lines come faster than they are written.
    While it is not, the program continues: the oldest queued lines are dropped, and a line reports their number.
    """

    def __init__(  # noqa: PLR0917 - its place, and options
        self,
        job_dir: JobDir,
        attempt: int,
        node: str,
        chunk: int = 1,
        pace: Pace | None = None,
        line_filter: LineFilter | None = None,
    ) -> None:
        """Start the thread. `chunk`: number of the first object, see next_chunk(). `pace`: if omitted, lines are
        always written soon. `line_filter`: None: lines are written as they are."""
        self._filter = line_filter
        self._job_dir, self._attempt, self._node = job_dir, attempt, node
        self._clock = SteadyClock()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._failing = False
        self._closing = False
        self._pace = pace or Pace(free=True)
        self._urgent = False
        """True if queued lines must be written soon, even in the steady state."""
        self._changed = threading.Condition()
        self._chunk, self._content = chunk, b""
        self._members = b""  # kept until the write is confirmed: a write may succeed although its response is lost
        self._pace.on_quick(self.flush)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def add(self, stream: Stream, rank: int | None, text: str, partial: bool = False) -> None:
        """Add a line; blocks while the queue is full and the job dir is writable."""
        if self._filter is not None:
            kept = self._filter.mask_piece(stream, rank, text, partial=partial)
            if kept is None:
                return
            text = kept
        with self._changed:
            while self._bytes >= BUFFER_BYTES and not self._failing and not self._closing:
                self._changed.wait()
            self._append(encode(self._clock(), rank, stream, text, partial))

    def add_agent_line(self, text: str) -> None:
        """Add a line of the agent itself; never blocks, because the agent has deadlines to keep.

        Such a line reports an event, so all queued lines are written soon.
        """
        with self._changed:
            self._append(encode(self._clock(), None, "agent", self.masked(text), False))
        self.flush()

    def masked(self, text: str) -> str:
        """Return a text as a line of the log would have it."""
        return text if self._filter is None else self._filter.mask(text)

    def flush(self) -> None:
        """Write queued lines soon, even in the steady state."""
        with self._changed:
            self._urgent = bool(self._lines)
            self._changed.notify_all()

    def _append(self, data: bytes) -> None:
        self._lines.append(data)
        self._bytes += len(data)
        while self._failing and self._bytes > BUFFER_BYTES and len(self._lines) > 1:
            self._bytes -= len(self._lines.popleft())
            self._dropped += 1
        # waking the thread for every line would be expensive
        if len(self._lines) == 1 or self._bytes >= self._most_bytes:
            self._changed.notify_all()

    def close(self, timeout: float) -> bool:
        """Write the remaining lines; return False on timeout. No line may be added afterwards."""
        with self._changed:
            for stream, rank, text in () if self._filter is None else self._filter.rest():
                self._append(encode(self._clock(), rank, stream, text, False))
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        least, most = _INTERVAL_S if self._job_dir.folder is not None else _FAR_INTERVAL_S
        least = max(least, self._job_dir.min_rewrite_s)
        interval, last = least, -_IDLE_S
        while self._wait_for_lines(last, interval):
            idle = time.monotonic() - last > _IDLE_S
            interval = least if idle else min(interval * 1.25, most)
            self._members = self._next_members()
            self._write_members()
            last = time.monotonic()

    def _wait_for_lines(self, last: float, interval: float) -> bool:
        """Wait until lines are due; return False when closed and the queue is empty."""
        with self._changed:
            while not self._lines:
                if self._closing:
                    return False
                self._changed.wait()
            begun = time.monotonic()
            while not self._closing and self._bytes < self._most_bytes:
                due = max(begun + _GATHER_S, last + (interval if self._is_quick else LOG_S))
                if (left := due - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            self._urgent = False
            return True

    @property
    def _is_quick(self) -> bool:
        return self._urgent or self._pace.is_quick

    @property
    def _most_bytes(self) -> int:
        """Number of queued bytes that are written without waiting for the interval."""
        return MEMBER_BYTES if self._is_quick else GATHERED_BYTES

    def _next_members(self) -> bytes:
        """Return queued lines as gzip members, up to GATHERED_BYTES, because each write costs money."""
        packed, size = b"", 0
        while not packed or (self._lines and size < GATHERED_BYTES):
            packed += self._next_member()
            size += MEMBER_BYTES
        return packed

    def _next_member(self) -> bytes:
        with self._changed:
            taken, size = [], 0
            if self._dropped:
                text = f"{self._dropped} lines are missing here: the job dir could not be written for too long"
                taken.append(encode(self._clock(), None, "agent", text, False))
                self._dropped = 0
            while self._lines and size < MEMBER_BYTES:
                taken.append(self._lines.popleft())
                size += len(taken[-1])
            self._bytes -= size
            self._changed.notify_all()
        return gzip.compress(b"\n".join(taken), compresslevel=3, mtime=0)

    def _write_members(self) -> None:
        """Retry the write until it succeeds; the agent ends by itself if the job dir is lost for good."""
        pause = _RETRY_S[0]
        content = self._content + self._members
        while True:
            try:
                self._job_dir.put(chunk_key(self._attempt, self._node, self._chunk), content)
            except JobDirError:
                self._set_failing(True)
                time.sleep(pause)
                pause = min(pause * 2, _RETRY_S[1])
            else:
                break
        self._set_failing(False)
        if len(content) >= CHUNK_BYTES:
            self._chunk, content = self._chunk + 1, b""
        self._content, self._members = content, b""

    def _set_failing(self, failing: bool) -> None:
        with self._changed:
            self._failing = failing
            self._changed.notify_all()
