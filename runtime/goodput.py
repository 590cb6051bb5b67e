"""How much of the paid time can be useful, and how far apart two saves should be. Pure arithmetic.

All times are seconds, written as in the literature:

    interval   τ, useful work between two saves
    cost       C, for how long a save blocks training
    restart    R, from an interruption until training goes on: detect, get a machine, boot, set up, start, restore
    mean       M, mean time between interruptions of the whole job
    lag        L, from the moment a state was copied until it is durable: what a save in the background adds to the loss

Young (1974), "A first order approximation to the optimum checkpoint interval", CACM 17(9).
Daly (2006), "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3).
"""

from __future__ import annotations

import math

_LARGEST_EXPONENT = 700.0
"""exp() of more overflows."""


def young_interval(cost: float, mean: float) -> float:
    """τ = sqrt(2 C M): the optimum to first order, for C much smaller than M."""
    return math.sqrt(2 * cost * mean)


def daly_interval(cost: float, mean: float) -> float:
    """τ = sqrt(2 C M) [1 + sqrt(C/2M)/3 + (C/2M)/9] − C where C < 2M, else τ = M."""
    if math.isinf(mean):
        return math.inf if cost > 0 else 0.0
    if cost >= 2 * mean:
        return mean
    part = cost / (2 * mean)
    return young_interval(cost, mean) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def goodput(interval: float, cost: float, restart: float, mean: float, lag: float = 0.0) -> float:
    """G(τ) = τ / (M e^((R+L)/M) (e^((τ+C)/M) − 1)): useful over paid time in the long run.

    Exact for interruptions at a constant rate (exponential), which may also strike while saving and restarting
    (Daly 2006). Work that was copied but not yet durable must be done again: that counts like a longer restart.
    """
    if interval <= 0:
        return 0.0
    if math.isinf(mean):
        return interval / (interval + cost)
    exponent = (restart + lag + interval + cost) / mean
    if exponent > _LARGEST_EXPONENT:
        return 0.0
    return interval / (mean * math.exp((restart + lag) / mean) * math.expm1((interval + cost) / mean))


def possible_goodput(
    useful: float, starts: int, *, cost: float, restart: float, mean: float | None, lag: float = 0.0
) -> tuple[float, float | None]:
    """What a job of so much useful work could come to, started so often, and by which interval (None: by no save).

    G = U / (U + n R + U C/τ + (n − 1) (τ/2 + L)), τ being Daly's, but no shorter than L, for saves are written one at a
    time: each of its n starts costs R, and each but the first follows upon an interruption that costs half an interval
    on average. To first order, and for a job that ends; in the long run, M being far longer than all else, goodput()
    says the same. `mean`: M; None: there was no interruption.
    """
    if useful <= 0:
        return 0.0, None
    interval = max(daly_interval(cost, mean), lag) if mean is not None and cost > 0 else None
    saving = useful * cost / interval if interval else 0.0
    losing = (starts - 1) * ((interval or 0.0) / 2 + lag)
    return useful / (useful + starts * restart + saving + losing), interval
