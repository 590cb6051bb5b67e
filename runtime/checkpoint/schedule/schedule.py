"""Schedule of saves.

every=500          steps
every="30s", 30.0  time: "45s", "10m", "1h30m", or seconds
every="auto"       Daly's interval for the measured cost of a save and the interruptions of this training, but at least
                   the time in which a save is written: see interval.py

An explicit interval is used as it is. After a notice that the machine may be terminated soon, saves of all three kinds
are HURRY_FACTOR times as frequent (hurry()).
"""

from __future__ import annotations

import math
import re
from typing import Any

from ..errors import CheckpointError
from .interval import History, Observation, RecentMedian, best_interval, mean_between, prior_of

FIRST_SAVE_S = 90.0
"""Seconds until the first save under "auto", which measures the cost of a save, and shows early if saving fails."""
HURRY_FACTOR = 4
NOTICEABLE = 1.5
"""The interval is logged again when it has changed by this factor."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


class Schedule:
    """Schedule of saves, which counts from the last save, successful or not.

    market   name of a prior in interval.PRIORS; any other name selects UNKNOWN_PRIOR
    nodes    number of machines; an interruption of any of them interrupts the training
    known    observations of earlier starts that are not in a checkpoint

    Times (`now`) are seconds of one monotonic clock. Raises CheckpointError if `every` is invalid.
    """

    def __init__(
        self, every: int | float | str, *, market: str = "", nodes: int = 1, known: History | None = None
    ) -> None:
        self._steps: int | None = None
        self._seconds: float | None = None
        self._prior, self._nodes = prior_of(market), max(1, nodes)
        self._known = self._history = known if known is not None else History()
        self._cost, self._writing = RecentMedian(), RecentMedian()
        self._step, self._time = 0, 0.0
        self._begun: float | None = None
        """Time at which this process began to train."""
        self._hurry_until = -math.inf
        self._explained: float | None = None
        """Interval that was logged last, in seconds."""
        self._best = self._choose()
        """Interval of "auto" in seconds; cached because due() is called at every step."""
        if every == "auto":
            return
        if isinstance(every, int) and not isinstance(every, bool):
            self._steps = every
        else:
            self._seconds = every if isinstance(every, float) else _seconds(every)
        if not (self._steps or self._seconds or 0) > 0:
            raise CheckpointError(f'every={every!r}: expected steps (500), a duration ("30s", 30.0) or "auto"')

    # Events

    def resumed(self, saved: object, *, starts: int) -> None:
        """Continue from a checkpoint that holds the history() `saved`.

        starts  number of starts since that checkpoint, including this one; 0: the training had ended with it. As many
                interruptions are counted, each after half an interval, the mean time without a save.
        """
        self._history = History.from_json(saved)
        unsaved = (self._choose() + (self._history.cost or 0.0)) / 2
        self._history = self._history.plus(self._prior.name, starts * unsaved * self._nodes, starts).joined(self._known)
        self._best = self._choose()

    def count_from(self, step: int, now: float, blocked: float | None = None) -> None:
        """Restart the interval at the training's start, or at a save that blocked training for `blocked` seconds."""
        if self._begun is None:
            self._begun = now
        self._step, self._time = step, now
        if blocked is not None:
            self._cost.add(blocked)
        self._best = self._choose()

    def written(self, seconds: float) -> None:
        """Record the seconds from a save until it was durable."""
        self._writing.add(seconds)
        self._best = self._choose()

    def hurry(self, until: float) -> None:
        """Save four times as often until the time `until`, because the machine may be terminated."""
        self._hurry_until = max(self._hurry_until, until)

    # Queries

    @property
    def interval(self) -> float | None:
        """Seconds between two saves; None if the interval is in steps."""
        if self._steps is not None:
            return None
        return self._seconds if self._seconds is not None else self._best

    def due(self, step: int, now: float) -> bool:
        """Return whether to save at this step boundary."""
        factor = HURRY_FACTOR if now < self._hurry_until else 1
        if self._steps is not None:
            return step - self._step >= max(1, self._steps // factor)
        interval, elapsed = self.interval, now - self._time
        if interval is None or step == self._step:
            return False
        interval = max(interval / factor, min(interval, self._writing.value or 0.0))
        if self._seconds is not None:
            return elapsed >= interval
        # Choose the nearest step boundary: with steps of 10 s, an interval of 12 s means one step rather than two.
        return elapsed + elapsed / (step - self._step) / 2 >= interval

    def measured(self) -> dict[str, Any]:
        """Return fields of jobdir.Progress: cost and writing time of a save, the interval, and M."""
        mean = self._mean(self._time)
        return {"cost": self._known_cost(), "lag": self._writing.value, "interval": self.interval, "mean": mean}

    def history(self, now: float) -> dict[str, Any]:
        """Return the history to save with a checkpoint, for resumed() of a later run."""
        markets = self._history.plus(self._prior.name, self._trained(now)).markets
        return History(markets, self._known_cost()).to_json()

    def explanation(self, now: float) -> str | None:
        """Return a line for the log that explains the interval; None if the last line still holds.

        The interval of "auto" is logged again when it has changed by the factor NOTICEABLE.
        """
        interval = self.interval
        if interval is None or self._seconds is not None:
            first, self._explained = self._explained is None, 0.0
            every = _words(self._seconds) if self._seconds is not None else f"{self._steps:,} steps"
            return f"saving every {every}, as asked" if first else None
        if self._explained is not None and 1 / NOTICEABLE < interval / max(self._explained, 1e-9) < NOTICEABLE:
            return None
        self._explained = interval
        return self._sentence(now)

    # The computation

    def _choose(self) -> float:
        cost = self._known_cost()
        if cost is None:
            return FIRST_SAVE_S
        return best_interval(cost, self._mean(self._time), self._writing.value or 0.0)

    def _known_cost(self) -> float | None:
        return self._cost.value if self._cost.value is not None else self._history.cost

    def _trained(self, now: float) -> float:
        """Return the node-seconds of training since this process began."""
        return 0.0 if self._begun is None else max(0.0, now - self._begun) * self._nodes

    def _seen(self, now: float) -> Observation:
        before = self._history.seen(self._prior.name)
        return Observation(before.node_seconds + self._trained(now), before.interruptions)

    def _mean(self, now: float) -> float:
        return mean_between(self._prior, self._seen(now), self._nodes)

    def _sentence(self, now: float) -> str:
        cost, seen = self._known_cost(), self._seen(now)
        if cost is None:
            return f"saving after {_words(self._best)}, to measure what a save costs"
        writing = ", because a save takes that long to be written" if self._best == self._writing.value else ""
        return (
            f"saving every {_words(self._best)}{writing}: a save blocks {_words(cost)}, the mean time between "
            f"interruptions is taken as {_words(self._mean(now))} ({seen.interruptions} seen in "
            f"{_words(seen.node_seconds / self._nodes)}, prior {self._prior.name})"
        )


def _words(seconds: float) -> str:
    """Format seconds with a readable unit and two significant digits: `0.05 s`, `38 s`, `4.2 h`."""
    for size, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    if value <= 0:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(value)))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _seconds(text: object) -> float:
    match = _DURATION.fullmatch(text.replace(" ", "")) if isinstance(text, str) and text.strip() else None
    if match is None:
        return 0.0
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
