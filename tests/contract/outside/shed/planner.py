"""Offers of the shed: four machines ("benches") without GPUs, free of charge."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction

from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Offer, Plan, Refusal, RoleOffer

BENCHES = 4


def plan(spec: JobSpec, _today: datetime.date) -> Plan:
    """Return the only offer, or the refusals. Every field of the job that is not honoured is refused."""
    roles = spec.effective_roles()
    nodes = sum(role.nodes for role in roles.values())
    refusals = []
    if any(role.accelerator for role in roles.values()):
        refusals.append(_refusal(spec, "no-gpus", "its benches have no GPUs", "leave out accelerator", "accelerator"))
    if nodes > BENCHES:
        message = f"it has {BENCHES} benches, the job wants {nodes}"
        refusals.append(_refusal(spec, "benches", message, f"nodes: {BENCHES}", "nodes"))
    asked = [key for key in ("region", "machine_type") if getattr(spec.resources, key) is not None]
    refusals += [_refusal(spec, "one-shed", f"it has no choice of {key}", f"leave out {key}", key) for key in asked]
    if refusals:
        return Plan((), tuple(refusals))
    offered = tuple(
        RoleOffer(name, role.nodes, "bench", None, Fraction(0), 1, None, Decimal(0)) for name, role in roles.items()
    )
    return Plan((Offer("shed", "garden", None, "on-demand", offered, 0.0, Decimal(0), Decimal(0), None),))


def _refusal(spec: JobSpec, rule: str, message: str, allowed: str, key: str) -> Refusal:
    return Refusal(rule, "shed", f"shed {spec.name}", message, allowed, key=("resources", key))
