"""Readable summary of refused requests for machines, grouped by reason: place, time, count. Pure functions."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...jobspecs.plan import Offer
from ...jobspecs.targets import info
from ..store.model import Refused

CLASSES = {
    "capacity": "no capacity",
    "quota": "no quota",
    "not_offered": "not offered",
    "auth": "not permitted",
    "expired": "login expired",
    "invalid": "request refused",
    "throttled": "too many requests",
    "transient": "a temporary error",
}
"""Names of the error classes in messages."""

# Providers put places, numbers and ids into their messages. These are removed before messages are compared.
_NAMES = re.compile(r"[\w.:/-]*\d[\w.:/-]*|\bhttps?://\S+")
_SEVERAL = re.compile(r"…(?:[,\s]+(?:and\s+|or\s+)?…)+")


@dataclass(frozen=True, slots=True)
class RefusedPlace:
    """A place, with the number of requests that it refused."""

    offer: Offer
    times: int
    last: float
    """Epoch seconds of the last request."""


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Places that were refused for the same reason, in the order of their first request."""

    kind: str
    reason: str
    """The provider's newest message."""
    places: tuple[RefusedPlace, ...]


def group(refusals: Sequence[Refused]) -> list[RefusalGroup]:
    """Group refusals by class and reason, ignoring names in the reason. A place occurs once in its group."""
    groups: dict[tuple[str, str], list[Refused]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.kind, _alike(refusal)), []).append(refusal)
    return [RefusalGroup(kind, found[-1].reason, _asked(found)) for (kind, _), found in groups.items()]


def lines(groups: Sequence[RefusalGroup], clock: Callable[[float], str]) -> list[str]:
    """Return one line for each reason, each followed by a line for each place. `clock`: formats epoch seconds."""
    found = []
    for one in groups:
        count = len(one.places)
        where = f"{count} places" if count > 1 else "1 place"
        found.append(f"{CLASSES.get(one.kind, one.kind)}, {where}: {one.reason}")
        for region, places in _by_region(one.places).items():
            asked = ", ".join(_zone(place, clock) for place in places)
            found.append(f"  {region}: {asked}")
    return found


def message(refusals: Sequence[Refused], headline: str = "no machines") -> str:
    """Return a job's reason: a line with the number of tries, then lines() with times in UTC."""
    if not refusals:
        return headline
    groups = group(refusals)
    places = len({_name(asked.offer) for one in groups for asked in one.places})
    first, last = utc(min(one.time for one in refusals)), utc(max(one.time for one in refusals))
    day = last[:11]
    tries = f"{len(refusals)} tries at {places} place{'s' * (places > 1)}" if len(refusals) > 1 else "1 try"
    span = f"at {last}" if first == last else f"from {first.removesuffix(' UTC')} to {last.removeprefix(first[:11])}"
    whys = ", ".join(dict.fromkeys(CLASSES.get(one.kind, one.kind) for one in groups))
    details = lines(groups, lambda moment: utc(moment).removeprefix(day).removesuffix(" UTC"))
    return "\n".join([f"{headline}: {tries} {span}: {whys}", *(f"  {line}" for line in details)])


def utc(moment: float) -> str:
    """Format epoch seconds as `2026-05-01 14:03 UTC`."""
    return datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _alike(refused: Refused) -> str:
    plain = _NAMES.sub("…", refused.reason.replace(refused.offer.market, "…"))
    return _SEVERAL.sub("…", plain)


def _asked(refusals: Sequence[Refused]) -> tuple[RefusedPlace, ...]:
    found: dict[tuple[str, str], RefusedPlace] = {}
    for refusal in refusals:
        name = _name(refusal.offer)
        times = found[name].times if name in found else 0
        found[name] = RefusedPlace(refusal.offer, times + 1, refusal.time)
    return tuple(found.values())


def _name(offer: Offer) -> tuple[str, str]:
    return offer.region, offer.label


def _by_region(places: Sequence[RefusedPlace]) -> dict[str, list[RefusedPlace]]:
    regions: dict[str, list[RefusedPlace]] = {}
    for one in places:
        offer = one.offer
        regional = offer if info(offer.cloud).is_here else offer._replace(zone=None)
        regions.setdefault(regional.label, []).append(one)
    return regions


def _zone(asked: RefusedPlace, clock: Callable[[float], str]) -> str:
    """Format a place as `use1-az1 14:03` or `use1-az1 3 × until 14:03`."""
    when = clock(asked.last) if asked.times == 1 else f"{asked.times} × until {clock(asked.last)}"
    return f"{asked.offer.zone} {when}" if asked.offer.zone else when
