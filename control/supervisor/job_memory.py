"""A supervisor's memory of each job that it watches. A cache: a new supervisor reads all of it again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..reconcile.step_retries import Patience
from ..reconcile.steps.context import Memory
from ..store.model import Attempt, JobRow

_UNTRIED_S = 300.0
"""Between two failures of a job dir: longer than the longest pause and the slowest try together. So it was not tried
meanwhile (a laptop was shut, or there was other trouble), and may have been usable."""


@dataclass(slots=True)
class Trouble:
    """Steps of a job that failed in a row. Times are steady."""

    message: str = ""
    times: int = 0
    dir_since: float = -math.inf
    """Since then the job dir could not be used, as often as that was tried."""
    dir_tried: float = -math.inf
    """When it was, the last time."""
    patience: Patience = field(default_factory=Patience)

    def without_dir(self, now: float, copied: float) -> float:
        """For how long the job dir, which has failed just now, has been of no use; `copied` as in Memory."""
        if now - self.dir_tried > _UNTRIED_S:
            self.dir_since = now
        self.dir_since = max(self.dir_since, copied)  # what gets on, however often it is cut off, is used
        self.dir_tried = now
        return now - self.dir_since


@dataclass(slots=True)
class Watched:
    """The memory of one job: its rows as they were read last, and when it is due."""

    memory: Memory
    target: str
    """Target of the newest attempt; "" before there is one."""
    job: JobRow | None = None
    """None: it must be read, for it may have changed. A stale row only loses a race: see Store.apply()."""
    attempt: Attempt | None = None
    changes: int = 0
    """Counts the changes that were heard of: rows that were read before one are not kept."""
    quiet_s: float = 0.0
    """The last pause while nothing changed; 0: something did."""
    trouble: Trouble | None = None
    damage: str = ""
    """Why its row in the store cannot be read; "": it can."""

    def expire(self) -> None:
        """Have the rows read again by the next step."""
        self.changes += 1
        self.job = None
