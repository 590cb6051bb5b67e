"""Progress report to the agent: steps completed, saved and restored, and the time spent on each."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from ...protocol.jobdir import Progress
from ...storage import durable
from .errors import logger
from .schedule.schedule import Schedule

WRITE_INTERVAL = 0.5
"""Minimum seconds between two writes of the file; writes at a save, a restore or the end are not limited."""


@dataclass(slots=True)
class ProgressFile:
    """Counters of jobdir.Progress, which the first rank of each node writes to the file $CLOUDGPU_PROGRESS."""

    path: str | None
    schedule: Schedule | None = None
    """Schedule whose measurements are included in the report."""
    restored_step: int | None = None
    step: int = 0
    saved_step: int | None = None
    step_seconds: float = 0.0
    blocked_seconds: float = 0.0
    restore_seconds: float = 0.0
    _staged: dict[int, float] = field(default_factory=dict)
    """Step of a save -> `step_seconds` at that save."""
    _written: float = -WRITE_INTERVAL
    _warned: bool = False

    @classmethod
    def from_environment(cls, local_rank: int, schedule: Schedule | None = None) -> ProgressFile:
        return cls(os.environ.get("CLOUDGPU_PROGRESS") if local_rank == 0 else None, schedule)

    def staged(self) -> None:
        """Note that the current state was copied for a save of this step."""
        self._staged[self.step] = self.step_seconds

    def write(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self.path is None or not (force or now - self._written >= WRITE_INTERVAL):
            return
        self._written = now
        try:
            durable.write(Path(self.path), self.record().to_bytes())
        except OSError as error:
            if not self._warned:
                logger().warning(f"progress cannot be reported to the agent: {self.path}: {error.strerror}")
            self._warned = True

    def record(self) -> Progress:
        progress = Progress(
            restored_step=self.restored_step,
            step=self.step,
            saved_step=self.saved_step,
            step_seconds=self.step_seconds,
            blocked_seconds=self.blocked_seconds,
            restore_seconds=self.restore_seconds,
            saved_seconds=self._saved_seconds(),
        )
        if self.schedule is None:
            return progress
        return dataclasses.replace(progress, **self.schedule.measured())

    def _saved_seconds(self) -> float | None:
        if self.saved_step is None:
            return 0.0
        saved = self._staged.get(self.saved_step)
        self._staged = {step: held for step, held in self._staged.items() if step >= self.saved_step}
        return 0.0 if saved is None and self.saved_step == self.restored_step else saved
