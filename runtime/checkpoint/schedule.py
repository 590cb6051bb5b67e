"""When a checkpoint is due, and why.

every=500          steps
every="30s", 30.0  time: "45s", "10m", "1h30m", or seconds
every="auto"       Daly's interval for what a save costs and how often this training is interrupted, both as measured,
                   but not shorter than a save takes to be written, nor longer than `ceiling`: see interval.py

What a person asked for is done exactly. Only a notice that the machine goes soon, on which training goes on, makes
every one of them four times as frequent (hurry()).
"""

from __future__ import annotations

import math
import re
from typing import Any

from .errors import CheckpointError
from .interval import CEILING, Choice, History, Seen, Typical, choose, mean_between, prior_of

COST_UNKNOWN = 0.1
"""Seconds that a save is taken to block before the first was measured."""
FIRST = 30.0
"""Seconds until the first save of all: it measures what a save costs, and shows early if none is possible."""
HURRY = 4
NOTICEABLE = 1.5
"""The interval is explained again when it has changed by this factor since it was last."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


class Schedule:
    """Counts from the last save, failed ones included: a full disk is not tried again at every step.

    market   the name of a prior, see interval.PRIORS; any other: unknown
    nodes    machines, any one of which interrupts the training
    ceiling  seconds: the longest interval of "auto"

    Times (`now`) are seconds of one monotonic clock.
    """

    def __init__(self, every: int | float | str, *, market: str = "", nodes: int = 1, ceiling: float = CEILING) -> None:
        self._steps: int | None = None
        self._seconds: float | None = None
        self._prior, self._nodes, self._ceiling = prior_of(market), max(1, nodes), ceiling
        self._history = History()
        self._cost, self._writing = Typical(), Typical()
        self._step, self._time = 0, 0.0
        self._begun: float | None = None
        """When this process began to train."""
        self._hurry_until = -math.inf
        self._told: float | None = None
        self._choice = self._choose()
        """Kept, for due() is asked at every step."""
        if every == "auto":
            return
        if isinstance(every, int) and not isinstance(every, bool):
            self._steps = every
        else:
            self._seconds = every if isinstance(every, float) else _seconds(every)
        if not (self._steps or self._seconds or 0) > 0:
            raise CheckpointError(f'every={every!r}: expected steps (500), a duration ("30s", 30.0) or "auto"')

    # What happens

    def resumed(self, history: object, *, interrupted: bool) -> None:
        """Restored from a checkpoint that holds this history(); `interrupted`: it was not the training's end."""
        self._history = History.from_json(history).plus(self._prior.name, 0.0, int(interrupted))
        self._choice = self._choose()

    def count_from(self, step: int, now: float, blocked: float | None = None) -> None:
        """A save, or the start, was here; `blocked`: for how many seconds training stood still."""
        if self._begun is None:
            self._begun = now
        self._step, self._time = step, now
        if blocked is not None:
            self._cost.add(blocked)
        self._choice = self._choose()

    def written(self, seconds: float) -> None:
        """So long it took until a save that training went on beside was durable."""
        self._writing.add(seconds)
        self._choice = self._choose()

    def hurry(self, until: float) -> None:
        """The machine may go any moment up to then: save four times as often."""
        self._hurry_until = max(self._hurry_until, until)

    # What follows from it

    @property
    def interval(self) -> float | None:
        """Seconds between two saves; None if it goes by steps."""
        if self._steps is not None:
            return None
        return self._seconds if self._seconds is not None else self._choice.seconds

    def due(self, step: int, now: float) -> bool:
        """Whether to save at this step boundary."""
        factor = HURRY if now < self._hurry_until else 1
        if self._steps is not None:
            return step - self._step >= max(1, self._steps // factor)
        interval, elapsed = self.interval, now - self._time
        if interval is None or step == self._step:
            return False
        interval = max(interval / factor, min(interval, self._writing.value or 0.0))
        if self._seconds is not None:
            return elapsed >= interval
        # The boundary nearest to the computed moment: with steps of 10 s, 12 s are one step rather than two.
        return elapsed + elapsed / (step - self._step) / 2 >= interval

    def measured(self) -> dict[str, Any]:
        """Fields of jobdir.Progress: what a save costs, how long it takes, how often it is due, and why."""
        mean = mean_between(self._prior, self._seen(self._time), self._nodes)
        return {"cost": self._known_cost(), "lag": self._writing.value, "interval": self.interval, "mean": mean}

    def history(self, now: float) -> dict[str, Any]:
        """For the checkpoint: what resumed() of a later run is to know."""
        trained = 0.0 if self._begun is None else max(0.0, now - self._begun)
        grown = self._history.plus(self._prior.name, trained * self._nodes)
        return History(grown.markets, self._cost.value if self._cost.value is not None else grown.cost).to_json()

    def explanation(self, now: float) -> str | None:
        """A line for the log: at first, and when the interval has changed noticeably since it was last explained."""
        interval = self.interval
        if interval is None or self._seconds is not None:
            first, self._told = self._told is None, 0.0
            every = _words(self._seconds) if self._seconds is not None else f"{self._steps:,} steps"
            return f"saving every {every}, as asked" if first else None
        if self._told is not None and 1 / NOTICEABLE < interval / max(self._told, 1e-9) < NOTICEABLE:
            return None
        self._told = interval
        return self._sentence(now)

    # The computation

    def _choose(self) -> Choice:
        cost = self._known_cost()
        ceiling = self._ceiling if cost is not None else min(FIRST, self._ceiling)
        mean = mean_between(self._prior, self._seen(self._time), self._nodes)
        return choose(COST_UNKNOWN if cost is None else cost, mean, self._writing.value or 0.0, ceiling)

    def _known_cost(self) -> float | None:
        return self._cost.value if self._cost.value is not None else self._history.cost

    def _seen(self, now: float) -> Seen:
        """As of the last save: between two saves the interval stays."""
        seen = self._history.markets.get(self._prior.name, Seen())
        trained = 0.0 if self._begun is None else max(0.0, now - self._begun)
        return Seen(seen.node_seconds + trained * self._nodes, seen.interruptions)

    def _sentence(self, now: float) -> str:
        choice, cost, seen = self._choice, self._known_cost(), self._seen(now)
        mean = mean_between(self._prior, seen, self._nodes)
        bound = {
            "optimum": "",
            "ceiling": ", so that no interruption costs more",
            "writing": ", for so long a save takes to be written",
        }[choice.bound if cost is not None else "optimum"]
        save = "what a save costs is to be measured" if cost is None else f"a save blocks {_words(cost)}"
        met = f"; {seen.interruptions} seen in {_words(seen.node_seconds / self._nodes)}" if seen.node_seconds else ""
        return (
            f"saving every {_words(choice.seconds)}{bound}: {save}, an interruption is expected every "
            f"{_words(mean)} (prior {self._prior.name}{met})"
        )


def _words(seconds: float) -> str:
    """`0.05 s`, `38 s`, `4.2 h`: two digits that matter."""
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
