"""Members of a log's object, read from an offset on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from ..jobdir import Entry, JobDir
from .format import MEMBER_LIMIT, unpack_member

_WINDOW = 512 << 10  # minimum bytes per ranged read of an object, unless fewer are left


def members(job_dir: JobDir, entry: Entry, start: int) -> Iterator[tuple[list[Any], int, int]]:
    """Yield the lines of each member from an offset on, with the offsets of its start and end.

    Damage is reported as a line and ends the object. Memory is bounded by the size of a member plus one window.
    """
    place, data = start, b""
    while place < entry.size:
        end = place + len(data)
        try:
            unpacked = unpack_member(data, is_whole=end >= entry.size or len(data) > MEMBER_LIMIT)
        except (ValueError, RecursionError, zlib.error) as error:
            text = f"{entry.key} is damaged from byte {place} on: {error}"
            yield [[entry.modified, None, "agent", text]], place, entry.size
            return
        if unpacked is None:
            data += job_dir.get_range(entry.key, end, min(entry.size, end + max(_WINDOW, len(data))))
            continue
        lines, rest = unpacked
        after = end - len(rest)
        yield lines, place, after
        place, data = after, rest
