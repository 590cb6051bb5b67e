"""Notes on offers: reservations, queues, ends of support, old prices."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from ..models import JobSpec
from ..rules.base import refresh_command
from .options import Option
from .prices import Total

OLD_DAYS = {"spot": 2, "on-demand": 180}
"""Age in days, by market, above which a machine's price counts as old: Spot prices change daily, list prices rarely
within a year."""
OLD_NOTES = {
    "spot": "Spot prices change daily: this one may have",
    "on-demand": "the price has figures of more than half a year ago",
}
FLEX_START_MAX_S = 7 * 86_400
"""Maximum lifetime in seconds of a Flex-start machine on Compute Engine and Vertex AI."""

_MARKET_NOTES = {
    "reservation": "needs a reservation of yours; its price is what you agreed upon",
    "flex-start": "waits in a queue until the machines are free; they run for at most 7d",
}


def notes_on(way: Sequence[Option], total: Total, market: str, spec: JobSpec, today: str) -> tuple[str, ...]:
    """Return the notes on an offer, without duplicates or names of places, so that offers in all places share them."""
    found = [
        *_on_market(market, spec),
        *_on_machines(way, spec),
        *_on_price(way[0].machine.cloud, total, market, today),
    ]
    return tuple(dict.fromkeys(found))


def _on_market(market: str, spec: JobSpec) -> Iterator[str]:
    if market in _MARKET_NOTES:
        yield _MARKET_NOTES[market]
    if market == "flex-start" and (spec.limits.duration or 0) > FLEX_START_MAX_S:
        yield "limits.duration is beyond flex-start's 7d: the job goes on from its checkpoint on new machines"


def _on_machines(way: Sequence[Option], spec: JobSpec) -> Iterator[str]:
    for option, role in zip(way, spec.effective_roles().values(), strict=True):
        machine = option.machine
        if machine.status == "deprecated" and machine.ends:
            yield f"support for {machine.accelerator or machine.name} ends {machine.ends}"
        if machine.arch != "x86_64":
            yield f"{machine.name} has an {machine.arch} processor: images and packages must fit it"
        if not role.accelerator and machine.accelerator:
            yield f"{machine.name} comes with {machine.accelerator}:{option.gpus}"


def _on_price(cloud: str, total: Total, market: str, today: str) -> Iterator[str]:
    if total.bound:
        yield "the disk's price is an upper bound: that of the cloud's dearest region"
    if total.at_most:
        yield f"Spot prices are unknown: the price on demand is the most it costs; {refresh_command(cloud)}"
        market = "on-demand"
    if total.least is not None:
        yield "the cloud's fee on these machines is not public: the price shown is the least it costs"
    if total.machines and market in OLD_DAYS:
        oldest = min(machine.date for machine in total.machines)
        if _age_days(oldest, today) > OLD_DAYS[market]:
            yield OLD_NOTES[market]


def _age_days(date: str, today: str) -> int:
    return (datetime.date.fromisoformat(today) - datetime.date.fromisoformat(date)).days
