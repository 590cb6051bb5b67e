"""Result for the GPU quotas of a region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .results import CheckResult

_MARKETS = ("on-demand", "spot")


class Allowance(NamedTuple):
    """Limit of one quota in a region."""

    of: str
    """Accelerator, or family of machines, as the message names it."""
    market: str
    """`on-demand` or `spot`."""
    name: str
    """Name under which the provider's console lists it."""
    limit: float | None
    """None: no limit."""
    used: float | None = None
    """None: unknown."""


def show(region: str, unit: str, found: Sequence[Allowance], fix: str, *, blocked_by: str = "") -> CheckResult:
    """Return the result for the quotas of a region. `unit`: GPUs or vCPUs; `fix`: how to ask for more; `blocked_by`: a
    quota of 0 that no machine gets past."""
    values = {"region": region, "unit": unit, "quotas": [one._asdict() for one in found]}
    names = list(dict.fromkeys(one.of for one in found))
    granted = [name for name in names if any(one.of == name and one.limit != 0 for one in found)]
    if blocked_by or not granted:
        reason = f"{blocked_by} is 0" if blocked_by else f"0 {unit} of every kind are allowed"
        return CheckResult("quota", "warning", f"{region}: {reason}; no GPU machine can start", fix, values)
    cells = ", ".join(f"{name} {'/'.join(_cell(found, name, market) for market in _MARKETS)}" for name in granted)
    refused = ", ".join(name for name in names if name not in granted)
    none = f"; none of {refused}" if refused else ""
    return CheckResult("quota", "ok", f"{region}, {unit} on demand / spot: {cells}{none}", "", values)


def _cell(found: Sequence[Allowance], name: str, market: str) -> str:
    one = next((one for one in found if one.of == name and one.market == market), None)
    if one is None:
        return "-"
    limit = "no limit" if one.limit is None else f"{one.limit:g}"
    return f"{limit} ({one.used:g} used)" if one.used else limit
