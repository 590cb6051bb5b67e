"""Completeness of plans: everything in the tables that cannot be offered is refused with a rule's name."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Plan
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.tests.standins.long_mode import LONG

TODAY = datetime.date(2026, 11, 20)
MARKETS = ("on-demand", "spot", "flex-start", "reservation")


def planned(cloud: str, **resources: Any) -> Plan:
    spec = JobSpec.model_validate({"name": "j", "run": "true", "resources": {"cloud": cloud, **resources}})
    return plan(spec, machine=None, today=TODAY)


def rules(cloud: str, **resources: Any) -> set[str]:
    found = planned(cloud, **resources)
    assert not found.offers
    return {refusal.rule for refusal in found.refusals}


def machine_rows(cloud: str) -> Iterator[dict[str, Any]]:
    """Yield the resources of a job that asks for each row of the table of machine types."""
    for group in catalog.machine_types(cloud).values():
        for machine in group:
            for count in machine.counts:
                yield {"machine_type": machine.name, "accelerator": f"{machine.accelerator}:{count}"}
            if machine.accelerator is None:
                yield {"machine_type": machine.name, "accelerator": "none"}


@pytest.mark.parametrize("cloud", catalog.CLOUDS)
def test_every_machine_type_is_offered_or_refused_on_every_market(cloud: str) -> None:
    silent = [
        (row, market)
        for row in machine_rows(cloud)
        for market in MARKETS
        if not any(planned(cloud, market=market, **row))
    ]
    assert silent == []


@pytest.mark.parametrize("cloud", catalog.CLOUDS)
def test_every_accelerator_is_offered_or_refused(cloud: str) -> None:
    for name in catalog.accelerators():
        for market in MARKETS:
            for count in ("1", "1/8..64"):
                found = planned(cloud, market=market, accelerator=f"{name}:{count}")
                assert found.offers or found.refusals, (name, count, market)


@pytest.mark.parametrize("cloud", catalog.CLOUDS)
def test_every_place_is_offered_or_refused(cloud: str) -> None:
    """Every accelerator in every region and zone of the cloud: 150 at random, or all with CLOUDGPU_LONG=1."""
    places = [("region", name) for name in sorted(catalog.regions(cloud))]
    places += [("zone", name) for name in sorted(catalog.zones(cloud))]
    names = {m.accelerator for group in catalog.machine_types(cloud).values() for m in group if m.accelerator}
    every = list(product(sorted(names), MARKETS, places))
    for name, market, (field, place) in every if LONG else random.Random(1).sample(every, 150):
        wanted = {"accelerator": f"{name}:1/8..16", "market": market, field: place}
        found = planned(cloud, **wanted)
        assert found.offers or found.refusals, wanted


@pytest.mark.parametrize(
    "wanted",
    [
        {"accelerator": "GB200:4"},
        {"accelerator": "GB300:4"},
        {"accelerator": "M60:1"},
        {"machine_type": "Standard_NC8ads_A10_v4"},
        {"accelerator": {"memory": "4GB..8GB"}},
    ],
)
def test_a_machine_of_which_no_place_is_known_says_so(wanted: dict[str, Any]) -> None:
    found = planned("azure", **wanted)
    assert not found.offers
    assert {refusal.rule for refusal in found.refusals} == {"place-known"}
    assert all("cloudgpu catalog refresh --cloud azure" in refusal.allowed for refusal in found.refusals)
    assert rules("azure", region="eastus", **wanted) == {"place-known"}
