"""Trace of a run: digests of all parts of the training's state at each step boundary, as JSON lines.

A line contains only what has changed since the line before; the first line of a process contains everything.

    {"step": 12, "process": 4711, "changed": {"objects/model/0.weight": "9c3f…"}, "gone": [], "end": false}

Saved state has the keys of the checkpoint; keys of unsaved state begin with "held/" (program_state.py). When a program
exits normally, a last line with "end": true is written, which contains only unsaved state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM_STATE = "held/"
_NOT_COMPARED = ("history", "goal", "step")
"""Parts of a snapshot that may differ between two runs of one training: times, step, and number of epochs or steps."""
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of the trace, with the unchanged digests filled in."""

    step: int
    process: int
    digests: Mapping[str, str]
    end: bool = False
    """True if the program has ended."""


class TraceWriter:
    """Writer of a trace. Each line is one write(2), so that a kill leaves no partial line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._last: dict[str, str] = {}

    def add(self, step: int, digests: Mapping[str, str], *, end: bool = False) -> None:
        changed = {key: value for key, value in digests.items() if self._last.get(key) != value}
        gone = [key for key in self._last if key not in digests]
        self._last = dict(digests)
        record = {"step": step, "process": os.getpid(), "changed": changed, "gone": gone, "end": end}
        os.write(self._file, json.dumps(record).encode() + b"\n")


def read_trace(path: Path) -> Iterator[Moment]:
    """Yield all moments of a trace; none if there is no file."""
    if not path.exists():
        return
    current: dict[str, str] = {}
    process = None
    with path.open() as file:
        for line in file:
            record = json.loads(line)
            if record["process"] != process:
                current, process = {}, record["process"]
            current = {key: value for key, value in current.items() if key not in set(record["gone"])}
            current.update(record["changed"])
            yield Moment(record["step"], record["process"], dict(current), end=record["end"])


def digests_of(snapshot: Mapping[str, object]) -> dict[str, str]:
    """Return a digest of each tensor and plain value of a snapshot, by key."""
    from ..checkpoint.format.tree import flatten

    tree, leaves = flatten({key: value for key, value in snapshot.items() if key not in _NOT_COMPARED}, "")
    found = {key: _digest(_bytes_of(leaf)) for key, leaf in leaves.items()}
    found.update(_plain_digests(tree, ""))
    return found


def _plain_digests(tree: object, path: str) -> dict[str, str]:
    if isinstance(tree, dict) and not any(key.startswith("!") for key in tree):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found.update(_plain_digests(value, f"{path}/{key}" if path else key))
        return found
    if isinstance(tree, dict) and ("!tensor" in tree or "!array" in tree):
        return {}  # a leaf, whose digest has the same key
    return {path: _digest(json.dumps(tree).encode())}


def _bytes_of(leaf: Any) -> Any:  # a buffer
    if hasattr(leaf, "detach"):
        import torch

        local = leaf.to_local() if hasattr(leaf, "to_local") else leaf
        return local.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return leaf.tobytes()


def _digest(data: Any) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)[:_DIGITS]
