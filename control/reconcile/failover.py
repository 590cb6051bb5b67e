"""Failover between offers: which places a refusal closes, and for how long. Pure functions.

A refusal closes the places within its scope for offers that would be refused as well. If there was no capacity, they
reopen after a time; without a quota or permission, once machines are obtained elsewhere; if the machines are not
offered there, never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...jobspecs.plan import Offer, RoleOffer
from ...jobspecs.targets import info
from ..store.model import Attempt, Refused

NO_CAPACITY_S = 600.0
"""Default seconds for which all jobs of the store avoid a place without capacity; a target's capacity_retry_s
overrides it (local: requests cost nothing there, and GPUs become free one by one)."""
LONG_SEARCH_S = 3_600.0
LONG_SEARCH_FACTOR = 3
"""After LONG_SEARCH_S seconds of unsuccessful search, a job avoids each refused place for LONG_SEARCH_FACTOR
times the usual time: each try is a launch that must be prepared and undone."""

Lasts = Literal["dry", "search", "ever"]


@dataclass(frozen=True, slots=True)
class Reaction:
    """Effect of an error class on other offers."""

    lasts: Lasts
    """dry: for NO_CAPACITY_S; search: until machines are obtained elsewhere; ever: for the lifetime of the job."""
    concerns: Callable[[Offer, Offer], bool]
    """(an offer, the refused offer): whether the offer would be refused as well in the same place."""
    reach: Mapping[str, str]
    """Scope of the refusal -> scope in which places are closed."""


_AS_SAID = {"attempt": "zone", "zone": "zone", "region": "region", "market": "cloud", "cloud": "cloud"}
_PARTS = {"cloud": 1, "region": 2, "zone": 3}


def _same_machines(offer: Offer, refused: Offer) -> bool:
    return offer.market == refused.market and _types(offer) == _types(refused)


def _as_many_machines(offer: Offer, refused: Offer) -> bool:
    """Return whether `offer` needs at least the refused machines. A smaller request may still succeed."""
    ours, theirs = _machines(offer), _machines(refused)
    return offer.market == refused.market and all(_covers(ours.get(key), asked) for key, asked in theirs.items())


def _as_much_of_a_quota(offer: Offer, refused: Offer) -> bool:
    """Return whether `offer` needs at least the refused quota. Quotas are per market and machine family; the
    accelerator is the best approximation of a family that works for every cloud, so GPUs and vCPUs are compared."""
    ours, theirs = _sizes(offer), _sizes(refused)
    if ours is None or theirs is None:
        return _as_many_machines(offer, refused)
    return offer.market == refused.market and all(_covers(ours.get(key), asked) for key, asked in theirs.items())


def _any_machines(_offer: Offer, _refused: Offer) -> bool:
    return True


REACTIONS = {
    "capacity": Reaction("dry", _as_many_machines, _AS_SAID),
    "quota": Reaction("search", _as_much_of_a_quota, _AS_SAID),
    "not_offered": Reaction("ever", _same_machines, _AS_SAID),
    # Credentials apply to the whole cloud.
    "auth": Reaction("search", _any_machines, {**_AS_SAID, "zone": "cloud"}),
    # Retried soon; until then the job may run elsewhere.
    "expired": Reaction("dry", _any_machines, dict.fromkeys(_AS_SAID, "cloud")),
    # A bug or an invalid job file: a cloud that refuses a request refuses it in each of its zones.
    "invalid": Reaction("ever", _any_machines, {**_AS_SAID, "zone": "cloud"}),
    # Retries in place have already failed; other places may have machines.
    "throttled": Reaction("dry", _any_machines, _AS_SAID),
    "transient": Reaction("dry", _any_machines, _AS_SAID),
}


def current_search(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the newest attempts, all refused, since machines were last obtained."""
    begin = len(attempts)
    while begin and attempts[begin - 1].outcome == "refused":
        begin -= 1
    return attempts[begin:]


def choose(
    offers: Sequence[Offer], attempts: Sequence[Attempt], elsewhere: Sequence[Refused], now: float
) -> Offer | float | None:
    """Return the offer to request now, or else the epoch seconds when the first offer reopens; None: no offer ever
    will.

    `offers`: in order of preference. `attempts`: all of the job; they have ended. `elsewhere`: capacity refusals of
    other jobs of the store within the last NO_CAPACITY_S.
    """
    newest = current_search(attempts)
    known = [
        *(Refused.of(one) for one in attempts[: len(attempts) - len(newest)] if _outlives_search(one)),
        *(Refused.of(one) for one in newest),
        *elsewhere,
    ]
    begun = newest[0].created if newest else now
    opens = [(opens_at(offer, known, begun), offer) for offer in offers]
    now_open = [offer for when, offer in opens if when <= now]
    if now_open:
        return _ordered(now_open, offers, known, attempts, now)[0]
    soonest = min((when for when, _ in opens), default=math.inf)
    return None if soonest == math.inf else soonest


