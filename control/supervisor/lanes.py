"""Lanes of steps, which keep slow steps from delaying quick ones."""

from __future__ import annotations

from enum import Enum

from ..reconcile.decisions import wanted_end
from ..store.model import Attempt, JobRow


class Lane(Enum):
    """A group of threads for one kind of step."""

    POLL = "looks"
    """Polls, stops, cancellations and limits: a few requests each."""
    LAUNCH = "launches"
    """Launches: may wait for the provider's rate limits, and copy checkpoints before."""
    END = "ends"
    """Terminations: may wait until a provider has terminated the machines."""


def lane_of(job: JobRow, attempt: Attempt | None, now: float) -> Lane:
    """Return the lane of a job's next step. A launch that is not due or no longer wanted is quick."""
    if attempt is not None and attempt.state == "terminating":
        return Lane.END
    if attempt is None or attempt.state != "launching":
        return Lane.POLL
    waits = now < job.not_before or wanted_end(job, attempt, now) is not None
    return Lane.POLL if waits else Lane.LAUNCH
