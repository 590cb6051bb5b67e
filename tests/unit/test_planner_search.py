"""The search for several roles' best ways finds what trying every combination finds, in bounded time."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import LocalGpu, LocalMachine, Offer, Plan
from cloudgpu.jobspecs.planner.local import MAX_WAYS
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.jobspecs.planner.ranking import UNKNOWN, price_key
from cloudgpu.jobspecs.planner.search import Choice, best_ways
from cloudgpu.jobspecs.rules.machines import carriers, is_attached, is_sensible
from cloudgpu.jobspecs.rules.places import zone_regions
from cloudgpu.tests.standins.long_mode import LONG

TODAY = datetime.date(2026, 11, 20)
SPECS = 1_000 if LONG else 100
ROLES = ("chief", "worker", "parameter_server", "evaluator")


def planned(machine: LocalMachine | None = None, **fields: Any) -> Plan:
    return plan(JobSpec.model_validate({"name": "j", "run": "true", **fields}), machine=machine, today=TODAY)


# --- the search itself ------------------------------------------------------------------------------------------------


def test_the_first_ways_are_those_of_trying_every_combination() -> None:
    rng = random.Random(19)
    for _ in range(1_000):
        roles = [
            [
                Choice(rng.randrange(6), price_key(rng.choice([None, *map(Decimal, range(1, 9))])), f"{role}.{item}")
                for item in range(rng.randrange(7))
            ]
            for role in range(rng.randint(1, 4))
        ]
        most = rng.choice([None, Decimal(rng.randint(1, 20))])
        found = best_ways(roles, 5, most)
        keys = {choice.item: choice for role in roles for choice in role}
        assert [order(tuple(keys[item] for item in way)) for way in found] == sorted(
            order(way) for way in product(*roles) if most is None or is_within(way, most)
        )[:5]
        assert len(set(found)) == len(found)


def order(way: tuple[Choice[str], ...]) -> tuple[object, ...]:
    preferences = tuple(choice.preference for choice in way)
    doubt = max(choice.price[0] for choice in way)
    return max(preferences), preferences, doubt, 0 if doubt == UNKNOWN else sum(choice.price[1] for choice in way)


def is_within(way: tuple[Choice[str], ...], most: Decimal) -> bool:
    return all(choice.price[0] == 0 for choice in way) and sum(choice.price[1] for choice in way) <= most


def test_a_way_that_only_one_combination_of_ten_billion_allows_is_found() -> None:
    """32 preferences of each of four roles: all but the last of one role and the first of the others are too dear."""
    prices = [Decimal(1), *[Decimal(40)] * 31], [*[Decimal(40)] * 31, Decimal(1)]
    roles = [[Choice(n, price_key(price), n) for n, price in enumerate(prices[role == 2])] for role in range(4)]
    assert best_ways(roles, 16, Decimal(4)) == [(0, 0, 31, 0)]
    assert best_ways(roles, 16, Decimal("3.99")) == []


# --- plans ------------------------------------------------------------------------------------------------------------


def test_the_preferred_way_within_the_cap_is_offered_in_every_zone() -> None:
    wanted = {"accelerator": ["A100:8", "A100:4", "L4:1", "T4:1"]}
    found = planned(
        resources={"cloud": "gcp", "region": "us-central1"},
        roles=dict.fromkeys(ROLES, wanted),
        limits={"price": "4 USD/h"},
    )
    best = [offer for offer in found.offers if {role.accelerator for role in offer.roles} == {"L4"}]
    assert found.offers[: len(best)] == tuple(best)
    assert {offer.zone for offer in best} == set(catalog.places("gcp", "g2-standard-4", "L4")["us-central1"])


def test_a_limit_on_cost_has_the_best_ways_of_known_price() -> None:
    """Sixteen ways and more are preferred, whose price is unknown: `submit` leaves those out."""
    unknown = [f"RTX-PRO-6000-BSE:{count}" for count in (1, 2, 4, 8)]
    roles = {role: {"accelerator": [*unknown, "L4:4", "L4:1"]} for role in ROLES[:3]}
    both = set(catalog.places("aws", "g6.xlarge", "L4")["eu-central-1"])
    both &= set(catalog.places("aws", "g7e.2xlarge", "RTX-PRO-6000-BSE")["eu-central-1"])
    resources = {"cloud": "aws", "zone": sorted(both)[:1]}
    for limits, price_is_known in (({}, False), ({"cost": "100 USD"}, True)):
        found = planned(resources=resources, roles=roles, limits=limits)
        known = [offer for offer in found.offers if {role.accelerator for role in offer.roles} == {"L4"}]
        assert any(role.count == 4 for offer in known for role in offer.roles) is price_is_known
        assert found.offers[0].price is None


NAMES = {
    "gcp": ("T4:1", "T4:2", "T4:4", "V100:1", "V100:2", "L4:1", "L4:2", "L4:4", "A100:1", "A100:4", "A100-80GB:1"),
    "aws": ("T4:1", "T4:4", "L4:1", "L4:4", "L40S:1", "L40S:4", "A10G:1", "A10G:4", "A100:8", "H100:8"),
}
REGIONS = {"gcp": ("us-central1", "us-east4", "europe-west4"), "aws": ("us-east-1", "us-west-2", "eu-central-1")}


def specs(number: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(2)
    for _ in range(number):
        cloud = rng.choice(list(NAMES))
        roles = {
            name: {
                "accelerator": rng.sample(NAMES[cloud], rng.randint(3, 7 - count)),
                "nodes": 1 if name == "chief" else rng.randint(1, 3),
            }
            for count in [rng.randint(2, 4)]
            for name in ROLES[:count]
        }
        market = rng.sample(["on-demand", "spot"], rng.randint(1, 2))
        limits = {"price": f"{rng.choice([1, 2, 4, 8, 16, 60])} USD/h"} if rng.random() < 0.8 else {}
        resources = {"cloud": cloud, "region": rng.choice(REGIONS[cloud]), "market": market}
        yield {"resources": resources, "roles": roles, "limits": limits}


def test_the_first_offer_is_the_best_of_all_combinations() -> None:
    """On random jobs with roles, most of them with a cap; a thousand with CLOUDGPU_LONG=1."""
    offered = 0
    for fields in specs(SPECS):
        found = planned(**fields)
        assert [key_of(offer, fields) for offer in found.offers[:1]] == best_of_all(fields), fields
        offered += bool(found.offers)
        assert found.offers or found.refusals
    assert offered > SPECS / 2


def key_of(offer: Offer, fields: dict[str, Any]) -> tuple[object, ...]:
    names = [f"{role.accelerator}:{role.count}" for role in offer.roles]
    lists = [[canonical(name) for name in fields["roles"][role.role]["accelerator"]] for role in offer.roles]
    preferences = tuple(role.index(name) for role, name in zip(lists, names, strict=True))
    market = fields["resources"]["market"].index(offer.market)
    return max(preferences), preferences, market, offer.price is None, offer.price or 0


def canonical(text: str) -> str:
    name, _, count = text.partition(":")
    found = catalog.find_accelerator(name)
    assert found is not None
    return f"{found.name}:{count}"


def best_of_all(fields: dict[str, Any]) -> list[tuple[object, ...]]:
    """The key of the best of all combinations in all zones, if there is one."""
    cloud, region = fields["resources"]["cloud"], fields["resources"]["region"]
    roles = list(fields["roles"].values())
    cap = Decimal(fields["limits"]["price"].split()[0]) if fields["limits"] else None
    disk = catalog.disk_price(cloud, region)
    assert disk is not None
    disks = (disk.amount * 100 * sum(role["nodes"] for role in roles)).quantize(Decimal("0.000001"))
    zones = [zone for zone, home in zone_regions(cloud).items() if home == region]
    markets = fields["resources"]["market"]
    choices = {
        (
            order,
            tuple(
                tuple(
                    (preference, *price)
                    for preference, name in enumerate(role["accelerator"])
                    for price in cheapest(cloud, canonical(name), (region, zone), market, role["nodes"])
                )
                for role in roles
            ),
        )
        for zone in zones
        for order, market in enumerate(markets)
    }
    every = (
        (max(preferences), preferences, order, None in prices, disks + sum(prices) if None not in prices else 0)
        for order, lists in choices
        for way in product(*lists)
        for preferences, prices in [zip(*way, strict=True)]
    )
    best = min((key for key in every if cap is None or (not key[3] and key[4] <= cap)), default=None)
    return [] if best is None else [best]


def cheapest(cloud: str, name: str, place: tuple[str, str], market: str, nodes: int) -> list[tuple[Decimal | None]]:
    """What the cheapest machine with these GPUs costs there, for all nodes; [(None,)]: unknown; []: none is there."""
    region, zone = place
    accelerator, _, text = name.partition(":")
    count = Fraction(text)
    prices: list[Decimal | None] = []
    for machine in carriers(cloud, accelerator):
        zones = catalog.places(cloud, machine.name, accelerator).get(region, ())
        if count not in machine.counts or market not in machine.markets or zone not in zones:
            continue
        if machine.is_retired_on(TODAY.isoformat()) or (
            is_attached(cloud, machine.name) and not is_sensible(machine, count)
        ):
            continue
        price = catalog.price(cloud, machine.name, accelerator, count, region, market)
        price = price or catalog.price(cloud, machine.name, accelerator, count, region, "on-demand")  # Spot's most
        prices.append(None if price is None else (price.amount * nodes).quantize(Decimal("0.000001")))
    known = [price for price in prices if price is not None]
    return [(min(known, default=None),)] if prices else []


# --- this machine -----------------------------------------------------------------------------------------------------


def test_the_preferred_shares_of_this_machine_are_found() -> None:
    """Eight GPUs for four roles that prefer more each: the first thousands of combinations are too large."""
    gpus = tuple(LocalGpu(f"GPU-{n}", "NVIDIA L4", 24.1) for n in range(8))
    falling = {"accelerator": [f"L4:{count}" for count in range(8, 0, -1)]}
    found = planned(LocalMachine(8, 32.0, gpus), resources={"cloud": "local"}, roles=dict.fromkeys(ROLES, falling))
    assert [[int(role.count) for role in offer.roles] for offer in found.offers[:2]] == [[2, 2, 2, 2], [5, 1, 1, 1]]
    assert len(found.offers) <= MAX_WAYS
    too_many = {role: {"accelerator": [f"L4:{count}" for count in range(8, 2, -1)]} for role in ROLES}
    assert not planned(LocalMachine(8, 32.0, gpus), resources={"cloud": "local"}, roles=too_many).offers


def test_this_machines_ways_are_those_of_trying_every_combination() -> None:
    rng = random.Random(5)
    kinds = {"L4": LocalGpu("GPU-1", "NVIDIA L4", 24.1), "A100-80GB": LocalGpu("GPU-2", "NVIDIA A100-SXM4-80GB", 85.0)}
    for _ in range(200):
        have = {name: rng.randint(1, 6) for name in kinds}
        machine = LocalMachine(8, 32.0, tuple(kinds[name] for name in kinds for _ in range(have[name])))
        roles = {
            name: {"accelerator": rng.sample([f"{kind}:{count}" for kind in kinds for count in (1, 2, 3, 4)], 4)}
            for name in ROLES[: rng.randint(1, 4)]
        }
        wanted = [
            (max(way), way)
            for way in product(range(4), repeat=len(roles))
            if all(used(roles, way, kind) <= count for kind, count in have.items())
        ]
        found = planned(machine, resources={"cloud": "local"}, roles=roles).offers
        keys = [key_of(offer, {"roles": roles, "resources": {"market": ["on-demand"]}})[:2] for offer in found]
        assert keys == sorted(wanted)[:MAX_WAYS]


def used(roles: dict[str, Any], way: tuple[int, ...], kind: str) -> int:
    names = [role["accelerator"][preference] for role, preference in zip(roles.values(), way, strict=True)]
    return sum(int(name.partition(":")[2]) for name in names if name.startswith(f"{kind}:"))
