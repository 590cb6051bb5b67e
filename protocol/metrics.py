"""Logged metrics of a training, each step once in spite of interruptions: format and reader of the rows.

Rows are stored in segments, files of JSON lines, which belong to checkpoints: a segment is written before its
checkpoint's COMMIT.json, and names the segment that it continues. Following these names from the newest checkpoint
yields exactly the rows of the history that led there. Repeated steps, and rows of a zombie process or of a failed save,
are not on this path.

    <checkpoint>/metrics.jsonl      rows since the last closed segment; deleted with the checkpoint
    metrics/<checkpoint>.jsonl      a closed segment: full, so the next one begins empty; kept

    {"format": "cloudgpu-metrics/1", "name": "<checkpoint>", "parent": "<checkpoint>" or null, "closed": false}
    {"step": 12, "time": 1767225600.125, "values": {"loss": 0.25, "grad_norm": "NaN"}}

JSON has no NaN and no infinities: they are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checkpoint_names import Name
from .jobdir import JobDir, JobDirError
from .records import MOST_INTEGER, MOST_NUMBER

FORMAT = "cloudgpu-metrics/1"
_MOST_BYTES = 256 << 20
"""Maximum size of a segment in bytes."""
_TRIES = 5
"""Maximum number of tries; a running training may remove the checkpoint being read, after writing a newer one."""

Number = int | float


@dataclass(frozen=True, slots=True)
class Row:
    """Values logged in one step."""

    step: int
    """Value of ckpt.step in the loop's body: from 0."""
    time: float
    """Epoch seconds of the first log() of the step, by the machine's clock."""
    values: Mapping[str, Number]

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "time": self.time, "values": {k: _to_json(v) for k, v in self.values.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Row:
        """Validate and return a row. Raises KeyError, TypeError, ValueError or AttributeError."""
        step, moment = int(value["step"]), float(value["time"])
        if not (abs(step) <= MOST_INTEGER and abs(moment) <= MOST_NUMBER):
            raise ValueError("its step or its time cannot be")
        return cls(step, moment, {str(k): _from_json(v) for k, v in value["values"].items()})


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the logged rows of a training, stored in one file."""

    name: str
    """Name of the checkpoint with which the segment was written."""
    parent: str | None
    """Name of the closed segment before this one; None: this is the first."""
    closed: bool
    lines: list[bytes] = field(default_factory=list)
    """Serialized rows."""

    @property
    def key(self) -> str:
        """Key in the folder of the checkpoints."""
        return closed_key(self.name) if self.closed else open_key(self.name)

    def rows(self) -> Iterator[Row]:
        return (Row.from_json(json.loads(line)) for line in self.lines)

    def to_bytes(self) -> bytes:
        head = {"format": FORMAT, "name": self.name, "parent": self.parent, "closed": self.closed}
        return b"".join([json.dumps(head).encode(), b"\n", *(line + b"\n" for line in self.lines)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Segment:
        """Parse a segment. Raises ValueError if it is invalid."""
        try:
            first, *lines = data.splitlines()
            head = json.loads(first)
            if head["format"] != FORMAT:
                raise ValueError(f"it has another format, {head['format']!r:.80}, than {FORMAT}")
            parent = head["parent"]
            return cls(str(head["name"]), None if parent is None else str(parent), bool(head["closed"]), lines)
        except (LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"not a segment of metrics: {error}") from error


def open_key(checkpoint: str) -> str:
    return f"{checkpoint}/metrics.jsonl"


def closed_key(checkpoint: str) -> str:
    return f"metrics/{checkpoint}.jsonl"


def key_of(data: bytes) -> str:
    """Return the key of a serialized segment in the folder of the checkpoints. Raises ValueError if it is invalid."""
    return Segment.from_bytes(data.partition(b"\n")[0]).key


def find_segment(find: Callable[[str], bytes | None], checkpoint: str) -> Segment | None:
    """Return the segment that was written with a checkpoint; None: there is none. Raises ValueError if it is invalid.

    `find`: returns the content of a key in the checkpoints' folder; None: it does not exist
    """
    data = find(open_key(checkpoint)) or find(closed_key(checkpoint))
    return None if data is None else Segment.from_bytes(data)


def trainings(job_dir: JobDir, folder: str = "checkpoints") -> list[str]:
    """Return the checkpoint folders of a job dir: one, or one per node if each node trains separately."""
    names = job_dir.folders(folder)
    if any(map(Name.parse, names)):
        return [folder]
    within = [f"{folder}/{name}".lstrip("/") for name in names if name not in ("fences", "metrics")]
    return [inner for inner in within if any(map(Name.parse, job_dir.folders(inner)))]


def read_metrics(job_dir: JobDir, folder: str = "checkpoints") -> list[Row]:
    """Return the rows of all steps, oldest first, up to the newest checkpoint; empty if nothing was logged.

    Raises JobDirError if the job dir cannot be read, or a segment is missing or damaged.
    """

    def find(key: str) -> bytes | None:
        return job_dir.find(f"{folder}/{key}".lstrip("/"), _MOST_BYTES)

    for _ in range(_TRIES):
        newest = _newest(job_dir, folder)
        if newest is None:
            return []
        try:
            segment = find_segment(find, newest)
            if segment is None and newest != _newest(job_dir, folder):
                continue
            return [] if segment is None else list(_merged(_history(find, segment)))
        except ValueError as error:
            raise JobDirError(f"{job_dir.url}: the metrics of {newest} cannot be read: {error}") from error
    raise JobDirError(f"{job_dir.url}: checkpoints come and go faster than they can be read")


def _newest(job_dir: JobDir, folder: str) -> str | None:
    names = sorted(filter(None, map(Name.parse, job_dir.folders(folder))), key=lambda name: name.age, reverse=True)
    for name in names:
        inside = job_dir.files(f"{folder}/{name}".lstrip("/"))
        if "COMMIT.json" in inside and "DAMAGED.json" not in inside:
            return str(name)
    return None


def _history(find: Callable[[str], bytes | None], newest: Segment) -> Iterator[Row]:
    """Yield the rows of a segment and of all before it, oldest first."""
    chain, seen = [newest], {newest.name}
    while (parent := chain[-1].parent) is not None:
        if parent in seen:
            raise ValueError(f"{closed_key(parent)} goes on from itself")
        seen.add(parent)
        data = find(closed_key(parent))
        if data is None:
            raise ValueError(f"{closed_key(parent)} is missing")
        chain.append(Segment.from_bytes(data))
    try:
        for segment in reversed(chain):
            yield from segment.rows()
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"a row is damaged: {error!r}") from error


def _merged(rows: Iterable[Row]) -> Iterator[Row]:
    """Merge consecutive rows of the same step; of two values with the same name, the later one is kept."""
    last: Row | None = None
    for row in rows:
        if last is not None and row.step == last.step:
            last = Row(last.step, last.time, {**last.values, **row.values})
            continue
        if last is not None:
            yield last
        last = row
    if last is not None:
        yield last


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _to_json(value: Number) -> Number | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _from_json(value: Number | str) -> Number:
    if isinstance(value, str):
        return _WORDS[value]
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r:.80} is no number")
    float(value)  # raises OverflowError if an integer is too large for later use
    return value
