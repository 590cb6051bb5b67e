"""Limits on retries of a job's failing steps.

A step reads a job dir, to which others may write, and calls a cloud. Both may fail. Unwanted machines must not keep
running meanwhile: they are terminated if the steps of a job that has to end fail for too long.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from ..store.model import Attempt, JobRow
from .decisions import wanted_end

log = logging.getLogger("cloudgpu.supervisor")

ENDING_S = 120.0
"""Seconds for which the steps of an ending job may fail before its machines are terminated."""
UNEXPECTED_S = 3_600.0
"""Seconds for which steps may fail with unexpected errors before the job is given up."""


@dataclass(slots=True)
class FailureTimers:
    """Times since which a job's steps fail, for two limits. Monotonic seconds; math.inf: they do not fail."""

    ending_since: float = math.inf
    """Time of the first failed step since the job has to end."""
    unexpected_since: float = math.inf
    """Time of the first step that failed with an unexpected error."""

    def reason_to_end(
        self, job: JobRow, attempt: Attempt | None, *, now: float, job_now: float, message: str, is_expected: bool
    ) -> str:
        """Return why a job must end after a step failed; "": the step is retried.

        `now`: monotonic time; `job_now`: the job's time; `message`: why the step failed
        """
        self.unexpected_since = math.inf if is_expected else min(self.unexpected_since, now)
        self.ending_since = min(self.ending_since, now) if _is_ending(job, attempt, job_now) else math.inf
        if now - self.ending_since >= ENDING_S and job_now >= _deadline(attempt):
            return f"terminated after {ENDING_S:.0f} s in which it could not be stopped: {message}"
        if now - self.unexpected_since >= UNEXPECTED_S:
            return f"given up after {UNEXPECTED_S:.0f} s: {message}"
        return ""


def _is_ending(job: JobRow, attempt: Attempt | None, now: float) -> bool:
    """Return whether the machines of a job are no longer wanted."""
    if job.goal == "cancel" or (attempt is not None and attempt.state == "stopping"):
        return True
    try:
        return wanted_end(job, attempt, now) is not None
    except Exception:  # invalid data of the job may be the reason why its steps fail
        log.exception("%s: its limits cannot be read", job.id)
        return False


def _deadline(attempt: Attempt | None) -> float:
    """Return the job's time until which its program may save and end by itself; 0: it is not stopping."""
    return 0.0 if attempt is None or attempt.state != "stopping" else attempt.deadline or 0.0
