"""Buffer of the rows logged by ckpt.log() until a checkpoint holds them; protocol/metrics.py describes their storage.

Rows are stored in segments, one per save. A segment is *closed* when it reaches SEGMENT bytes; until then, each save
writes its rows again. A save carries all rows since the last closed segment that is known to be committed, including
the rows of saves that failed or whose outcome is unknown. So a failed save loses no row, and no row is stored twice in
the segments of a checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.jobdir import JobDirError
from ...protocol.metrics import Number, Row, Segment, find_segment
from .errors import CheckpointError, StoreUnavailableError, logger

SEGMENT = 256 << 10
"""Size in bytes at which a segment is closed: limits how many bytes are written again with each save."""
LIMIT = 16 << 20
"""Maximum bytes of rows in memory while no save succeeds; beyond it, every second row is dropped."""
_RESERVED = frozenset({"step", "time"})


class MetricRows:
    """The metric rows of rank 0; what other ranks log is not kept."""

    def __init__(self, *, segment: int = SEGMENT, limit: int = LIMIT) -> None:
        self._segment, self._limit = segment, limit
        self._parent: str | None = None
        self._lines: list[bytes] = []
        """Serialized rows since the last closed and committed segment, whose checkpoint is `_parent`."""
        self._size = 0
        self._before = 0
        """Number of rows of this process before those in `_lines`."""
        self._current: Row | None = None
        """Row of the current step, to which log() adds."""
        self._closing: dict[str, int] = {}
        """Number of this process's rows up to a save, for each pending save that closes the segment, by checkpoint."""

    def log(self, step: int, values: Mapping[str, object]) -> None:
        """Add values to the row of a step. Raises CheckpointError if one is not a number or has a reserved name."""
        numbers = {name: _number(name, value) for name, value in values.items()}
        if self._current is not None and self._current.step == step:
            self._current = Row(step, self._current.time, {**self._current.values, **numbers})
            return
        self._end_row()
        self._current = Row(step, time.time(), numbers)

    def take(self, checkpoint: str) -> bytes:
        """Return the segment to save with this checkpoint (Save.rows); empty if nothing was ever logged."""
        self._end_row()
        if self._parent is None and not self._lines:
            return b""
        closed = self._size >= self._segment
        if closed:
            self._closing[checkpoint] = self._before + len(self._lines)
        return Segment(checkpoint, self._parent, closed, self._lines).to_bytes()

    def committed(self, checkpoint: str) -> None:
        """Note that this save was committed: if it closed its segment, the next segment starts after it."""
        carried = self._closing.pop(checkpoint, 0)
        if carried <= self._before:
            return  # it closed no segment, or a later save has closed one already
        gone, self._lines = self._lines[: carried - self._before], self._lines[carried - self._before :]
        self._before, self._parent = carried, checkpoint
        self._size -= sum(map(len, gone))
        self._closing = {name: count for name, count in self._closing.items() if count > carried}

    def resume(self, find: Callable[[str], bytes | None], checkpoint: str) -> None:
        """Continue from the rows of a restored checkpoint. `find` reads a key of the checkpoint folder.

        Rows that are damaged are lost, with a warning. Raises StoreUnavailableError if the store cannot be read, since
        later checkpoints would lack the rows.
        """
        try:
            segment = find_segment(find, checkpoint)
        except JobDirError as error:
            raise StoreUnavailableError(
                f"what was logged up to checkpoint {checkpoint} cannot be read: {error}"
            ) from error
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
                f"no save succeeds, and {self._size >> 20} MiB of metrics wait for one: every second row is dropped"
            )
            self._lines = self._lines[1::2]
            self._size = sum(map(len, self._lines))
            self._closing.clear()  # these counts include dropped rows; the rows are saved again with the next segment


def _number(name: str, value: Any) -> Number:  # any value
    if name in _RESERVED:
        raise CheckpointError(f"log({name}=...): every row has its {name} already; call it otherwise")
    if not isinstance(value, bool | int | float) and callable(getattr(value, "item", None)):
        try:
            value = value.item()  # a tensor or array of one element, or a NumPy scalar
        except (ValueError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"log({name}=...): expected one number: {error}") from error
    if not isinstance(value, bool | int | float):
        raise CheckpointError(f"log({name}=...): expected a number, this is a {type(value).__name__}")
    return int(value) if isinstance(value, bool) else value
