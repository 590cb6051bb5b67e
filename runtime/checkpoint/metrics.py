"""The rows that ckpt.log() makes, until they are part of a checkpoint. See ..metrics for how they are stored.

Each save carries the rows since the last *closed* segment that is known to be committed, those of saves that failed or
of which nothing is known yet included: so no failure loses a row, and none is twice in a history. In memory there are
one segment and the rows since the last save.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.jobdir import JobDirError
from ...protocol.metrics import Number, Row, Segment, find_segment
from .errors import CheckpointError, OutOfReachError, logger

SEGMENT = 256 << 10
"""Bytes from which on a segment is closed: so much is written again with each save, at most."""
LIMIT = 16 << 20
"""Bytes of rows in memory while no save succeeds; beyond, every second row is given up."""
_RESERVED = frozenset({"step", "time"})


class MetricRows:
    """Of the first rank; the others' log() is not kept."""

    def __init__(self, *, segment: int = SEGMENT, limit: int = LIMIT) -> None:
        self._segment, self._limit = segment, limit
        self._parent: str | None = None
        self._lines: list[bytes] = []
        """Rows since the parent, as they are stored."""
        self._size = 0
        self._before = 0
        """Rows that came before these in this process."""
        self._current: Row | None = None
        """The row of the step that is being logged."""
        self._closing: dict[str, int] = {}
        """Saves that would close the segment, and how many of this process's rows they carry."""

    def log(self, step: int, values: Mapping[str, object]) -> None:
        """Add values to the step's row; raises CheckpointError for what is no number."""
        numbers = {name: _number(name, value) for name, value in values.items()}
        if self._current is not None and self._current.step == step:
            self._current = Row(step, self._current.time, {**self._current.values, **numbers})
            return
        self._end_row()
        self._current = Row(step, time.time(), numbers)

    def take(self, checkpoint: str) -> bytes:
        """The segment that goes with this save (Save.rows); empty if nothing has been logged, ever."""
        self._end_row()
        if self._parent is None and not self._lines:
            return b""
        closed = self._size >= self._segment
        if closed:
            self._closing[checkpoint] = self._before + len(self._lines)
        return Segment(checkpoint, self._parent, closed, self._lines).to_bytes()

    def committed(self, checkpoint: str) -> None:
        """This save is a checkpoint: if it closed a segment, the next one goes on from there."""
        carried = self._closing.pop(checkpoint, 0)
        if carried <= self._before:
            return  # it closed nothing, or a later save has
        gone, self._lines = self._lines[: carried - self._before], self._lines[carried - self._before :]
        self._before, self._parent = carried, checkpoint
        self._size -= sum(map(len, gone))
        self._closing = {name: count for name, count in self._closing.items() if count > carried}

    def resume(self, find: Callable[[str], bytes | None], checkpoint: str) -> None:
        """After a restore: go on from the rows of this checkpoint. `find` reads a key of the checkpoints' folder.

        Raises CheckpointError if they cannot be read now: training on would leave them out of all that follows.
        """
        try:
            segment = find_segment(find, checkpoint)
        except JobDirError as error:
            raise OutOfReachError(f"what was logged up to checkpoint {checkpoint} cannot be read: {error}") from error
        except ValueError as error:
            logger().warning(f"what was logged up to checkpoint {checkpoint} is lost: {error}")
            return
        if segment is None:
            return
        self._parent = segment.name if segment.closed else segment.parent
        self._lines = [] if segment.closed else segment.lines
        self._size = sum(map(len, self._lines))

    def _end_row(self) -> None:
        if self._current is None:
            return
        line = json.dumps(self._current.to_json(), separators=(",", ":")).encode()
        self._current = None
        self._lines.append(line)
        self._size += len(line)
        if self._size > self._limit:
            logger().warning(
                f"no save succeeds, and {self._size >> 20} MiB of metrics wait for one: every second row is given up"
            )
            self._lines = self._lines[1::2]
            self._size = sum(map(len, self._lines))
            self._closing.clear()  # they count rows that are no longer there: what they carry is carried once more


def _number(name: str, value: Any) -> Number:  # anything a program has at hand
    if name in _RESERVED:
        raise CheckpointError(f"log({name}=...): every row has its {name} already; call it otherwise")
    if not isinstance(value, bool | int | float) and callable(getattr(value, "item", None)):
        try:
            value = value.item()  # a tensor or an array of one element, or a scalar of NumPy
        except (ValueError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"log({name}=...): expected one number: {error}") from error
    if not isinstance(value, bool | int | float):
        raise CheckpointError(f"log({name}=...): expected a number, this is a {type(value).__name__}")
    return int(value) if isinstance(value, bool) else value
