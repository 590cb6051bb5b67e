"""Logs of a job as text files, one for each attempt and machine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...exit_codes import Exit
from ..control_sequences import ControlSequenceFilter
from ..errors import CommandError
from ..output import ProgressLine, warning
from ..text import iso

if TYPE_CHECKING:
    from ....protocol.logs.format import LogLine
    from ....protocol.logs.reader import LogReader
    from .follow import Followed, LogFilter

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
"""Names of nodes that can be part of a file's name."""
_COMPARED = 1 << 20  # bytes compared at a time


def write_logs(job: Followed, folder: Path, chosen: LogFilter, *, timestamps: bool, force: bool) -> list[Path]:
    """Write FOLDER/attempt-N/NODE.log for each machine; return the files. Raises CommandError, JobDirError, OSError.

    A file that is there must be the beginning of the new one, as that of a running job is, unless `force`.
    """
    from ....storage.downloads import PARTIAL

    written, reader = [], job.logs()
    has_ranks = any(role.count > 1 for role in job.offer.roles)
    with ProgressLine() as line:
        for attempt, node in _sources(reader, chosen):
            path = folder / f"attempt-{attempt}" / f"{node}.log"
            line(f"writing {path}")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}{PARTIAL}")
            with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
                lines = _lines(reader, attempt, node, chosen.since)
                file.writelines(_texts(lines, timestamps=timestamps, ranks=has_ranks))
            if path.exists() and not force and not _begins_with(partial, path):
                partial.unlink()
                raise CommandError(
                    f"{path} is there, and is not the beginning of this log",
                    hint="give another folder, or --force to replace it",
                    exit_code=Exit.USAGE,
                )
            partial.replace(path)
            written.append(path)
    return written


def _sources(reader: LogReader, chosen: LogFilter) -> Iterator[tuple[int, str]]:
    """Yield the attempt and node of each log that is chosen."""
    for attempt, nodes in reader.nodes().items():
        for node in nodes:
            if chosen.attempt not in (None, attempt) or chosen.node not in (None, node, node.rpartition(".")[0]):
                continue
            if _NODE.fullmatch(node) is None:
                warning(f"left out, because it is no name of a machine: {node}")
                continue
            yield attempt, node


def _lines(reader: LogReader, attempt: int, node: str, since: float | None) -> Iterator[LogLine]:
    cursor = None
    while True:
        lines, cursor = reader.read(cursor, attempt=attempt, node=node, since=since)
        if not lines:
            return
        yield from lines


def _texts(lines: Iterator[LogLine], *, timestamps: bool, ranks: bool) -> Iterator[str]:
    """Yield the text of each line, with the time and the rank before it if that is wanted."""
    filters: dict[object, ControlSequenceFilter] = {}
    open_source: object = None
    for line in lines:
        source = (line.rank, line.stream)
        known = filters.setdefault(source, ControlSequenceFilter(colours=False))
        if open_source not in (None, source):
            yield "\n"
        if open_source != source:
            yield f"{iso(line.time)} " if timestamps else ""
            yield f"rank {line.rank} | " if ranks and line.rank is not None else ""
        yield known(line.text, partial=line.partial) + ("" if line.partial else "\n")
        open_source = source if line.partial else None


def _begins_with(path: Path, start: Path) -> bool:
    """Return whether a file begins with the content of another one."""
    with path.open("rb") as file, start.open("rb") as other:
        return all(
            piece == file.read(len(piece))
            for piece in itertools.takewhile(bool, iter(lambda: other.read(_COMPARED), None))
        )