def opens_at(offer: Offer, refusals: Sequence[Refused], begun: float = math.inf) -> float:
    """Return the epoch seconds from which the offer may be requested; math.inf: never. `begun`: start of the search."""
    speaking = [refusal for refusal in refusals if concerns(refusal, offer)]
    partial = [refusal for refusal in speaking if refusal.scope == "attempt"]
    if _leave_zones(partial):
        speaking = [refusal for refusal in speaking if refusal.scope != "attempt"]
    return max((_until(refusal, begun) for refusal in speaking), default=0.0)


def _leave_zones(partial: Sequence[Refused]) -> bool:
    """Return whether the offer has zones that none of the partly refused attempts has tried."""
    newest = max((refusal.time for refusal in partial), default=0.0)
    left = [frozenset(refusal.hints) for refusal in partial if newest - refusal.time < NO_CAPACITY_S]
    return bool(left) and bool(frozenset.intersection(*left))


def concerns(refusal: Refused, offer: Offer) -> bool:
    """Return whether a refusal applies to this offer too."""
    if refusal.scope == "market" and refusal.offer.market != offer.market:
        return False
    reaction = REACTIONS[refusal.kind]
    parts = _PARTS[reaction.reach[refusal.scope]]
    return _place(refusal.offer)[:parts] == _place(offer)[:parts] and reaction.concerns(offer, refusal.offer)


def _until(refusal: Refused, begun: float) -> float:
    if REACTIONS[refusal.kind].lasts != "dry":
        return math.inf
    retry_s = info(refusal.offer.cloud).capacity_retry_s or NO_CAPACITY_S
    return refusal.time + (retry_s if refusal.time - begun < LONG_SEARCH_S else retry_s * LONG_SEARCH_FACTOR)


def _outlives_search(attempt: Attempt) -> bool:
    """Return whether a refusal stays valid after a successful launch. Refusals for quotas and credentials do not, as
    these may have changed; "not offered" and "no capacity" do."""
    return attempt.outcome == "refused" and REACTIONS[attempt.cause].lasts != "search"


# -- order


def _ordered(
    now_open: Sequence[Offer],
    offers: Sequence[Offer],
    refusals: Sequence[Refused],
    attempts: Sequence[Attempt],
    now: float,
) -> list[Offer]:
    """Return the open offers, best first: by the plan's order of markets and GPUs. Offers with the same market and GPUs
    are sorted by place: first those in zones that the provider has named as having capacity, and after that those where
    this job has not just lost a machine."""
    kinds = list(dict.fromkeys(map(_kind, offers)))
    named = {
        (*_place(refusal.offer)[:2], zone, _kind(refusal.offer))
        for refusal in refusals
        if now - refusal.time < NO_CAPACITY_S
        if refusal.scope != "attempt"
        for zone in refusal.hints
    }
    lost_at = [one.offer for one in attempts if one.outcome in _TAKEN and _is_fresh(one, now)]
    lost = {(*_place(offer), _kind(offer)) for offer in lost_at}

    def rank(offer: Offer) -> tuple[int, bool, bool]:
        here = (*_place(offer), _kind(offer))
        return kinds.index(_kind(offer)), here not in named, here in lost

    return sorted(now_open, key=rank)  # stable: equal ranks keep the plan's order


_TAKEN = frozenset({"preempted", "lost"})


def _is_fresh(attempt: Attempt, now: float) -> bool:
    return attempt.ended is not None and now - attempt.ended < NO_CAPACITY_S


def _kind(offer: Offer) -> tuple[object, ...]:
    """Return the properties by which the plan's order ranks an offer, except place and price: market and GPUs."""
    return offer.market, tuple((role.accelerator, role.count) for role in offer.roles)


# -- places and machines

Place = tuple[str, str, str]


def _place(offer: Offer) -> Place:
    return (offer.cloud, offer.region, offer.zone or "")


def _types(offer: Offer) -> tuple[str, ...]:
    return tuple(role.machine_type for role in offer.roles)


_Amounts = tuple[float, float]


def _machines(offer: Offer) -> dict[object, _Amounts]:
    """Return (machine type, accelerator) -> (machines, GPUs)."""
    return _sums(offer.roles, lambda role: (role.machine_type, role.accelerator), lambda _role: 1.0)


def _sizes(offer: Offer) -> dict[object, _Amounts] | None:
    """Return accelerator -> (vCPUs, GPUs); None: the vCPUs of some machine are unknown."""
    if any(role.vcpus is None for role in offer.roles):
        return None
    return _sums(offer.roles, lambda role: role.accelerator, lambda role: float(role.vcpus or 0))


def _sums(
    roles: Sequence[RoleOffer], key: Callable[[RoleOffer], object], size: Callable[[RoleOffer], float]
) -> dict[object, _Amounts]:
    sums: dict[object, _Amounts] = {}
    for role in roles:
        of, gpus = sums.get(key(role), (0.0, 0.0))
        sums[key(role)] = of + role.nodes * size(role), gpus + float(role.nodes * role.count)
    return sums


def _covers(ours: _Amounts | None, asked: _Amounts) -> bool:
    return ours is not None and ours[0] >= asked[0] and ours[1] >= asked[1]
