"""Last lines of a log, read from the end of its objects, so that the time does not depend on the log's length."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import replace
from typing import Any

from ..jobdir import Entry, JobDir, node_key
from .format import CLOCKS_APART_S, HEADER, MEMBER_LIMIT, LogLine, chunk_number, decode, unpack_member
from .members import members

_WINDOW = 64 << 10  # bytes read of an object's end at a time, at first


def node_end(
    job_dir: JobDir, attempt: int, node: str, count: int, since: float | None
) -> tuple[list[LogLine], list[int]]:
    """Return the last lines of a node, and the position after them."""
    entries = [entry for entry in job_dir.entries(node_key(attempt, node, "log")) if chunk_number(entry.key)]
    position = [chunk_number(entries[-1].key) or 1, entries[-1].size, 0] if entries else [1, 0, 0]
    raw: deque[Any] = deque()  # JSON
    for entry in reversed(entries):
        if len(raw) >= count or (since is not None and entry.modified < since - CLOCKS_APART_S):
            break
        raw.extendleft(reversed(_object_end(job_dir, entry, count - len(raw))))
    lines = [decode(values, attempt, node) for values in raw]
    return [line for line in lines if since is None or line.time >= since], position


def _object_end(job_dir: JobDir, entry: Entry, count: int) -> list[Any]:
    """Return the last lines of an object, read by members from its end, or from its beginning if it is damaged."""
    found: deque[Any] = deque()  # JSON
    start = entry.size
    data, look = b"", 0
    while start + len(data) > 0 and len(found) < count:
        place = data.rfind(HEADER, 0, look)
        if place >= 0:
            lines = _last_member(data[place:])
            if lines is None:
                look = place + len(HEADER) - 1  # these bytes are there by chance
            else:
                found.extendleft(reversed(lines))
                data, look = data[:place], place
            continue
        if start == 0 or len(data) > MEMBER_LIMIT:
            return [*_from_beginning(job_dir, entry, start + len(data), count - len(found)), *found]
        end, start = start, max(0, start - max(_WINDOW, len(data)))
        data = job_dir.get_range(entry.key, start, end) + data
        look = min(len(data), end - start + len(HEADER) - 1)  # a header may be in two windows
    return [*found][max(0, len(found) - count) :]


def _last_member(data: bytes) -> list[Any] | None:
    """Return the lines of a member that begins and ends with the data; None: it is no such member."""
    try:
        unpacked = unpack_member(data, is_whole=True)
    except (ValueError, RecursionError, zlib.error):
        return None
    return None if unpacked is None or unpacked[1] else unpacked[0]


def _from_beginning(job_dir: JobDir, entry: Entry, end: int, count: int) -> deque[Any]:
    """Return the last lines of an object's first `end` bytes."""
    found: deque[Any] = deque(maxlen=count)  # JSON
    for lines, _, _ in members(job_dir, replace(entry, size=end), 0):
        found.extend(lines)
    return found
