"""Summary of a job's earlier attempts: running time of machines, number of interruptions. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...protocol.jobdir import Timeline
from ..store.model import Attempt


def earlier_history(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return runtime.checkpoint.interval.History as JSON, for all ended attempts that had machines.

    Each start of the program that was followed by another counts as one interruption, whether or not it saved.
    """
    markets: dict[str, list[float]] = {}
    cost: float | None = None
    for attempt in attempts:
        if attempt.launched is None or attempt.ended is None or attempt.outcome == "refused":
            continue
        seen = markets.setdefault(attempt.offer.market, [0.0, 0])
        seen[0] += attempt.offer.nodes * _seconds(attempt.launched, attempt.ended, attempt.timeline)
        seen[1] += 1 + len(attempt.generations)
        cost = (attempt.progress and attempt.progress.cost) or cost
    return {"markets": markets, "cost": cost}


def _seconds(launched: float, ended: float, timeline: Timeline | None) -> float:
    """Return the running time of the machines; excludes the provider's queue if a node reported a plausible start."""
    if timeline is not None and launched <= timeline.claimed <= ended:
        return ended - timeline.claimed
    return max(0.0, ended - launched)
