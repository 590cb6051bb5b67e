"""Compute the settings that a cluster file asks for, with remarks on the choice of machines."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING

import click

from ...infra.cluster_machines import ending_with_reservation, is_reserved_elsewhere, settings_for
from ...infra.cluster_planning import ClusterPlan, plan_cluster
from ...infra.errors import NoOfferError
from ...infra.programs import Terms
from ...provisioners.shared import infra_outputs as stacks
from ..infra.stack_run import readable_records
from ..shared.jobfile.job_file_options import say_tables
from ..shared.jobfile.plan_view import offer_text, refusals_text
from ..shared.output import echo_json, remark, warning
from .expiry import moment, next_expiry

if TYPE_CHECKING:
    from decimal import Decimal

    from ...infra.settings import FleetSettings
    from ...jobspecs.fleets import FleetSpec
    from ...jobspecs.loading.cluster_file import LoadedCluster
    from ...provisioners.shared.infra_outputs import Infrastructure


def wanted_settings(
    loaded: LoadedCluster, before: FleetSettings | None, stack: str, *, renew: bool, as_json: bool
) -> tuple[FleetSettings, Terms]:
    """Return the settings and terms for the file. Image and agent are kept while the template is unchanged, unless
    `renew`."""
    chosen = _plan(loaded, before.fleet if before else None, as_json=as_json)
    cap = loaded.cluster.limits.price
    terms = Terms(_text(chosen.price), _text(cap), loaded.cluster.on_demand, _text(chosen.on_demand_price))
    expires = next_expiry(loaded.cluster.expires, before.expires if before else None)
    return fleet_settings(stack, chosen.fleet, chosen.infrastructure, before, expires=expires, renew=renew), terms


def _plan(loaded: LoadedCluster, before: FleetSpec | None, *, as_json: bool) -> ClusterPlan:
    """Return the best machines and print remarks on the choice. Raises InfraError; for a plan without offers, its
    refusals are printed first (with `as_json` also as JSON)."""
    with readable_records():
        known = stacks.load_all()
    say_tables()
    try:
        chosen = plan_cluster(loaded, before, known, datetime.datetime.now(datetime.UTC).date())
    except NoOfferError as error:
        if as_json:
            echo_json({"cluster": loaded.cluster.name, **error.plan.to_json()})
        click.echo(refusals_text(error.plan), err=True)
        raise
    if chosen.offer != chosen.best:
        remark(f"the best offer is elsewhere: {offer_text(chosen.best)}")
    if chosen.offer.price_at_most:
        remark(f"note: {offer_text(chosen.offer)}: Spot's own price is unknown, the one on demand counts")
    return chosen


def fleet_settings(
    stack: str,
    fleet: FleetSpec,
    infrastructure: Infrastructure,
    before: FleetSettings | None,
    *,
    expires: float | None,
    renew: bool = False,
) -> FleetSettings:
    """Return a fleet's settings; those of `before` are reused if the machines need not change. Raises InfraError,
    ProvisionError."""
    differs = before is None or before.fleet.template_hash != fleet.template_hash
    elsewhere = before is not None and is_reserved_elsewhere(fleet, before)
    if before is None or differs or renew or elsewhere:
        made = settings_for(stack, fleet, infrastructure, None if elsewhere else before)
    else:
        made = dataclasses.replace(before, fleet=fleet, infrastructure=infrastructure)
    made = dataclasses.replace(made, expires=expires)
    ending = ending_with_reservation(made)
    if ending.expires != made.expires and ending.expires is not None:
        until = moment(ending.expires)
        warning(f"the Capacity Block {made.reservation} ends its machines {until}: the cluster expires then")
    return ending


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
