"""The order of offers: the user's preferences, then the price of the whole job, then names."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from .plan import Offer

Key = tuple[object, ...]


class Ranked(NamedTuple):
    """An offer with what it is sorted by."""

    key: Key
    offer: Offer


def rank(offer: Offer, *, preferences: Sequence[int], market: int, cloud: int, region: int, zone: int) -> Ranked:
    """Sort by accelerators, then market, then price (unknown last), then the user's order of places, then names.

    The accelerators of several roles: by the worst of them (place in that role's list) first, so that no role gets its
    third choice while every role can have its second; then in rank order of the roles. All numbers are places in the
    user's lists.
    """
    names = tuple((role.machine_type, role.accelerator or "", role.count) for role in offer.roles)
    key = (
        max(preferences),
        tuple(preferences),
        market,
        offer.price is None,
        offer.price if offer.price is not None else Decimal(0),
        cloud,
        region,
        offer.region,
        names,
        zone,
        offer.zone or "",
    )
    return Ranked(key, offer)
