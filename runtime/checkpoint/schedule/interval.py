"""Compute the optimum interval between two saves, from the cost of a save and the rate of interruptions.

The interval is Daly's (see ..goodput) for the measured cost C and the expected mean time between interruptions M, but
at least the time in which a save is written. Interruptions are modelled as a Poisson process of unknown rate λ with a
Gamma(a, b) prior. After k interruptions in T seconds, which include the time since the last interruption, the posterior
is Gamma(a + k, b + T), and

    M = 1 / E[λ] = (b + T) / (a + k)

is the right M for a formula that minimises C/τ + λτ/2, because that is linear in λ.

The prior starts at M = five minutes (b = a × 300 s), much shorter than for most trainings, because the two errors cost
differently. If M is too short, the first hour has some superfluous saves, and every minute without an interruption
makes M longer. If M is too long, an unreliable machine or program loses all its work until M is learnt.

The prior's weight a bounds M: without any interruption M is (b + T) / a. The lower 95 % confidence limit of M is then
about T/3, so the interval is at most sqrt(3/a) times the optimum for that limit: 1.7 times for spot machines, 2.4 for
an unknown market, 3.9 for machines that are rarely interrupted. No other upper limit is needed.
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
"""Mean seconds between interruptions that is assumed before any observation (M in the text above)."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior for the rate of interruptions in one market."""

    name: str
    interruptions: float
    """The prior's weight a; 1.0 counts as one observed interruption."""


PRIORS = {
    prior.name: prior
    for prior in (
        # Google's machines run for 24 h at most and are preempted mostly in the first and the last hours (Kadupitiya et
        # al., "Modeling The Temporally Constrained Preemptions of Transient Cloud VMs", HPDC 2020); the rate for AWS'
        # V100s differs by zone (traces of Wu et al., "Can't Be Late", NSDI 2024:
        # https://github.com/skypilot-org/spot-traces). The weight of one interruption is an assumption.
        Prior("spot", 1.0),
        # These weights are assumptions. Hardware alone interrupts a machine with 8 GPUs every eight months (466 times
        # in 54 days on 2,048 machines: Llama Team, "The Llama 3 Herd of Models", 2024); failing programs come on top.
        Prior("on-demand", 0.2),
        Prior("flex-start", 0.2),
        Prior("reservation", 0.2),
    )
}
UNKNOWN_PRIOR = Prior("unknown", 0.5)
"""Prior outside a job: a workstation, a cluster's queue with its time limit, a notebook."""


def prior_of(market: str) -> Prior:
    """Return the prior of a market, UNKNOWN_PRIOR for an unknown one."""
    return PRIORS.get(market, UNKNOWN_PRIOR)


@dataclass(frozen=True, slots=True)
class Observation:
    """Number of interruptions observed in a number of node-seconds."""

    node_seconds: float = 0.0
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """Observations from all runs of a training, which are saved with each checkpoint."""

    markets: Mapping[str, Observation] = field(default_factory=dict)
    """Observations by market, because interruptions of spot machines do not predict those of others."""
    cost: float | None = None
    """Seconds for which a save blocked training in the previous run; None: unknown."""

    def seen(self, market: str) -> Observation:
        return self.markets.get(market, Observation())

    def plus(self, market: str, node_seconds: float, interruptions: int = 0) -> History:
        """Return a copy with more seconds and interruptions in a market."""
        old = self.seen(market)
        new = Observation(old.node_seconds + node_seconds, old.interruptions + interruptions)
        return replace(self, markets={**self.markets, market: new})

    def joined(self, other: History) -> History:
        """Return the larger counts of this history and another of the same training; each may be incomplete."""
        pairs = {name: (self.seen(name), other.seen(name)) for name in {*self.markets, *other.markets}}
        markets = {
            name: Observation(max(a.node_seconds, b.node_seconds), max(a.interruptions, b.interruptions))
            for name, (a, b) in pairs.items()
        }
        return History(markets, self.cost if self.cost is not None else other.cost)

    def to_json(self) -> dict[str, Any]:
        markets = {name: [seen.node_seconds, seen.interruptions] for name, seen in self.markets.items()}
        return {"markets": markets, "cost": self.cost}

    @classmethod
    def from_json(cls, value: object) -> History:
        """Parse a history; return an empty one if it is invalid, None, or of an older format."""
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
        """Parse a history from JSON text; return an empty one if it is invalid."""
        try:
            return cls.from_json(json.loads(text))
        except ValueError:
            return cls()


def _read_seen(seconds: Any, interruptions: Any) -> Observation:  # from JSON
    seen = Observation(float(seconds), int(interruptions))
    if not (0 <= seen.node_seconds < math.inf and seen.interruptions >= 0):
        raise ValueError(f"{seconds} s, {interruptions} interruptions")
    return seen


def mean_between(prior: Prior, seen: Observation, nodes: int) -> float:
    """Return M in seconds for a job of `nodes` machines, any of which interrupts it."""
    weight = prior.interruptions
    return (weight * FIRST_MEAN + seen.node_seconds / nodes) / (weight + seen.interruptions)


class RecentMedian:
    """Lower median of the last `size` measurements, which ignores a single outlier.

    Of two values it is the smaller one: a first save is slow because of page faults in its new memory.
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
    """Return the interval in seconds: Daly's, or the time in which a save is written if that is longer."""
    return max(daly_interval(cost, mean), writing)
