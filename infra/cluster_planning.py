"""From cluster.yaml to the machines of a cluster: the best offer where an infra stack stands."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from ..jobspecs.fleets import fleet_of
from ..jobspecs.planner.planner import plan
from ..jobspecs.targets import FLEET_CLOUDS
from .cluster_machines import are_alike
from .errors import NoOfferError, RefusedError

if TYPE_CHECKING:
    from ..jobspecs.fleets import FleetSpec
    from ..jobspecs.loading.cluster_file import LoadedCluster
    from ..jobspecs.plan import Offer, Plan
    from ..provisioners.shared.infra_outputs import Infrastructure


class ClusterPlan(NamedTuple):
    """The machines of a cluster, and the infra stack that they stand in."""

    fleet: FleetSpec
    infrastructure: Infrastructure
    offer: Offer
    best: Offer
    """The best offer, whether or not an infra stack stands there."""
    price: Decimal | None
    """US dollars per hour of one machine with its disk; None: unknown."""
    on_demand_price: Decimal | None
    """Of one that is bought on demand in a fleet of market spot; None: unknown, or there is none."""


def plan_cluster(
    loaded: LoadedCluster, before: FleetSpec | None, stacks: Iterable[Infrastructure], today: datetime.date
) -> ClusterPlan:
    """Return the best offer; for a cluster that is up, one where it stands, as long as its file allows that.

    Raises NoOfferError if no machines can be had, RefusedError if no infra stack stands where they could be.
    """
    clouds = loaded.cluster.resources.cloud or FLEET_CLOUDS
    found = plan(loaded.job, machine=None, today=today, clouds=clouds)
    if found.best is None:
        raise NoOfferError(found)
    infrastructure = {(one.cloud, one.region): one for one in stacks}
    offer = _best(found, infrastructure, before)
    stands = infrastructure[offer.cloud, offer.region]
    fleet = fleet_of(loaded.cluster, offer, _zones(found, offer, stands))
    if before is not None:
        fleet = _going_on(fleet, before)
    return ClusterPlan(fleet, stands, offer, found.best, _each(offer), _on_demand_price(loaded, offer, today))


def _on_demand_price(loaded: LoadedCluster, offer: Offer, today: datetime.date) -> Decimal | None:
    """Return ClusterPlan.on_demand_price for the machines of an offer."""
    if not loaded.cluster.on_demand:
        return None
    (role,) = offer.roles
    here = {"region": (offer.region,), "machine_type": role.machine_type, "market": ("on-demand",)}
    resources = loaded.job.resources.model_copy(update=here)
    limits = loaded.job.limits.model_copy(update={"price": None})  # it is all machines' of both markets
    job = loaded.job.model_copy(update={"resources": resources, "limits": limits})
    found = plan(job, machine=None, today=today, clouds=(offer.cloud,))
    return next((_each(one) for one in found.offers if _kind(one) == _kind(offer)), None)


def _each(offer: Offer) -> Decimal | None:
    return None if offer.price is None else offer.price / offer.nodes


def _kind(offer: Offer) -> tuple[str, str | None, Fraction]:
    (role,) = offer.roles
    return role.machine_type, role.accelerator, role.count


def _best(plan: Plan, infrastructure: Mapping[tuple[str, str], Infrastructure], before: FleetSpec | None) -> Offer:
    able = [offer for offer in plan.offers if (offer.cloud, offer.region) in infrastructure]
    if before is not None:
        same = [offer for offer in able if _is_as_before(offer, before)]
        able = same or [offer for offer in able if (offer.cloud, offer.region) == (before.cloud, before.region)]
        if not able:
            place = f"{before.cloud} {before.region}"
            message = f"the cluster {before.name} is in {place}, and its file does not allow that any more"
            raise RefusedError(message, f"`cloudgpu cluster down {before.name}` first")
    if not able:
        first = plan.offers[0]
        raise RefusedError(
            f"no infra stack stands where this cluster could be; the best offer: {first.label}",
            f"cloudgpu infra up --cloud {first.cloud} --region {first.region}",
        )
    return able[0]


def _is_as_before(offer: Offer, before: FleetSpec) -> bool:
    (role,) = offer.roles
    now = (offer.cloud, offer.region, offer.market, role.machine_type, role.accelerator, str(role.count))
    was = (before.cloud, before.region, before.market, before.machine_type, before.accelerator, before.gpus)
    return now == was


def _going_on(fleet: FleetSpec, before: FleetSpec) -> FleetSpec:
    """Keep what is settled of the same machines: those that may reach each other still may, however few they are now;
    and they stay where their reservation is, as long as the file allows it."""
    if not are_alike(fleet, before):
        return fleet
    stays = fleet.market == "reservation" and (not fleet.zones or set(before.zones) <= set(fleet.zones))
    zones = before.zones if stays else fleet.zones
    return fleet.model_copy(update={"peers": fleet.peers or before.peers, "zones": zones})


def _zones(plan: Plan, offer: Offer, stands: Infrastructure) -> list[str]:
    """Return the zones in which the same is offered at any price, and in which the stack has a subnet, if it has one
    for each."""
    alike = [
        one.zone
        for one in plan.offers
        if one.zone
        and (one.cloud, one.region, one.market) == (offer.cloud, offer.region, offer.market)
        and [role.machine_type for role in one.roles] == [role.machine_type for role in offer.roles]
    ]
    zones = list(dict.fromkeys(alike))
    return [zone for zone in zones if "" in stands.subnets or zone in stands.subnets]
