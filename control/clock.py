"""Clock of a job, which is unaffected by changes of the computer's wall clock."""

from __future__ import annotations

from ..provisioners.shared.clock import Clock


class JobTime:
    """Clock of a job within one process: it reads the wall clock once and then the monotonic clock.

    Limits and cost therefore count elapsed time even if the wall clock is set. `not_before` is the last time written
    for the job: the job's time does not go back if another process takes over after the wall clock was set back.
    """

    def __init__(self, clock: Clock, not_before: float) -> None:
        self._clock = clock
        self._offset = max(clock.now(), not_before) - clock.monotonic()

    def now(self) -> float:
        """Return epoch seconds, unaffected by later changes of the wall clock."""
        return self._offset + self._clock.monotonic()
