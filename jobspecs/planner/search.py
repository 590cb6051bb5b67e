"""Search for the best ways to run several roles: in order of preference, within a price, without a full enumeration.

A way is one option for each role. The number of ways grows exponentially with the number of roles. Therefore a partial
way is extended only if it can be completed, which is decided exactly from the lowest price of each preference of the
remaining roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from heapq import nsmallest
from typing import Generic, NamedTuple, TypeVar

from .ranking import KNOWN, PriceKey

T = TypeVar("T")

CanEnd = Callable[[tuple[int, ...], int], bool]
"""Function (preferences of the first roles, worst) -> bool: True if the other roles can complete these to a way whose
worst preference is exactly `worst`."""


class Choice(NamedTuple, Generic[T]):
    """Option of a role, with its preference and price."""

    preference: int
    """Index in the role's `accelerator` list."""
    price: PriceKey
    """Price of all nodes of the role."""
    item: T


def in_order(roles: Sequence[Sequence[int]], can_end: CanEnd) -> Iterator[tuple[int, ...]]:
    """Yield combinations of one preference per role, in the order of offers: by the worst one, then role by role."""

    def extended(beginning: tuple[int, ...], worst: int) -> Iterator[tuple[int, ...]]:
        if not can_end(beginning, worst):
            return
        if len(beginning) == len(roles):
            yield beginning
            return
        for preference in ordered[len(beginning)]:
            if preference <= worst:
                yield from extended((*beginning, preference), worst)

    ordered = [sorted(set(role)) for role in roles]
    for worst in sorted({preference for role in roles for preference in role}):
        yield from extended((), worst)


def best_ways(roles: Sequence[Sequence[Choice[T]]], count: int, most: Decimal | None = None) -> list[tuple[T, ...]]:
    """Return the first `count` ways in the order of offers: by preferences, then by price.

    most  maximum price in US dollars per hour, which excludes unknown prices; None: no limit
    """
    allowed = [[one for one in role if most is None or one.price[0] == KNOWN] for role in roles]
    grouped = [_by_preference(role) for role in allowed]
    lowest = [
        {preference: min(one.price[1] for one in group) for preference, group in role.items()} for role in grouped
    ]
    ways: list[tuple[T, ...]] = []
    for preferences in in_order([list(role) for role in grouped], _within(lowest, most)):
        groups = [role[preference] for role, preference in zip(grouped, preferences, strict=True)]
        ways += _cheapest_first(groups, count - len(ways), most)
        if len(ways) == count:
            break
    return ways


def _by_preference(choices: Sequence[Choice[T]]) -> dict[int, list[Choice[T]]]:
    found: dict[int, list[Choice[T]]] = {}
    for choice in choices:
        found.setdefault(choice.preference, []).append(choice)
    return found


def _within(lowest: Sequence[Mapping[int, Decimal]], most: Decimal | None) -> CanEnd:
    """Return the predicate whether a partial way can be completed at a price of at most `most` (None: no limit).

    lowest  for each role, the lowest price of each preference
    """

    @cache
    def rest(role: int, worst: int, reached: bool) -> Decimal | None:
        """Return the lowest total price of the roles from number `role` on; None if `worst` cannot be reached.

        reached  True if an earlier role has the preference `worst`
        """
        if role == len(lowest):
            return Decimal(0) if reached else None
        sums = []
        for preference, price in lowest[role].items():
            if preference <= worst and (others := rest(role + 1, worst, reached or preference == worst)) is not None:
                sums.append(price + others)
        return min(sums, default=None)

    def can_end(beginning: tuple[int, ...], worst: int) -> bool:
        others = rest(len(beginning), worst, worst in beginning)
        if others is None or most is None:
            return others is not None
        return sum((role[p] for role, p in zip(lowest, beginning, strict=False)), others) <= most

    return can_end


def _cheapest_first(groups: Sequence[Sequence[Choice[T]]], count: int, most: Decimal | None) -> list[tuple[T, ...]]:
    """Return the `count` cheapest ways with one choice of each group, found by extending the cheapest partial ways."""
    sums: list[tuple[PriceKey, tuple[T, ...]]] = [((KNOWN, Decimal(0)), ())]
    for group in groups:
        longer = (
            ((max(doubt, one.price[0]), amount + one.price[1]), (*way, one.item))
            for (doubt, amount), way in sums
            for one in group
        )
        sums = nsmallest(count, longer, key=lambda found: found[0])
    return [way for (_, amount), way in sums if most is None or amount <= most]
