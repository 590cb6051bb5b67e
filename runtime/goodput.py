"""Goodput of a training with checkpoints, and the optimum interval between two saves.

All times are seconds, with the symbols of the literature:

    interval   τ, useful work between two saves
    cost       C, time for which a save blocks training
    restart    R, time from an interruption until training continues: detect, get a machine, boot, set up, restore
    mean       M, mean time between interruptions of the whole job
    lag        L, time from the copy of the state until it is durable, if saves are written in the background

Young (1974), "A first order approximation to the optimum checkpoint interval", CACM 17(9).
Daly (2006), "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3).
"""

from __future__ import annotations

import math

_LARGEST_EXPONENT = 700.0
"""Largest argument of exp() that does not overflow a double (709), rounded down."""


def young_interval(cost: float, mean: float) -> float:
    """Return τ = sqrt(2 C M): the optimum to first order, for C much smaller than M."""
    return math.sqrt(2 * cost * mean)


def daly_interval(cost: float, mean: float) -> float:
    """Return τ = sqrt(2 C M) [1 + sqrt(C/2M)/3 + (C/2M)/9] − C if C < 2M, else τ = M."""
    if math.isinf(mean):
        return math.inf if cost > 0 else 0.0
    if cost >= 2 * mean:
        return mean
    part = cost / (2 * mean)
    return young_interval(cost, mean) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def goodput(interval: float, cost: float, restart: float, mean: float, lag: float = 0.0) -> float:
    """Return G(τ) = τ / (M e^((R+L)/M) (e^((τ+C)/M) − 1)): the long-run ratio of useful time to paid time.

    The formula is exact for interruptions at a constant rate (exponential times between them), which may also occur
    during a save or a restart (Daly 2006). State that was copied but is not yet durable is lost, which has the effect
    of a longer restart.
    """
    if interval <= 0:
        return 0.0
    if math.isinf(mean):
        return interval / (interval + cost)
    exponent = (restart + lag + interval + cost) / mean
    if exponent > _LARGEST_EXPONENT:
        return 0.0
    return interval / (mean * math.exp((restart + lag) / mean) * math.expm1((interval + cost) / mean))


def best_goodput(
    useful: float, starts: int, *, cost: float, restart: float, mean: float | None, lag: float = 0.0
) -> tuple[float, float | None]:
    """Return the best goodput of a job with U = `useful` seconds of work and n = `starts` starts, and its interval.

    G = U / (U + n R + U C/τ + (n − 1) (τ/2 + L)), a first-order approximation, which agrees with goodput() if M is much
    longer than all other times. τ is Daly's optimum, but at least L, because saves are written one after the other;
    None: no saves. Each start costs R; each start but the first follows an interruption, which loses half an interval
    on average. `mean`: M; None: there was no interruption.
    """
    if useful <= 0:
        return 0.0, None
    interval = max(daly_interval(cost, mean), lag) if mean is not None and cost > 0 else None
    saving = useful * cost / interval if interval else 0.0
    losing = (starts - 1) * ((interval or 0.0) / 2 + lag)
    return useful / (useful + starts * restart + saving + losing), interval
