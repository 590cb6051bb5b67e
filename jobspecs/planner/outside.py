"""Plan offers on targets of other packages, by calling the planner that the package brings."""

from __future__ import annotations

import datetime
import importlib

from .. import catalog
from ..models import JobSpec
from ..plan import Offer, Plan, Refusal
from ..rules.compatibility import Request, refusal_by
from ..targets import TargetInfo
from .ranking import Ranked, rank


def plan_outside(
    spec: JobSpec, target: TargetInfo, order: int, today: datetime.date
) -> tuple[list[Ranked], list[Refusal]]:
    """Return ranked offers and refusals from the target's planner. `order`: the target's index in the user's list."""
    markets: list[str] = list(spec.resources.market)
    asks = [Request(target.name, "", market=market) for market in markets]
    refusals = [refusal for ask in asks if (refusal := refusal_by("market-supported", ask))]
    if len(refusals) == len(markets):
        return [], refusals
    module, _, function = target.planner.partition(":")
    found: Plan = getattr(importlib.import_module(module), function)(spec, today)
    ranked = [
        rank(
            offer,
            preferences=_preferences(spec, offer),
            market=markets.index(offer.market),
            cloud=order,
            region=place,
            zone=0,
        )
        for place, offer in enumerate(found.offers)
        if offer.market in markets
    ]
    return ranked, [*refusals, *found.refusals]


def _preferences(spec: JobSpec, offer: Offer) -> list[int]:
    """Return, for each role, the index of the offer's accelerator in the role's list; 0 if it is not in the list."""
    asked = [role.accelerator for role in spec.effective_roles().values()]
    found = []
    for requests, role in zip(asked, offer.roles, strict=True):
        known = [catalog.find_accelerator(request.name or "") for request in requests]
        names = [one.name if one else request.name for one, request in zip(known, requests, strict=True)]
        found.append(names.index(role.accelerator) if role.accelerator in names else 0)
    return found
