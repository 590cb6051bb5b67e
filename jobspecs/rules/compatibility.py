"""Check requests by the compatibility rules, which refuse impossible ones and name an allowed alternative.

All rules of the planner are listed here: RULES check one role's request to one cloud, TARGET_RULES check whether a
target supports the job's fields, and JOB_RULES describe checks of the whole job, which the planner makes. A name that
exists nowhere is a mistake in the file (check_names(); `validate` exits with 3). An impossible combination is a refusal
by the planner, which exits with 4 if no offer is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import machines, places
from .base import Request, Rule, Verdict
from .names import check_names
from .targets import TARGET_RULES, TargetRule, target_refusals

if TYPE_CHECKING:
    from ..plan import Refusal

__all__ = [
    "JOB_RULES",
    "RULES",
    "TARGET_RULES",
    "Request",
    "Rule",
    "TargetRule",
    "Verdict",
    "all_refusals",
    "check_names",
    "first_refusal",
    "refusal_by",
    "target_refusals",
]

RULES = (
    Rule("accelerator-known", ("accelerator",), machines.accelerator_known),
    Rule("machine-type-known", ("machine_type",), machines.machine_type_known, "machine_type"),
    Rule("machine-type-retired", ("machine_type",), machines.machine_type_retired, "machine_type"),
    Rule("accelerator-offered", ("accelerator",), machines.accelerator_offered),
    Rule("accelerator-retired", ("accelerator",), machines.accelerator_retired),
    Rule("cpu-machines", (), machines.cpu_machines),
    Rule(
        "accelerator-on-machine-type",
        ("accelerator", "machine_type"),
        machines.accelerator_on_machine_type,
        "machine_type",
    ),
    Rule("vcpus-and-memory", ("accelerator", "gpus", "machine_type"), machines.vcpus_and_memory, "machine_type"),
    Rule("count-on-machine-type", ("accelerator", "gpus", "machine_type"), machines.count_on_machine_type),
    Rule("count-offered", ("accelerator", "gpus"), machines.count_offered),
    Rule("market-supported", ("market",), places.market_supported, "market"),
    Rule("market-sold", ("market",), places.market_sold, "market"),
    Rule("place-known", (), places.place_known),
    Rule("region-known", ("region",), places.region_known, "region"),
    Rule("zone-known", ("zone",), places.zone_known, "zone"),
    Rule("zone-in-region", ("region", "zone"), places.zone_in_region, "zone"),
    Rule("offered-in-region", ("region",), places.offered_in_region, "region"),
    Rule("offered-in-zone", ("zone",), places.offered_in_zone, "zone"),
)
"""Rules in the order of checking: the first one that a request breaks is reported. A request that breaks only a later
rule is closer to an offer."""

JOB_RULES = {
    "accelerator-memory": "some accelerator of the cloud has memory within the range asked for",
    "one-zone": "the machines of all roles are offered in one zone, for they work as one",
    "price-cap": "the price of the whole job is known and not above limits.price",
    "local-machine": "this machine was looked at, and has the GPUs",
}
"""Rules on the whole job: name -> condition that must hold."""


_BY_NAME = {rule.name: rule for rule in RULES}


def refusal_by(rule: str, ask: Request) -> Refusal | None:
    """Return the refusal by one rule, independent of the others; None if it allows the request."""
    return _BY_NAME[rule].refuse(ask)


def first_refusal(ask: Request) -> Refusal | None:
    """Return the refusal by the first rule that forbids the request; None if all rules allow it."""
    for rule in RULES:
        refusal = rule.refuse(ask)
        if refusal is not None:
            return refusal
    return None


def all_refusals(ask: Request) -> list[Refusal]:
    """Return the refusals by every rule that forbids the request."""
    return [refusal for rule in RULES if (refusal := rule.refuse(ask)) is not None]
