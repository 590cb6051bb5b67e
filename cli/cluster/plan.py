"""From cluster.yaml to the machines of a cluster: the best offer where an infra stack stands."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import click

from ..exits import Exit
from ..infra.stack_run import readable
from ..shared.errors import CommandError
from ..shared.output import echo_json, remark
from ..shared.plan_view import offer_text, refusals_text
from ..shared.specfile import say_tables

if TYPE_CHECKING:
    from ...jobspecs.fleets import FleetSpec
    from ...jobspecs.loading.cluster_file import LoadedCluster
    from ...jobspecs.plan import Offer, Plan
    from ...provisioners.shared.infrastructure import Infrastructure


class Chosen(NamedTuple):
    """The machines, and where they stand."""

    fleet: FleetSpec
    infrastructure: Infrastructure
    price: Decimal | None
    """US dollars per hour of one machine with its disk; None: unknown."""
    on_demand_price: Decimal | None
    """Of one that is bought on demand in a fleet of market spot; None: unknown, or there is none."""


def choose(loaded: LoadedCluster, before: FleetSpec | None, *, as_json: bool) -> Chosen:
    """The best offer, but where the cluster stands already, as long as its file allows it. `as_json`: a plan that
    refuses everything is the command's result.

    Raises CommandError where nothing can be had, or no infra stack stands.
    """
    from ...jobspecs.fleets import fleet_of
    from ...jobspecs.planner.planner import plan
    from ...jobspecs.targets import FLEET_CLOUDS

    today = datetime.datetime.now(datetime.UTC).date()
    clouds = loaded.cluster.resources.cloud or FLEET_CLOUDS
    found = plan(loaded.job, machine=None, today=today, clouds=clouds)
    say_tables()
    if found.best is None:
        if as_json:
            echo_json({"cluster": loaded.cluster.name, **found.to_json()})
        click.echo(refusals_text(found), err=True)
        raise CommandError("nothing can be this cluster", exit_code=Exit.IMPOSSIBLE)
    infrastructure = _stacks()
    offer = _best(found, infrastructure, before)
    if offer != found.best:
        remark(f"the best offer is elsewhere: {offer_text(found.best)}")
    if offer.price_at_most:
        remark(f"note: {offer_text(offer)}: Spot's own price is unknown, the one on demand counts")
    stands = infrastructure[offer.cloud, offer.region]
    fleet = fleet_of(loaded.cluster, offer, _zones(found, offer, stands))
    if before is not None:
        fleet = _going_on(fleet, before)
    return Chosen(fleet, stands, _each(offer), _on_demand_price(loaded, offer, today))


def _stacks() -> dict[tuple[str, str], Infrastructure]:
    from ...provisioners.shared import infrastructure

    with readable():
        return {(one.cloud, one.region): one for one in infrastructure.known()}


def _on_demand_price(loaded: LoadedCluster, offer: Offer, today: datetime.date) -> Decimal | None:
    """As Chosen.on_demand_price, of the machines of this offer."""
    from ...jobspecs.planner.planner import plan

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


def _best(plan: Plan, infrastructure: dict[tuple[str, str], Infrastructure], before: FleetSpec | None) -> Offer:
    able = [offer for offer in plan.offers if (offer.cloud, offer.region) in infrastructure]
    if before is not None:
        same = [offer for offer in able if _is_as_before(offer, before)]
        able = same or [offer for offer in able if (offer.cloud, offer.region) == (before.cloud, before.region)]
        if not able:
            place = f"{before.cloud} {before.region}"
            message = f"the cluster {before.name} is in {place}, and its file does not allow that any more"
            raise CommandError(message, hint=f"`cloudgpu cluster down {before.name}` first", exit_code=Exit.IMPOSSIBLE)
    if not able:
        first = plan.offers[0]
        raise CommandError(
            f"no infra stack stands where this cluster could be; the best offer: {offer_text(first)}",
            hint=f"cloudgpu infra up --cloud {first.cloud} --region {first.region}",
            exit_code=Exit.IMPOSSIBLE,
        )
    return able[0]


def _is_as_before(offer: Offer, before: FleetSpec) -> bool:
    (role,) = offer.roles
    now = (offer.cloud, offer.region, offer.market, role.machine_type, role.accelerator, str(role.count))
    was = (before.cloud, before.region, before.market, before.machine_type, before.accelerator, before.gpus)
    return now == was


def _going_on(fleet: FleetSpec, before: FleetSpec) -> FleetSpec:
    """With what of the same machines is settled: once they may reach each other they may, however few they are then;
    and they stay where their reservation is, as long as the file allows it."""
    from .machines import are_alike

    if not are_alike(fleet, before):
        return fleet
    stays = fleet.market == "reservation" and (not fleet.zones or set(before.zones) <= set(fleet.zones))
    zones = before.zones if stays else fleet.zones
    return fleet.model_copy(update={"peers": fleet.peers or before.peers, "zones": zones})


def _zones(plan: Plan, offer: Offer, stands: Infrastructure) -> list[str]:
    """Those where the same is offered at whatever price, and where the stack has a subnet, if it has one for each."""
    alike = [
        one.zone
        for one in plan.offers
        if one.zone
        and (one.cloud, one.region, one.market) == (offer.cloud, offer.region, offer.market)
        and [role.machine_type for role in one.roles] == [role.machine_type for role in offer.roles]
    ]
    zones = list(dict.fromkeys(alike))
    return [zone for zone in zones if "" in stands.subnets or zone in stands.subnets]
