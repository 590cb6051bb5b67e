"""The order of offers: the user's preferences, then the price of the whole job, then names."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from ..plan import Offer

Key = tuple[object, ...]
PriceKey = tuple[int, Decimal]
"""Sort key of prices: how far the price is known, then US dollars per hour."""
KNOWN, AT_LEAST, UNKNOWN = 0, 1, 2


def price_key(price: Decimal | None, least: Decimal | None = None) -> PriceKey:
    """Return the key by which prices come first that are known, or known to be at most that; then lower bounds."""
    if price is not None:
        return KNOWN, price
    return (UNKNOWN, Decimal(0)) if least is None else (AT_LEAST, least)


class Ranked(NamedTuple):
    """An offer with what it is sorted by."""

    key: Key
    offer: Offer


def rank(offer: Offer, *, preferences: Sequence[int], market: int, cloud: int, region: int, zone: int) -> Ranked:
    """Sort by accelerators, market, price (lower bounds, then unknown ones last), the user's order of places, names.

    The accelerators of several roles: by the worst of them (place in that role's list) first, so that no role gets its
    third choice while every role can have its second; then in rank order of the roles. All numbers are places in the
    user's lists.
    """
    names = tuple((role.machine_type, role.accelerator or "", role.count) for role in offer.roles)
    key = (
        max(preferences),
        tuple(preferences),
        market,
        price_key(offer.price, offer.price_from),
        cloud,
        region,
        offer.region,
        names,
        zone,
        offer.zone or "",
    )
    return Ranked(key, offer)
