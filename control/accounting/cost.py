"""Cost of jobs: an attempt's price per hour, times the hours from its launch to the end of its machines.

While launch() has not returned, the cost is 0, because there may be no machine. It is final when the attempt ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from ..store.model import Attempt, JobRow

_HOUR = Decimal(3600)
_CENT_PART = Decimal("0.000001")
_RESERVE_PART = Decimal("0.2")


def charge(price: Decimal, seconds: float) -> Decimal:
    """Return the US dollars that `seconds` cost at a price per hour; 0 for negative seconds (a clock was set back)."""
    hours = Decimal(repr(max(0.0, seconds))) / _HOUR
    return (price * hours).quantize(_CENT_PART)


def attempt_cost(attempt: Attempt, now: float) -> Decimal | None:
    """Return the cost of an attempt so far: 0 before it has a machine, None if the price is unknown."""
    if attempt.cost is not None:
        return attempt.cost
    if attempt.launched is None or _is_unanswered(attempt):
        return Decimal(0)
    if attempt.price is None:
        return None
    return charge(attempt.price, paid_seconds(attempt, now))


def paid_seconds(attempt: Attempt, now: float) -> float:
    """Return the paid seconds of an attempt until its end or until now; machines with price 0 count too."""
    if attempt.launched is None or _is_unanswered(attempt):
        return 0.0
    if attempt.cost and attempt.price:
        return float(attempt.cost / attempt.price * _HOUR)
    return max(0.0, (now if attempt.ended is None else attempt.ended) - attempt.launched)


def _is_unanswered(attempt: Attempt) -> bool:
    """Return whether the attempt waits for launch() to return. If it gets machines, the time is charged later."""
    return attempt.allocation is None and attempt.ended is None


def was_free(attempt: Attempt, *, has_started: bool | None, grouped: bool = False) -> bool:
    """Return whether an attempt that requested machines cost nothing.

    `has_started`: whether any machine started before launch() failed. None: unknown; then the attempt was free only if
    it requested a single machine and the provider clearly refused it.
    `grouped`: it had a machine group. If an attempt is refused after launch() has returned, its machines were only
    queued at the provider (NodeState.refused), so it was free. In a group, some machines may have run meanwhile.
    """
    clear = attempt.outcome == "refused" and attempt.cause not in ("throttled", "transient", "expired")
    if attempt.allocation is not None:
        return clear and not grouped
    return clear and attempt.offer.nodes == 1 if has_started is None else not has_started


def total(attempts: Iterable[Attempt], now: float) -> Decimal | None:
    """Return the cost of all attempts; None if the cost of any of them is unknown."""
    costs = [attempt_cost(attempt, now) for attempt in attempts]
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None


def spent(job: JobRow, current: Attempt | None, now: float) -> Decimal | None:
    """Return the cost of a job until now, from its row and its newest attempt alone."""
    running = current is not None and current.state != "ended"
    cost = attempt_cost(current, now) if current is not None and running else Decimal(0)
    return None if cost is None or job.spent is None else job.spent + cost


def reserve(limit: Decimal, price: Decimal, grace_s: float) -> Decimal:
    """Return the US dollars reserved for stopping the job within its cost limit: at most a fifth of the limit."""
    return min(charge(price, grace_s), limit * _RESERVE_PART)


def seconds_left(limit: Decimal, already: Decimal, price: Decimal) -> float | None:
    """Return the seconds until the cost limit is reached at `price` per hour; None: never (the price is 0)."""
    return None if price <= 0 else max(0.0, float((limit - already) / price * _HOUR))
