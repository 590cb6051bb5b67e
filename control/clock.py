"""A job's own time, which no setting of the computer's clock changes."""

from __future__ import annotations

from ..provisioners.shared.clock import Clock


class JobTime:
    """A job's time as one process sees it: the wall clock is read once, from then on time is measured.

    So limits and cost count what has really passed, whatever the wall clock does meanwhile. `not_before` is what was
    last written of the job: nor does its time go back when another process takes over after the clock was set back.
    """

    def __init__(self, clock: Clock, not_before: float) -> None:
        self._clock = clock
        self._offset = max(clock.now(), not_before) - clock.monotonic()

    def now(self) -> float:
        """Epoch seconds, as if the wall clock had never been set."""
        return self._offset + self._clock.monotonic()
