"""When a checkpoint is due.

every=500          steps
every="30s", 30.0  time: "45s", "10m", "1h30m", or seconds
every="auto"       the time in which blocking for a save costs less than 1 % of training, as measured at the last
                   save, but at least 10 s and at most 5 min: the most that an interruption without notice may cost
"""

from __future__ import annotations

import re

from .errors import CheckpointError

AUTO_SHARE = 0.01
AUTO_FLOOR, AUTO_CEILING = 10.0, 300.0
"""Seconds."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


class Schedule:
    """Counts from the last save, failed ones included: a full disk is not tried again at every step."""

    def __init__(self, every: int | float | str) -> None:
        self._steps: int | None = None
        self._seconds: float | None = None
        self._blocked: float | None = None
        self._step, self._time = 0, 0.0
        if every == "auto":
            return
        if isinstance(every, int) and not isinstance(every, bool):
            self._steps = every
        else:
            self._seconds = every if isinstance(every, float) else _seconds(every)
        if not (self._steps or self._seconds or 0) > 0:
            raise CheckpointError(f'every={every!r}: expected steps (500), a duration ("30s", 30.0) or "auto"')

    @property
    def interval(self) -> float | None:
        """Seconds between two saves; None if it goes by steps."""
        if self._steps is not None:
            return None
        if self._seconds is not None:
            return self._seconds
        return min(max((self._blocked or 0.0) / AUTO_SHARE, AUTO_FLOOR), AUTO_CEILING)

    def due(self, step: int, now: float) -> bool:
        if self._steps is not None:
            return step - self._step >= self._steps
        interval = self.interval
        return interval is not None and now - self._time >= interval

    def count_from(self, step: int, now: float, blocked: float | None = None) -> None:
        """A save, or the start, was here; `blocked`: for how many seconds training stood still."""
        self._step, self._time = step, now
        self._blocked = self._blocked if blocked is None else blocked


def _seconds(text: object) -> float:
    match = _DURATION.fullmatch(text.replace(" ", "")) if isinstance(text, str) and text.strip() else None
    if match is None:
        return 0.0
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
