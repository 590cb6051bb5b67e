"""Order of offers: the user's preferences, then the price of the whole job, then names."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from ..plan import Offer

Key = tuple[object, ...]
PriceKey = tuple[int, Decimal]
"""Sort key of prices: kind of price (KNOWN, AT_LEAST or UNKNOWN), then US dollars per hour."""
KNOWN, AT_LEAST, UNKNOWN = 0, 1, 2


def price_key(price: Decimal | None, least: Decimal | None = None) -> PriceKey:
    """Return the sort key of a price: known prices and upper bounds first, then lower bounds, then unknown prices.

    price  the price, or an upper bound; None: unknown
    least  a lower bound
    """
    if price is not None:
        return KNOWN, price
    return (UNKNOWN, Decimal(0)) if least is None else (AT_LEAST, least)


class Ranked(NamedTuple):
    """Offer with its sort key."""

    key: Key
    offer: Offer


def rank(offer: Offer, *, preferences: Sequence[int], market: int, cloud: int, region: int, zone: int) -> Ranked:
    """Return the offer with its sort key: by accelerators, market, price, cloud, places, and names of machine types.

    All numbers are indices in the user's lists; `preferences` has one per role, in rank order. Offers are compared
    first by the worst preference of any role, so that no role gets its third choice while every role can have its
    second; then by the preferences of the roles in rank order.
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
