"""A supervisor's memory of each job that it watches. It is a cache: a new supervisor reads everything again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..reconcile.step_retries import FailureTimers
from ..reconcile.steps.context import Memory
from ..store.model import Attempt, JobRow

_UNTRIED_S = 300.0
"""Seconds since a job dir's last failure after which a new failure counts as its first. They exceed the longest pause
between two tries, so the dir was not used meanwhile (suspended laptop, other errors)."""


@dataclass(slots=True)
class Trouble:
    """Consecutive failed steps of a job. Times are monotonic."""

    message: str = ""
    times: int = 0
    dir_since: float = -math.inf
    """Time since which every use of the job dir has failed."""
    dir_tried: float = -math.inf
    """Time of the last failure of the job dir."""
    patience: FailureTimers = field(default_factory=FailureTimers)

    def without_dir(self, now: float, copied: float) -> float:
        """Return the seconds for which the job dir, which has just failed, has been unusable; `copied` as in Memory."""
        if now - self.dir_tried > _UNTRIED_S:
            self.dir_since = now
        self.dir_since = max(self.dir_since, copied)  # each copied object shows that the job dir is usable
        self.dir_tried = now
        return now - self.dir_since


@dataclass(slots=True)
class Watched:
    """A supervisor's memory of one job: the rows as last read, and the failures of its steps."""

    memory: Memory
    target: str
    """Target of the newest attempt; "" without an attempt."""
    job: JobRow | None = None
    """The job's row; None: read it again, as it may have changed. A stale row only loses a race: see Store.apply()."""
    attempt: Attempt | None = None
    changes: int = 0
    """Number of known changes; rows that were read before a change are not kept."""
    quiet_s: float = 0.0
    """Last pause in seconds while nothing changed; 0: something changed."""
    trouble: Trouble | None = None
    damage: str = ""
    """Error of reading the job's row in the store; "": none."""

    def expire(self) -> None:
        """Make the next step read the rows again."""
        self.changes += 1
        self.job = None
