"""What the user should know of an offer beyond its price: reservations, queues, ends of support, old prices."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from .catalog import Price
from .models import JobSpec
from .planner_options import Option

OLD_DAYS = {"spot": 2, "on-demand": 180}
"""A price older than this is called old: Spot prices change daily, list prices about once in a few years."""
FLEX_START_MAX_S = 7 * 86_400
"""Compute Engine and Vertex AI end a Flex-start machine after seven days."""

_MARKET_NOTES = {
    "reservation": "needs a reservation of yours; its price is what you agreed upon",
    "flex-start": "waits in a queue until the machines are free; they run for at most 7d",
}


def notes_on(
    way: Sequence[Option], prices: Sequence[Price | None], market: str, spec: JobSpec, today: str
) -> tuple[str, ...]:
    """The notes on an offer, each once. They name no region or zone, so that offers alike have the same notes."""
    return tuple(dict.fromkeys(_notes(way, prices, market, spec, today)))


def _notes(
    way: Sequence[Option], prices: Sequence[Price | None], market: str, spec: JobSpec, today: str
) -> Iterator[str]:
    if market in _MARKET_NOTES:
        yield _MARKET_NOTES[market]
    if market == "flex-start" and (spec.limits.duration or 0) > FLEX_START_MAX_S:
        yield "limits.duration is beyond flex-start's 7d: the job goes on from its checkpoint on new machines"
    requests = [role.accelerator for role in spec.effective_roles().values()]
    for option, price, requested in zip(way, prices, requests, strict=True):
        machine = option.machine
        if machine.status == "deprecated" and machine.ends:
            yield f"support for {machine.accelerator or machine.name} ends {machine.ends}"
        if machine.arch != "x86_64":
            yield f"{machine.name} has an {machine.arch} processor: images and packages must fit it"
        if not requested and machine.accelerator:
            yield f"{machine.name} comes with {machine.accelerator}:{option.gpus}"
        if price is not None and _age_days(price.date, today) > OLD_DAYS.get(market, 0):
            yield f"{market} price of {price.date}: it may have changed"


def _age_days(date: str, today: str) -> int:
    return (datetime.date.fromisoformat(today) - datetime.date.fromisoformat(date)).days
