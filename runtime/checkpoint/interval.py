"""How far apart two saves should be: from what a save costs and how often training is interrupted. Pure.

The interval is Daly's for the measured cost and the expected rate of interruptions (see ..goodput), not shorter than a
save takes to be written and not longer than the most that an interruption may cost.

The rate is learnt. Interruptions of a machine are taken as a Poisson process of unknown rate λ with a Gamma(a, b)
prior: as if `a` interruptions had been seen in `b` seconds. After k in T seconds the posterior is Gamma(a+k, b+T), and

    M = 1 / E[λ] = (b + T) / (a + k)

is the right M to put into a formula that minimises C/τ + λτ/2, for that is linear in λ. Rates of different clouds,
types and programs differ by orders of magnitude, so priors weigh little: after a few interruptions only these count.
Besides, a wrong prior matters little, for the optimum is flat: an M wrong by 4 makes τ wrong by 2, and what saving and
losing work cost together is then a quarter more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Any, Literal

from ..goodput import daly_interval

CEILING = 300.0
"""Seconds: the most that an interruption without notice may cost, unless the job file says otherwise."""
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of one machine before anything was seen, by market."""

    name: str
    interruptions: float
    """a, the weight of the belief: 1 counts as much as one interruption that was seen."""
    hours: float
    """Mean time between interruptions of one machine; b = a × hours."""


PRIORS = {
    prior.name: prior
    for prior in (
        # An assumption, which errs on the side of saving. Measured are: Google's machines of 24 h at most, taken in the
        # first and the last hours rather than between (Kadupitiya et al., "Modeling The Temporally Constrained
        # Preemptions of Transient Cloud VMs", HPDC 2020); AWS' V100s, each zone otherwise (the traces of Wu et al.,
        # "Can't Be Late", NSDI 2024: https://github.com/skypilot-org/spot-traces).
        Prior("spot", 1.0, 2.0),
        # An assumption, too. Of 2,048 machines with 8 GPUs each was to blame for an interruption every eight months
        # (466 in 54 days: Llama Team, "The Llama 3 Herd of Models", 2024). But failures of the program itself may come
        # every few minutes: a week, but the first interruption decides.
        Prior("on-demand", 0.02, 7 * 24.0),
        Prior("flex-start", 0.02, 7 * 24.0),
        Prior("reservation", 0.02, 7 * 24.0),
    )
}
UNKNOWN = Prior("unknown", 0.05, 24.0)
"""Outside a job: a machine of one's own, a cluster's queue with its time limit, a notebook."""


def prior_of(market: str) -> Prior:
    return PRIORS.get(market, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Seen:
    """Interruptions in so many seconds of one machine; of several machines the seconds add up."""

    node_seconds: float = 0.0
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """What a training has met so far, in all its runs; travels with its checkpoints."""

    markets: Mapping[str, Seen] = field(default_factory=dict)
    """By name of the prior: what spot machines did says nothing of others."""
    cost: float | None = None
    """Seconds for which a save blocked in the run before; None: there was none."""

    def plus(self, market: str, node_seconds: float, interruptions: int = 0) -> History:
        old = self.markets.get(market, Seen())
        new = Seen(old.node_seconds + node_seconds, old.interruptions + interruptions)
        return replace(self, markets={**self.markets, market: new})

    def to_json(self) -> dict[str, Any]:
        markets = {name: [seen.node_seconds, seen.interruptions] for name, seen in self.markets.items()}
        return {"markets": markets, "cost": self.cost}

    @classmethod
    def from_json(cls, value: object) -> History:
        """Lenient: a history that cannot be understood (an older format, None) is an empty one, and is learnt anew."""
        if not isinstance(value, Mapping):
            return cls()
        try:
            markets = {str(name): Seen(float(s), int(k)) for name, (s, k) in value["markets"].items()}
            cost = None if value["cost"] is None else float(value["cost"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()
        return cls(markets, cost)


def mean_between(prior: Prior, seen: Seen, nodes: int) -> float:
    """M in seconds for a job on so many machines, any of which interrupts it: (b + T) / (a + k) / nodes."""
    pseudo = prior.interruptions * prior.hours * _HOUR
    return (pseudo + seen.node_seconds) / (prior.interruptions + seen.interruptions) / nodes


class Typical:
    """The usual one of the last few measurements: a single one out of the way does not count.

    The lower median: of a first save that had to fault in its memory and a second that had not, it is the second.
    """

    def __init__(self, size: int = 7) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        if math.isfinite(value) and value >= 0:
            self._values.append(value)

    @property
    def value(self) -> float | None:
        return median_low(self._values) if self._values else None


Bound = Literal["optimum", "writing", "ceiling"]


@dataclass(frozen=True, slots=True)
class Choice:
    """An interval, and what decided it."""

    seconds: float
    bound: Bound


def choose(cost: float, mean: float, writing: float = 0.0, ceiling: float = CEILING) -> Choice:
    """Daly's interval between its bounds; should they contradict each other, nothing is saved faster than written."""
    best = daly_interval(cost, mean)
    if writing >= min(best, ceiling):
        return Choice(writing, "writing")
    return Choice(ceiling, "ceiling") if best > ceiling else Choice(best, "optimum")
