"""Offers for a job with `recover: fleet`: only regions whose infra stack is known here can have its machine group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...jobspecs.plan import Plan, Refusal
from ...jobspecs.rules.base import listing
from ...jobspecs.secrets import is_reference
from ...jobspecs.targets import info
from ...provisioners.shared.infra_outputs import group_obstacle

if TYPE_CHECKING:
    from ...jobspecs.models import JobSpec

RULE = "infra-stack"


def with_groups(spec: JobSpec, plan: Plan) -> Plan:
    """Return the plan without the offers in regions where the job cannot have a group, which become refusals. Other
    jobs' plans are returned unchanged."""
    if spec.recover == "supervisor":
        return plan
    places = dict.fromkeys((offer.cloud, offer.region) for offer in plan.offers if info(offer.cloud).groups)
    secrets = sorted(filter(is_reference, spec.secrets.values()))
    found = {place: group_obstacle(*place, _folders(spec, place[0]), secrets) for place in places}
    able = tuple(offer for offer in plan.offers if found.get((offer.cloud, offer.region)) is None)
    alike: dict[tuple[str, str], list[str]] = {}
    for (cloud, region), why in found.items():
        if why is not None:
            alike.setdefault((cloud, why.message), []).append(region)
    refusals = []
    for (cloud, message), regions in alike.items():
        first = found[cloud, regions[0]]
        allowed = "" if first is None else first.allowed
        refusals.append(Refusal(RULE, cloud, f"{cloud} {listing(regions, 3)}", message, allowed))
    return Plan(able, (*refusals, *plan.refusals))


def _folders(spec: JobSpec, cloud: str) -> list[str]:
    """Return the URLs that the machines use, as far as the job file names them."""
    return [url for url in (spec.job_dir_on(cloud), *spec.inputs_on(cloud).values()) if url]
