"""Reader of a job's log."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import TypedDict

from ..jobdir import JobDir, node_key
from .format import CLOCKS_APART_S, LogLine, attempt_numbers, chunk_key, chunk_number, decode
from .members import members
from .tail import node_end


class Cursor(TypedDict):
    """Position of a reader. JSON values only, so that it can be stored or sent."""

    done: int
    """Attempts up to this one have been read completely."""
    nodes: dict[str, list[int]]
    """`<attempt>/<node>` -> [object's number, offset of a member in it, lines read of that member]."""


class LogReader:
    """Reads the log of a job in pieces. Stateless: the cursor has the position."""

    def __init__(self, job_dir: JobDir, attempts: Callable[[], Mapping[int, JobDir]] | None = None) -> None:
        """Create a reader. `attempts`: returns the number of each attempt so far -> job dir of its log; omitted: all
        are in this job dir."""
        self._attempts = attempts or (lambda: dict.fromkeys(attempt_numbers(job_dir), job_dir))

    def read(
        self,
        cursor: Cursor | None = None,
        *,
        attempt: int | None = None,
        node: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
    ) -> tuple[list[LogLine], Cursor]:
        """Return at most `limit` lines after the cursor (None: from the beginning), and the new cursor.

        Lines are ordered by attempt, then by time; an empty list means that none is available yet. `node` is a name
        with or without its incarnation (`worker-0.1`, `worker-0`); `since` is in epoch seconds. A cursor is valid
        only for the filters it was made with. Raises JobDirError.
        """
        done = cursor["done"] if cursor else 0
        nodes = dict(cursor["nodes"]) if cursor else {}
        places = self._attempts()
        attempts = sorted(number for number in places if number > done and attempt in (None, number))
        sources = [
            _lines(places[number], number, name, nodes.get(f"{number}/{name}", [1, 0, 0]), since)
            for number in attempts
            for name in places[number].folders(f"attempts/{number:04d}/nodes")
            if node in (None, name, name.rpartition(".")[0])
        ]
        lines: list[LogLine] = []
        for line, position in heapq.merge(*sources, key=lambda item: (item[0].attempt, item[0].time)):
            nodes[f"{line.attempt}/{line.node}"] = position
            if since is not None and line.time < since:
                continue
            lines.append(line)
            if len(lines) >= limit:
                break
        # An attempt's machines have ended before the next attempt begins, so its log is complete.
        oldest = lines[0].attempt if lines else max(attempts, default=done + 1)
        ended = [number for number in attempts if number < oldest]
        done = max(ended, default=done)
        return lines, {"done": done, "nodes": {key: at for key, at in nodes.items() if int(key.split("/")[0]) > done}}

    def tail(
        self, count: int, *, attempt: int | None = None, node: str | None = None, since: float | None = None
    ) -> tuple[list[LogLine], Cursor]:
        """Return the last `count` lines and the cursor after them. Filters as for read().

        Objects are read from the end, so the time depends on `count` and not on the length of the log. Raises
        JobDirError.
        """
        places = self._attempts()
        numbers = sorted((number for number in places if attempt in (None, number)), reverse=True)
        lines: list[LogLine] = []
        cursor: Cursor = {"done": 0, "nodes": {}}
        for number in numbers:
            needed = count - len(lines)
            ends = {
                name: node_end(places[number], number, name, needed, since)
                for name in places[number].folders(f"attempts/{number:04d}/nodes")
                if node in (None, name, name.rpartition(".")[0])
            }
            if number == numbers[0]:
                cursor = {"done": number - 1, "nodes": {f"{number}/{name}": at for name, (_, at) in ends.items()}}
            found = list(heapq.merge(*(ended for ended, _ in ends.values()), key=lambda line: line.time))
            lines = found[max(0, len(found) - needed) :] + lines
            if len(lines) >= count:
                break
        return lines, cursor

    def nodes(self) -> dict[int, list[str]]:
        """Return attempt -> names of its nodes that have a folder. Raises JobDirError."""
        places = self._attempts()
        return {number: [*places[number].folders(f"attempts/{number:04d}/nodes")] for number in sorted(places)}


def _lines(
    job_dir: JobDir, attempt: int, node: str, position: list[int], since: float | None
) -> Iterator[tuple[LogLine, list[int]]]:
    """Yield a node's lines after a position, each with the position after it."""
    chunk, offset, skip = position
    folder = node_key(attempt, node, "log")
    for entry in job_dir.entries(folder, after=chunk_key(attempt, node, chunk - 1)):
        number = chunk_number(entry.key)
        if number is None or (since is not None and entry.modified < since - CLOCKS_APART_S):
            continue
        start, seen = (offset, skip) if number == chunk else (0, 0)
        for raw, place, after in members(job_dir, entry, start):
            for count, values in enumerate(raw[seen:], start=seen + 1):
                yield (
                    decode(values, attempt, node),
                    [number, *((place, count) if count < len(raw) else (after, 0))],
                )
            seen = 0
