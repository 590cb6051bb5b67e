"""What the program says of itself to the agent: steps done, saved and restored, and where the time went."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..jobdir import Progress
from .errors import logger

WRITE_INTERVAL = 0.5
"""Seconds between two writes of the file, but for those at a save, a restore or the end."""


@dataclass(slots=True)
class ProgressFile:
    """The fields of jobdir.Progress, counted here; written by each node's first rank to the file CLOUDGPU_PROGRESS."""

    path: str | None
    restored_step: int | None = None
    step: int = 0
    saved_step: int | None = None
    step_seconds: float = 0.0
    blocked_seconds: float = 0.0
    restore_seconds: float = 0.0
    _written: float = -WRITE_INTERVAL
    _warned: bool = False

    @classmethod
    def from_environment(cls, local_rank: int) -> ProgressFile:
        return cls(os.environ.get("CLOUDGPU_PROGRESS") if local_rank == 0 else None)

    def write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self.path is None or not (force or now - self._written >= WRITE_INTERVAL):
            return
        self._written = now
        record = Progress(
            restored_step=self.restored_step,
            step=self.step,
            saved_step=self.saved_step,
            step_seconds=self.step_seconds,
            blocked_seconds=self.blocked_seconds,
            restore_seconds=self.restore_seconds,
        )
        new = Path(f"{self.path}.new")
        try:
            new.write_bytes(record.to_bytes())
            new.replace(self.path)
        except OSError as error:
            if not self._warned:
                logger().warning(f"the agent cannot be told of progress: {self.path}: {error.strerror}")
            self._warned = True
