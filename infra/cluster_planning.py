"""Plan a cluster from cluster.yaml: the best offer in a region with an infra stack."""

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
    """Planned machines of a cluster, and the infra stack to use."""

    fleet: FleetSpec
    infrastructure: Infrastructure
    offer: Offer
    best: Offer
    """The best offer in any region, with or without an infra stack."""
    price: Decimal | None
    """US dollars per hour of one machine including its disk; None: unknown."""
    on_demand_price: Decimal | None
    """US dollars per hour of one on-demand machine in a spot fleet; None: unknown, or the fleet has none."""


def plan_cluster(
    loaded: LoadedCluster, before: FleetSpec | None, stacks: Iterable[Infrastructure], today: datetime.date
) -> ClusterPlan:
    """Return a plan for the best offer. A running cluster keeps its region, and if possible its machines (`before`).

    Raises NoOfferError if no offer exists. Raises RefusedError if no region with an offer has an infra stack, or if
    the cluster's file no longer allows the cluster's region.
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
        fleet = _keep_settings(fleet, before)
    return ClusterPlan(fleet, stands, offer, found.best, _each(offer), _on_demand_price(loaded, offer, today))


def _on_demand_price(loaded: LoadedCluster, offer: Offer, today: datetime.date) -> Decimal | None:
    """Return the value of ClusterPlan.on_demand_price for an offer."""
    if not loaded.cluster.on_demand:
        return None
    (role,) = offer.roles
    here = {"region": (offer.region,), "machine_type": role.machine_type, "market": ("on-demand",)}
    resources = loaded.job.resources.model_copy(update=here)
    limits = loaded.job.limits.model_copy(update={"price": None})  # the price limit covers all machines of both markets
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
            f"no infra stack exists in a region with an offer for this cluster; the best offer: {first.label}",
            f"cloudgpu infra up --cloud {first.cloud} --region {first.region}",
        )
    return able[0]


def _is_as_before(offer: Offer, before: FleetSpec) -> bool:
    (role,) = offer.roles
    now = (offer.cloud, offer.region, offer.market, role.machine_type, role.accelerator, str(role.count))
    was = (before.cloud, before.region, before.market, before.machine_type, before.accelerator, before.gpus)
    return now == was


def _keep_settings(fleet: FleetSpec, before: FleetSpec) -> FleetSpec:
    """Return the fleet with the settings that machines of the same kind keep: `peers`, even if only one machine is
    left, and the zones of their reservation if the file still allows these."""
    if not are_alike(fleet, before):
        return fleet
    stays = fleet.market == "reservation" and (not fleet.zones or set(before.zones) <= set(fleet.zones))
    zones = before.zones if stays else fleet.zones
    return fleet.model_copy(update={"peers": fleet.peers or before.peers, "zones": zones})


def _zones(plan: Plan, offer: Offer, stands: Infrastructure) -> list[str]:
    """Return the zones with the same machine type and market, at any price, for which the stack has a subnet."""
    alike = [
        one.zone
        for one in plan.offers
        if one.zone
        and (one.cloud, one.region, one.market) == (offer.cloud, offer.region, offer.market)
        and [role.machine_type for role in one.roles] == [role.machine_type for role in offer.roles]
    ]
    zones = list(dict.fromkeys(alike))
    return [zone for zone in zones if "" in stands.subnets or zone in stands.subnets]
