"""Format of logs: lines, gzip members and the names of objects."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from ..jobdir import JobDir, node_key
from ..records import MOST_NUMBER

Stream = Literal["stdout", "stderr", "agent"]

MEMBER_BYTES = 256 << 10
"""Maximum bytes of JSON per gzip member (plus one line); bounds the memory of writer and reader."""
MEMBER_LIMIT = 4 << 20
"""Maximum bytes of an unpacked member: MEMBER_BYTES and one line of escaped characters."""
HEADER = b"\x1f\x8b\x08\0\0\0\0\0"
"""First bytes of a member: gzip, deflate, no flags, no time."""
CLOCKS_APART_S = 600.0
"""Maximum seconds of difference between a machine's clock and the store's."""
_ATTEMPT = re.compile(r"\d{4,9}", re.ASCII)
_CHUNK = re.compile(r"(\d{8})\.gz", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line written by a node's program, or by the agent itself."""

    time: float
    """Epoch seconds of the machine's clock; never goes back within a node."""
    node: str
    rank: int | None
    """Rank of the process; None: a line of the agent or the setup."""
    stream: Stream
    text: str
    """Text without the line end; bytes that are not UTF-8 are replaced by U+FFFD."""
    attempt: int
    partial: bool = False
    """True if the line continues in the next one of the same node, rank and stream (very long lines, prompts)."""


def attempt_numbers(job_dir: JobDir) -> list[int]:
    """Return the numbers of the attempts in a job dir, in ascending order. Raises JobDirError."""
    return sorted(int(name) for name in job_dir.folders("attempts") if _ATTEMPT.fullmatch(name))


def next_chunk(job_dir: JobDir, attempt: int, node: str) -> int:
    """Return the number for the next object of a node's log, after all that exist. Raises JobDirError."""
    numbers = map(chunk_number, job_dir.list(node_key(attempt, node, "log")))
    return max((number for number in numbers if number is not None), default=0) + 1


def chunk_key(attempt: int, node: str, chunk: int) -> str:
    return node_key(attempt, node, f"log/{chunk:08d}.gz")


def chunk_number(key: str) -> int | None:
    found = _CHUNK.fullmatch(key.rpartition("/")[2])
    return None if found is None else int(found[1])


def encode(when: float, rank: int | None, stream: Stream, text: str, partial: bool) -> bytes:
    values: list[Any] = [round(when, 6), rank, stream, text]
    return json.dumps([*values, True] if partial else values, separators=(",", ":")).encode()


def decode(values: Any, attempt: int, node: str) -> LogLine:  # values: JSON
    # lone surrogates cannot be printed
    text = values[3] if values[3].isascii() else _SURROGATE.sub("\ufffd", values[3])
    return LogLine(values[0], node, values[1], values[2], text, attempt, len(values) > 4)


def unpack_member(data: bytes, *, is_whole: bool) -> tuple[list[Any], bytes] | None:
    """Return the lines of the first member and the data after it; None: more data must be read first.

    `is_whole`: there is no more data. Raises ValueError, RecursionError or zlib.error.
    """
    unpacker = zlib.decompressobj(wbits=31)
    raw = unpacker.decompress(data, MEMBER_LIMIT)
    if not unpacker.eof:
        if is_whole or len(raw) >= MEMBER_LIMIT:
            raise ValueError("a part of it is missing")
        return None
    # Parsing all lines at once is five times as fast. Line breaks inside texts are escaped.
    lines = json.loads(b"[" + raw.replace(b"\n", b",") + b"]")
    if not all(map(_is_line, lines)):
        raise ValueError("these are no log lines")
    return lines, unpacker.unused_data


def _is_line(line: object) -> bool:  # line: JSON
    """Return whether this is a line in the format of encode()."""
    if not isinstance(line, list) or len(line) < 4:
        return False
    when, rank, stream, text = line[:4]
    return (
        isinstance(when, int | float)
        and abs(when) <= MOST_NUMBER
        and (rank is None or isinstance(rank, int))
        and isinstance(stream, str)
        and isinstance(text, str)
    )
