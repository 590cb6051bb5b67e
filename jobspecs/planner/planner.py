"""Plan a job: find all ways to run it, in order of preference, then price, and the reasons why other ways are refused.

The planner is pure: it uses no network, clock or SDK. Facts come from the tables (jobspecs.catalog), restrictions from
the rules (jobspecs.rules); docs/explanation/planning.md describes the decisions for users.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal

from .. import catalog
from ..catalog.prices import PRICED_MARKETS
from ..models import CLOUDS, JobSpec
from ..plan import LocalMachine, Offer, Plan, Refusal
from ..rules.base import refresh_command
from ..rules.compatibility import target_refusals
from ..targets import info, is_name, names
from .clouds import CloudPlanner
from .local import plan_local
from .outside import plan_outside
from .ranking import Ranked

_CAP = ("limits", "price")
_CENT = Decimal("0.01")


def plan(
    spec: JobSpec, *, machine: LocalMachine | None, today: datetime.date, clouds: Sequence[str] | None = None
) -> Plan:
    """Return all offers and refusals for a job.

    machine  hardware of this machine, for the target `local`; None if it was not inspected
    today    date that decides which hardware is retired, and which prices are old
    clouds   targets to consider; default: those in the job, else all built-in ones

    Raises ValueError for an unknown cloud.
    """
    day = today.isoformat()
    ranked: list[Ranked] = []
    refusals: list[Refusal] = []
    asked = list(dict.fromkeys(clouds or spec.resources.cloud or CLOUDS))
    unknown = [cloud for cloud in asked if not is_name(cloud)]
    if unknown:
        raise ValueError(f"no such cloud: {', '.join(unknown)}; expected some of {', '.join(names())}")
    for order, cloud in enumerate(asked):
        unable = list(target_refusals(spec, cloud))
        refusals += unable
        if unable:
            continue
        target = info(cloud)
        if target.has_tables:
            found, refused = CloudPlanner(spec, cloud, order, day).plan()
        elif target.is_here:
            found, refused = plan_local(spec, cloud, order, machine)
        else:
            found, refused = plan_outside(spec, target, order, today)
        ranked += found
        refusals += refused
    ranked, capped = _cap(ranked, spec.limits.price)
    ranked.sort(key=lambda one: one.key)
    return Plan(tuple(one.offer for one in ranked), grouped([*capped, *refusals]))


def _cap(ranked: list[Ranked], cap: Decimal | None) -> tuple[list[Ranked], list[Refusal]]:
    """Return the offers with a known price within the cap (USD per hour), and refusals of the others."""
    if cap is None:
        return ranked, []
    within = [one for one in ranked if one.offer.price is not None and one.offer.price <= cap]
    # For a way that is offered in several places, there is one refusal, which names the cheapest place.
    beyond: dict[str, list[Offer]] = {}
    for one in ranked:
        if one.offer.price is None or one.offer.price > cap:
            beyond.setdefault(subject(one.offer), []).append(one.offer)
    return within, [_above(name, offers, cap) for name, offers in beyond.items()]


def _above(name: str, offers: list[Offer], cap: Decimal) -> Refusal:
    regions = len({offer.region for offer in offers})
    known = [(offer.price, offer.region, offer.price_at_most) for offer in offers if offer.price is not None]
    if not known:
        return _unknown(name, offers, cap)
    price, region, at_most = min(known)
    where = f"in {region}, the cheapest of {regions} regions," if regions > 1 else f"in {region}"
    allowed = f"limits.price: {price.quantize(_CENT, rounding=ROUND_CEILING)} USD/h"
    message = f"the whole job {where} is above limits.price of {cap} USD/h"
    if at_most:
        message = f"the whole job {where} may cost more than limits.price of {cap} USD/h: its Spot price is unknown"
        allowed = f"{allowed}, the price on demand; or {refresh_command(offers[0].cloud)}"
    return Refusal("price-cap", offers[0].cloud, name, message, allowed, None if at_most else price, _CAP)


def _unknown(name: str, offers: Sequence[Offer], cap: Decimal) -> Refusal:
    """Return the refusal of a way whose price is unknown in all places."""
    cloud, market = offers[0].cloud, offers[0].market
    least = min((offer.price_from for offer in offers if offer.price_from is not None), default=None)
    price = "its price is unknown" if least is None else f"its price is unknown, from {least:.4f} USD/h"
    message = f"{price}: it cannot be held to limits.price of {cap} USD/h"
    can_be_asked = market in PRICED_MARKETS and catalog.host_cloud(cloud) == cloud
    ways = [refresh_command(cloud)] if can_be_asked else []
    return Refusal("price-cap", cloud, name, message, "; or ".join([*ways, "leave out limits.price"]), key=_CAP)


def subject(offer: Offer) -> str:
    """Return the description of an offer without its place: `gcp 2 × g2-standard-4 + L4:1, spot`."""
    parts = []
    for role in offer.roles:
        several = f"{role.nodes} × " if role.nodes > 1 else ""
        gpus = f" + {role.accelerator}:{role.count}" if role.accelerator else ""
        parts.append(f"{several}{role.machine_type}{gpus}")
    return f"{offer.cloud} {', '.join(parts)}, {offer.market}"


def grouped(refusals: Sequence[Refusal]) -> tuple[Refusal, ...]:
    """Return the refusals without duplicates, which may differ only in their key; their order is kept."""
    return tuple({refusal._replace(key=()): refusal for refusal in reversed(refusals)}.values())[::-1]
