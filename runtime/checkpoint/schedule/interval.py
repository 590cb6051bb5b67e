"""The interval between two saves: from what a save costs and how often training is interrupted. Pure.

The interval is Daly's (see ..goodput) for the measured cost C and the expected mean time between interruptions M, but
not shorter than a save takes to be written. Interruptions are taken as a Poisson process of unknown rate λ with a
Gamma(a, b) prior. After k interruptions in T seconds, the time since the last one included, the posterior is
Gamma(a + k, b + T), and

    M = 1 / E[λ] = (b + T) / (a + k)

is the right M for a formula that minimises C/τ + λτ/2, because that is linear in λ.

The prior begins at five minutes (b = a × 300 s), much shorter than most trainings meet, because the two errors cost
differently. With too short an M the first hour has some saves too many, and every minute without an interruption makes
M longer. With too long an M an unreliable machine or program loses all that it does until M is learnt.

The prior's weight a bounds M: without any interruption M is (b + T) / a. The lower 95 % confidence limit of M is then
about T/3, so the interval is at most sqrt(3/a) times the best one for that limit: 1.7 for spot machines, 2.4 where
nothing is known, 3.9 for machines that are rarely interrupted. No other upper limit is needed.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Any

from ...goodput import daly_interval

FIRST_MEAN = 300.0
"""Seconds: M before anything was seen."""


@dataclass(frozen=True, slots=True)
class Prior:
    """How much is expected of the machines of one market."""

    name: str
    interruptions: float
    """a, the weight of the prior: 1 counts as much as one interruption that was seen."""


PRIORS = {
    prior.name: prior
    for prior in (
        # Google's machines run 24 h at most and are taken in the first and the last hours rather than between
        # (Kadupitiya et al., "Modeling The Temporally Constrained Preemptions of Transient Cloud VMs", HPDC 2020); for
        # AWS' V100s it differs by zone (the traces of Wu et al., "Can't Be Late", NSDI 2024:
        # https://github.com/skypilot-org/spot-traces). One interruption is expected in any case.
        Prior("spot", 1.0),
        # An assumption. Of 2,048 machines with 8 GPUs, each caused an interruption every eight months (466 in 54 days:
        # Llama Team, "The Llama 3 Herd of Models", 2024), but programs fail, too.
        Prior("on-demand", 0.2),
        Prior("flex-start", 0.2),
        Prior("reservation", 0.2),
    )
}
UNKNOWN = Prior("unknown", 0.5)
"""Outside a job: one's own machine, a cluster's queue with its time limit, a notebook."""


def prior_of(market: str) -> Prior:
    """Return the prior of a market, UNKNOWN for an unknown one."""
    return PRIORS.get(market, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Seen:
    """Interruptions met in a number of seconds; of several machines the seconds add up."""

    node_seconds: float = 0.0
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """Everything that a training has met, in all its runs; saved with each checkpoint."""

    markets: Mapping[str, Seen] = field(default_factory=dict)
    """By market, because the interruptions of spot machines say nothing about others."""
    cost: float | None = None
    """Seconds for which a save blocked in the run before; None: there was none."""

    def seen(self, market: str) -> Seen:
        return self.markets.get(market, Seen())

    def plus(self, market: str, node_seconds: float, interruptions: int = 0) -> History:
        """Return a copy with more seconds and interruptions in a market."""
        old = self.seen(market)
        new = Seen(old.node_seconds + node_seconds, old.interruptions + interruptions)
        return replace(self, markets={**self.markets, market: new})

    def joined(self, other: History) -> History:
        """Return the larger counts of two histories of one training, each of which may have missed something."""
        pairs = {name: (self.seen(name), other.seen(name)) for name in {*self.markets, *other.markets}}
        markets = {
            name: Seen(max(a.node_seconds, b.node_seconds), max(a.interruptions, b.interruptions))
            for name, (a, b) in pairs.items()
        }
        return History(markets, self.cost if self.cost is not None else other.cost)

    def to_json(self) -> dict[str, Any]:
        markets = {name: [seen.node_seconds, seen.interruptions] for name, seen in self.markets.items()}
        return {"markets": markets, "cost": self.cost}

    @classmethod
    def from_json(cls, value: object) -> History:
        """Read a history; one that cannot be understood (an older format, None) is empty and is learnt again."""
        if not isinstance(value, Mapping):
            return cls()
        try:
            markets = {str(name): _read_seen(s, k) for name, (s, k) in value["markets"].items()}
            cost = None if value.get("cost") is None else float(value["cost"])
            if cost is not None and not 0 <= cost < math.inf:
                return cls()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return cls()
        return cls(markets, cost)

    @classmethod
    def from_text(cls, text: str) -> History:
        """Read a history as JSON, with the same leniency."""
        try:
            return cls.from_json(json.loads(text))
        except ValueError:
            return cls()


def _read_seen(seconds: Any, interruptions: Any) -> Seen:  # of a JSON
    seen = Seen(float(seconds), int(interruptions))
    if not (0 <= seen.node_seconds < math.inf and seen.interruptions >= 0):
        raise ValueError(f"{seconds} s, {interruptions} interruptions")
    return seen


def mean_between(prior: Prior, seen: Seen, nodes: int) -> float:
    """Return M in seconds for a job on a number of machines, any of which interrupts it."""
    weight = prior.interruptions
    return (weight * FIRST_MEAN + seen.node_seconds / nodes) / (weight + seen.interruptions)


class Typical:
    """Keep the last few measurements, of which the lower median counts: one outlier changes nothing.

    Of a first save that had to fault in its memory and a second that had not, it is the second.
    """

    def __init__(self, size: int = 7) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        if math.isfinite(value) and value >= 0:
            self._values.append(value)

    @property
    def value(self) -> float | None:
        return median_low(self._values) if self._values else None


def best_interval(cost: float, mean: float, writing: float) -> float:
    """Return Daly's interval, or the seconds a save takes to be written if that is longer."""
    return max(daly_interval(cost, mean), writing)
