"""The lanes of steps: what takes long must not delay what is quick."""

from __future__ import annotations

from enum import Enum

from ..reconcile.decisions import wanted_end
from ..store.model import Attempt, JobRow


class Lane(Enum):
    """The threads that take a step."""

    LOOK = "looks"
    """Looks, stops, cancels and limits: a few requests each."""
    LAUNCH = "launches"
    """Launches may wait for the provider's rate limits, and copy checkpoints before."""
    END = "ends"
    """Ends may wait until a provider has terminated its machines."""


def lane_of(job: JobRow, attempt: Attempt | None, now: float) -> Lane:
    """Return the lane of a job's next step. A launch that is not due, or not wanted any more, is quick."""
    if attempt is not None and attempt.state == "terminating":
        return Lane.END
    if attempt is None or attempt.state != "launching":
        return Lane.LOOK
    waits = now < job.not_before or wanted_end(job, attempt, now) is not None
    return Lane.LOOK if waits else Lane.LAUNCH
