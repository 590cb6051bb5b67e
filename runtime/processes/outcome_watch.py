"""Poll outcome files while a program runs, to stop a shell script when the Checkpointer has ended its program."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from .exit_verdict import ReportedOutcome, read_outcome
from .program import is_running

DRAIN_S = 1.0
"""Seconds that readers of the program's output (`| tee log`) have to end before the program's group is killed."""


class OutcomeWatch:
    """The outcome files of one generation of a node's processes, by rank."""

    def __init__(self, paths: Mapping[int | None, Path]) -> None:
        self._paths = paths
        self._ended: dict[int | None, float] = {}
        """Time when the program of each rank was first observed to have ended."""

    def clear(self) -> None:
        """Remove the files of the previous generation."""
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    def path(self, rank: int | None) -> str:
        return str(self._paths[rank])

    def reported(self) -> dict[int | None, ReportedOutcome]:
        """Return the outcome of each rank that has reported one."""
        return {rank: found for rank, path in self._paths.items() if (found := read_outcome(path)) is not None}

    def has_left(self, rank: int | None) -> bool:
        """Return whether the Checkpointer has ended a process of this rank's program."""
        found = read_outcome(self._paths[rank])
        return found is not None and found.left

    def ended_programs(self) -> dict[int | None, int]:
        """Return the exit code, by rank, of each program that the Checkpointer ended at least DRAIN_S seconds ago."""
        now, codes = time.monotonic(), {}
        for rank, found in self.reported().items():
            if not found.left or found.exit_code is None or any(map(is_running, found.pids)):
                continue
            if now - self._ended.setdefault(rank, now) >= DRAIN_S:
                codes[rank] = found.exit_code
        return codes
