"""Clock of a job that is independent of changes to the computer's wall clock."""

from __future__ import annotations

from ..provisioners.shared.clock import Clock


class JobTime:
    """A job's time within one process: the wall clock is read once, then the monotonic clock is used.

    Limits and cost therefore count the time that really passed when the wall clock is set. `not_before` is the last
    time
    written for the job, so that its time does not go back when another process takes over after the clock was set
    back.
    """

    def __init__(self, clock: Clock, not_before: float) -> None:
        self._clock = clock
        self._offset = max(clock.now(), not_before) - clock.monotonic()

    def now(self) -> float:
        """Return epoch seconds, unaffected by later changes of the wall clock."""
        return self._offset + self._clock.monotonic()
