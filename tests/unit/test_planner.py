"""Plans: what is offered, in which order, at which price, and why other ways are refused."""

from __future__ import annotations

import csv
import datetime
import json
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.models import CLOUDS, JobSpec
from cloudgpu.jobspecs.plan import LocalGpu, LocalMachine, Offer, Plan, RoleOffer
from cloudgpu.jobspecs.planner.local import accelerator_of
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.jobspecs.planner.prices import Quote, total_price
from cloudgpu.jobspecs.rules.base import exactly
from cloudgpu.jobspecs.rules.compatibility import JOB_RULES, RULES, TARGET_RULES, Request, all_refusals

TODAY = datetime.date(2026, 11, 20)
TABLES = Path(catalog.__file__).parents[1] / "tables"
CPU_ONLY = LocalMachine(cpus=8, memory_gb=32.0)
A100 = LocalGpu("GPU-1", "NVIDIA A100-SXM4-80GB", 85.0)
L4 = LocalGpu("GPU-2", "NVIDIA L4", 24.1)


def job(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "run": "true", **fields})


def planned(
    resources: dict[str, Any] | None = None, machine: LocalMachine | None = CPU_ONLY, **fields: Any
) -> tuple[JobSpec, Plan]:
    spec = job(resources=resources or {}, **fields)
    return spec, plan(spec, machine=machine, today=TODAY)


def offers(resources: dict[str, Any] | None = None, **fields: Any) -> tuple[Offer, ...]:
    return planned(resources, **fields)[1].offers


def rules(resources: dict[str, Any] | None = None, **fields: Any) -> set[str]:
    return {refusal.rule for refusal in planned(resources, **fields)[1].refusals}


def only_role(offer: Offer) -> RoleOffer:
    (role,) = offer.roles
    return role


# --- machine types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "accelerator", "machine_type"),
    [
        ("gcp", "L4:1", "g2-standard-4"),
        ("gcp", "L4:2", "g2-standard-24"),
        ("gcp", "T4:1", "n1-standard-4"),
        ("gcp", "T4:4", "n1-standard-16"),
        ("gcp", "V100:8", "n1-standard-32"),
        ("gcp", "none", "n1-standard-4"),
        ("vertex", "T4:2", "n1-standard-8"),
        ("vertex", "none", "n1-standard-4"),
        ("aws", "L4:1", "g6.xlarge"),
        ("aws", "L4:1/8", "g6f.large"),
        ("azure", "T4:1", "Standard_NC4as_T4_v3"),
    ],
)
def test_the_cheapest_machine_that_is_enough(cloud: str, accelerator: str, machine_type: str) -> None:
    found = offers({"cloud": cloud, "accelerator": accelerator})
    assert {only_role(offer).machine_type for offer in found} == {machine_type}


def test_a_machine_type_named_is_taken() -> None:
    found = offers({"cloud": "gcp", "accelerator": "T4:1", "machine_type": "n1-highmem-2"})
    assert {only_role(offer).machine_type for offer in found} == {"n1-highmem-2"}


def test_a_machine_type_alone_comes_with_what_is_built_in() -> None:
    best = offers({"cloud": "gcp", "machine_type": "g2-standard-24"})[0]
    assert (only_role(best).accelerator, only_role(best).count) == ("L4", Fraction(2))
    assert "g2-standard-24 comes with L4:2" in best.notes


def test_one_offer_a_place_market_accelerator_and_count() -> None:
    found = offers({"cloud": ["gcp", "aws"], "accelerator": ["L4:1..4", "T4:1..4"], "market": ["spot", "on-demand"]})
    ways = [(o.cloud, o.region, o.zone, o.market, only_role(o).accelerator, only_role(o).count) for o in found]
    assert len(set(ways)) == len(ways)
    assert {count for *_, count in ways} == {1, 2, 4}


# --- fractions and memory ---------------------------------------------------------------------------------------------


def test_a_part_is_met_by_that_part_only() -> None:
    eighth = offers({"cloud": ["gcp", "aws"], "accelerator": ["RTX-PRO-6000-BSE:1/8", "L4:1/8"]})
    assert {only_role(offer).count for offer in eighth} == {Fraction(1, 8)}
    assert {only_role(offer).machine_type for offer in eighth} == {"g4-standard-6", "g6f.large"}


def test_a_whole_gpu_is_never_a_part() -> None:
    whole = offers({"accelerator": ["A10:1", "L4:1", "RTX-PRO-6000-BSE:1"]})
    assert {only_role(offer).count for offer in whole} == {1}


def test_a_range_spans_parts() -> None:
    found = offers({"cloud": "azure", "accelerator": "A10:1/6..1"})
    assert {only_role(offer).count for offer in found} == {Fraction(1, 6), Fraction(1, 3), Fraction(1, 2), Fraction(1)}


def test_memory_means_any_nvidia_gpu_of_that_size_on_x86() -> None:
    found = offers({"accelerator": {"memory": "24GB..80GB"}})
    names = {only_role(offer).accelerator or "" for offer in found}
    assert {"L4", "A10G", "A100-40GB", "A100-80GB"} <= names
    assert all(24 <= catalog.accelerators()[name].memory_gb <= 80 for name in names)
    assert {catalog.accelerators()[name].vendor for name in names} == {"NVIDIA"}
    assert "T4G" not in {only_role(o).accelerator for o in offers({"accelerator": {"memory": "16GB"}})}


def test_memory_of_a_part_is_its_part() -> None:
    found = offers({"cloud": "gcp", "accelerator": {"memory": "24GB", "count": "1/8..1"}})
    kinds = {(only_role(o).accelerator, only_role(o).count) for o in found}
    assert kinds == {("L4", Fraction(1)), ("RTX-PRO-6000-BSE", Fraction(1, 4))}


def test_memory_nobody_has() -> None:
    assert rules({"cloud": "gcp", "accelerator": {"memory": "900GB.."}}) == {"accelerator-memory"}


# --- order ------------------------------------------------------------------------------------------------------------


def test_accelerators_then_markets_then_price() -> None:
    wanted = {"cloud": ["gcp", "vertex"], "accelerator": ["T4", "L4"], "market": ["spot", "on-demand"]}
    found = offers(wanted)
    keys = [
        (
            ["T4", "L4"].index(only_role(o).accelerator or ""),
            ["spot", "on-demand"].index(o.market),
            o.price is None,
            o.price or 0,
        )
        for o in found
    ]
    assert keys == sorted(keys)
    assert len({key[:3] for key in keys}) == 8  # known and unknown prices of both accelerators on both markets


def test_unknown_prices_come_last() -> None:
    found = offers({"cloud": ["vertex", "aws", "gcp"], "accelerator": "L4", "market": "spot"})
    known = [offer.price is not None for offer in found]
    assert known == sorted(known, reverse=True)
    assert {offer.cloud for offer in found if offer.price is None} == {"vertex"}


def test_ties_go_by_the_users_places() -> None:
    for clouds in (["aws", "gcp"], ["gcp", "aws"]):
        found = offers({"cloud": clouds, "accelerator": "H100:8", "market": "reservation"})
        assert found[0].cloud == clouds[0]
    for regions in (["us-west1", "us-east1"], ["us-east1", "us-west1"]):
        found = offers({"cloud": "gcp", "accelerator": "L4", "region": regions})
        assert found[0].price == found[-1].price
        assert found[0].region == regions[0]
    zones = ["us-central1-c", "us-central1-a"]
    assert [o.zone for o in offers({"cloud": "gcp", "accelerator": "L4", "zone": zones})] == zones


def test_the_worst_preference_of_the_roles_counts_first() -> None:
    roles = {"chief": {"accelerator": ["T4", "L4", "P4"]}, "worker": {"accelerator": ["L4", "T4"]}}
    found = offers({"cloud": "gcp", "region": "us-central1"}, roles=roles)
    names = ["T4", "L4", "P4"], ["L4", "T4"]
    seen = list(
        dict.fromkeys(tuple(n.index(r.accelerator or "") for n, r in zip(names, o.roles, strict=True)) for o in found)
    )
    assert seen == sorted(seen, key=lambda pair: (max(pair), pair))
    assert seen[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_what_answers_two_preferences_is_the_first_of_them() -> None:
    twice = offers({"cloud": "gcp", "accelerator": ["L4", "nvidia-l4", {"memory": "24GB"}]})
    assert twice == offers({"cloud": "gcp", "accelerator": "L4"})


# --- price ------------------------------------------------------------------------------------------------------------


def test_the_price_is_that_of_the_whole_job() -> None:
    one = offers({"cloud": "gcp", "region": "us-central1", "accelerator": "T4"})[0]
    four = offers({"cloud": "gcp", "region": "us-central1", "accelerator": "T4", "nodes": 4, "disk": "500GB"})[0]
    machine = only_role(one).price
    assert machine is not None
    assert one.disk_price is not None
    assert four.disk_price is not None
    assert abs(four.disk_price - 20 * one.disk_price) < Decimal("0.0001")
    assert four.price == 4 * machine + four.disk_price


def test_the_price_of_attached_gpus_is_host_and_gpus() -> None:
    best = only_role(offers({"cloud": "gcp", "region": "us-central1", "accelerator": "T4:2"})[0])
    table = price_table("gcp")
    host, gpu = table["n1-standard-8", "us-central1"], table["nvidia-tesla-t4", "us-central1"]
    assert best.price == Decimal(host["on_demand_usd_h"]) + 2 * Decimal(gpu["on_demand_usd_h"])


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    known, unknown = Quote(catalog.Price(Decimal("1.5"), "2026-01-02", "x")), Quote(None)
    disk = catalog.Price(Decimal("0.001"), "2025-03-04", "y")
    assert total_price([known, known], [1, 3], 100.0, disk).price == Decimal("6.4")
    assert total_price([known, known], [1, 3], 100.0, disk).date == "2026-01-02"
    for machines, of_disk in (([known, unknown], disk), ([known, known], None)):
        total = total_price(machines, [1, 3], 100.0, of_disk)
        assert (total.price, total.date, total.least) == (None, None, None)


def test_a_spot_price_that_is_unknown_is_at_most_that_on_demand() -> None:
    wanted = {"cloud": "aws", "accelerator": "A10G", "region": "us-east-1"}
    on_demand = offers({**wanted, "market": "on-demand"})[0]
    spot = offers({**wanted, "market": "spot"}, limits={"price": "2 USD/h"})[0]
    assert (spot.price, spot.price_at_most, on_demand.price_at_most) == (on_demand.price, True, False)
    assert any("`cloudgpu catalog refresh --cloud aws`" in note for note in spot.notes)
    assert not any("change daily" in note for note in spot.notes)
    (refusal,) = planned({**wanted, "market": "spot"}, limits={"price": "1 USD/h"})[1].refusals
    assert "may cost more than limits.price" in refusal.message
    assert refusal.price is None
    assert refusal.allowed.startswith("limits.price: 1.0")
    assert "`cloudgpu catalog refresh --cloud aws`" in refusal.allowed
    known = offers({"cloud": "gcp", "accelerator": "L4", "region": "us-central1", "market": "spot"})[0]
    assert not known.price_at_most


def test_no_known_price_at_all_names_the_command_that_asks_for_it() -> None:
    wanted = {"cloud": "aws", "machine_type": "p5e.48xlarge", "market": "on-demand"}
    (refusal,) = planned(wanted, limits={"price": "999 USD/h"})[1].refusals
    assert refusal.message == "its price is unknown: it cannot be held to limits.price of 999 USD/h"
    assert refusal.allowed == "`cloudgpu catalog refresh --cloud aws` asks the provider; or leave out limits.price"
    reserved = {"cloud": "gcp", "accelerator": "H100:8", "market": "reservation"}
    refusals = planned(reserved, limits={"price": "999 USD/h"})[1].refusals
    assert {refusal.allowed for refusal in refusals if refusal.rule == "price-cap"} == {"leave out limits.price"}


def test_vertex_is_ranked_by_the_price_of_its_machines() -> None:
    found = offers({"cloud": "vertex", "accelerator": "L4"})
    compute = offers({"cloud": "gcp", "accelerator": "L4"})
    lowest = {offer.region: offer.price for offer in reversed(compute)}
    assert found[0].price_from == min(offer.price_from for offer in found if offer.price_from is not None)
    assert all(offer.price is None and not offer.price_at_most for offer in found)
    for offer in found:
        assert offer.price_from is not None
        assert abs(offer.price_from - (lowest[offer.region] or 0)) < Decimal(
            "0.05"
        )  # less the disk, whose price is unknown
    (refusal,) = planned({"cloud": "vertex", "accelerator": "L4"}, limits={"price": "99 USD/h"})[1].refusals
    assert refusal.price is None
    assert refusal.message.startswith("its price is unknown, from 0.")


def test_a_stored_offer_of_an_earlier_version_is_read() -> None:
    offer = offers({"cloud": "gcp", "accelerator": "L4"})[0]
    stored = {key: value for key, value in offer.to_json().items() if key not in {"price_at_most", "price_from_usd_h"}}
    assert Offer.from_json(stored) == offer


def test_the_cap_is_on_the_whole_job() -> None:
    wanted = {"cloud": "gcp", "region": "us-central1", "accelerator": "L4", "nodes": 3}
    price = offers(wanted)[0].price
    assert price is not None
    at = str(price.quantize(Decimal("0.0001")) + Decimal("0.0001"))
    assert offers(wanted, limits={"price": f"{at} USD/h"})
    below = planned(wanted, limits={"price": f"{price - Decimal('0.01'):.4f} USD/h"})[1]
    assert below.offers == ()
    (refusal,) = below.refusals
    assert (refusal.rule, refusal.price) == ("price-cap", price)
    assert "3 × g2-standard-4 + L4:1, on-demand" in refusal.subject


def test_what_the_cap_would_have_to_be_is_enough() -> None:
    wanted = {"cloud": "gcp", "accelerator": "T4"}
    (refusal,) = planned(wanted, limits={"price": "0.01 USD/h"})[1].refusals
    assert offers(wanted, limits={"price": refusal.allowed.removeprefix("limits.price: ")})


def test_an_unknown_price_never_passes_a_cap() -> None:
    wanted = {"cloud": ["gcp", "vertex"], "accelerator": "H100:8", "market": ["reservation", "flex-start"]}
    found = planned(wanted, limits={"price": "9999 USD/h"})[1]
    assert found.offers == ()
    assert {(r.rule, r.price) for r in found.refusals} == {("price-cap", None)}
    assert all("unknown" in refusal.message for refusal in found.refusals)


def test_cost_and_duration_refuse_nothing() -> None:
    wanted = {"cloud": "gcp", "accelerator": "L4"}
    assert offers(wanted) == offers(wanted, limits={"cost": "0.01 USD", "duration": "300d"})


# --- places and markets -----------------------------------------------------------------------------------------------


def test_all_roles_stand_in_one_zone() -> None:
    roles = {"chief": {"accelerator": "T4"}, "worker": {"accelerator": "V100:2", "nodes": 2}}
    found = offers({"cloud": "gcp"}, roles=roles)
    t4, v100 = (catalog.places("gcp", "n1-standard-8", name) for name in ("T4", "V100-16GB"))
    assert {(o.region, o.zone) for o in found} == {
        (region, zone) for region in t4 for zone in set(t4[region]) & set(v100.get(region, ()))
    }


def test_roles_of_one_region_without_a_common_zone_are_refused() -> None:
    """On Vertex AI too, which chooses the zone: there must be one to choose."""
    pairs = [
        (a, b, region)
        for a in ("T4", "L4", "V100-16GB", "P4", "A100-40GB", "A100-80GB")
        for b in ("T4", "L4", "V100-16GB", "P4", "A100-40GB", "A100-80GB")
        for region in sorted(places_of(a).keys() & places_of(b).keys())
        if places_of(a)[region] and places_of(b)[region] and not set(places_of(a)[region]) & set(places_of(b)[region])
    ]
    assert pairs
    for first, second, region in pairs[:3]:
        roles = {"chief": {"accelerator": first}, "worker": {"accelerator": second}}
        for cloud in ("gcp", "vertex"):
            if region in catalog.regions(cloud):
                found = planned({"cloud": cloud, "region": region}, roles=roles)[1]
                assert found.offers == ()
                assert [refusal.rule for refusal in found.refusals] == ["one-zone"]
                assert region in found.refusals[0].message


def test_roles_without_a_common_region_are_refused() -> None:
    roles = {"chief": {"accelerator": "RTX-PRO-6000-BSE"}, "worker": {"accelerator": "MI300X:8"}}
    (refusal,) = planned({"cloud": "azure"}, roles=roles)[1].refusals
    assert (refusal.rule, refusal.message) == ("one-zone", "the roles cannot run in the same region")


def places_of(accelerator: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for group in catalog.machine_types("gcp").values():
        for machine in group:
            if machine.accelerator == accelerator and Fraction(1) in machine.counts:
                for region, zones in catalog.places("gcp", machine.name, accelerator).items():
                    found[region] = (*found.get(region, ()), *zones)
    return found


def test_a_target_that_takes_no_zone_gets_none() -> None:
    assert {offer.zone for offer in offers({"cloud": ["vertex", "azure"], "accelerator": "T4"})} == {None}


def test_a_region_asked_for_that_has_it_not_tells_the_price_elsewhere() -> None:
    found = planned({"cloud": "gcp", "accelerator": "L4", "region": ["us-east4", "europe-north1"]})[1]
    assert {offer.region for offer in found.offers} == {"us-east4"}
    (refusal,) = found.refusals
    assert refusal.rule == "offered-in-region"
    assert refusal.price == min(o.price for o in offers({"cloud": "gcp", "accelerator": "L4"}) if o.price is not None)


def test_a_region_of_another_cloud_refuses_that_cloud_only() -> None:
    found = planned({"cloud": ["aws", "gcp"], "accelerator": "L4", "region": "us-central1"})[1]
    assert {offer.cloud for offer in found.offers} == {"gcp"}
    (refusal,) = found.refusals
    assert (refusal.rule, refusal.cloud) == ("region-known", "aws")


def test_a_zone_asked_for() -> None:
    assert {o.zone for o in offers({"cloud": "gcp", "accelerator": "L4", "zone": "us-central1-b"})} == {"us-central1-b"}
    assert {o.zone for o in offers({"cloud": "aws", "accelerator": "L4", "zone": "use1-az6"})} <= {"use1-az6"}
    assert rules({"cloud": "gcp", "accelerator": "A100-80GB", "zone": "us-central1-f"}) == {"offered-in-zone"}


def test_a_zone_of_a_machine_whose_zones_are_not_known() -> None:
    """The tables know N1 without GPUs by region: a zone of that region is not refused."""
    found = offers({"cloud": "gcp", "zone": "us-central1-b"})
    assert [(o.region, o.zone) for o in found] == [("us-central1", "us-central1-b")]


def test_a_market_not_sold_leaves_the_others() -> None:
    found = planned({"cloud": "gcp", "accelerator": "H100:1", "market": ["on-demand", "spot"]})[1]
    assert {offer.market for offer in found.offers} == {"spot"}
    assert [refusal.rule for refusal in found.refusals] == ["market-sold"]


def test_notes() -> None:
    t4 = offers({"cloud": "gcp", "accelerator": "T4"})[0]
    assert "support for T4 ends 2027-08-01" in t4.notes
    reserved = offers({"cloud": "gcp", "accelerator": "GB200:4", "market": "reservation"})[0]
    assert any("reservation" in note for note in reserved.notes)
    assert any("arm64" in note for note in reserved.notes)
    queued = offers({"cloud": "gcp", "accelerator": "H100:8", "market": "flex-start"}, limits={"duration": "10d"})[0]
    assert sum("7d" in note for note in queued.notes) == 2


def test_no_cpu_machines_in_the_tables_of_aws_and_azure() -> None:
    assert rules({"cloud": ["aws", "azure"]}) == {"cpu-machines"}


def test_what_is_gone_is_refused_with_what_there_is() -> None:
    found = planned({"cloud": ["gcp", "aws", "azure"], "accelerator": "K80:1"})[1]
    assert found.offers == ()
    assert {refusal.rule for refusal in found.refusals} == {"accelerator-retired"}
    assert all("the closest there today is" in refusal.allowed for refusal in found.refusals)


def test_the_day_decides() -> None:
    spec = job(resources={"cloud": "gcp", "accelerator": "T4"})
    assert plan(spec, machine=None, today=datetime.date(2027, 7, 31)).offers
    assert not plan(spec, machine=None, today=datetime.date(2027, 8, 1)).offers


def test_clouds_without_a_queue_are_refused_a_priority_and_the_others_offered() -> None:
    wanted = {"cloud": ["gcp", "local", "aws"], "accelerator": "L4"}
    machine = LocalMachine(8, 32.0, gpus=(L4,))
    found = planned(wanted, machine, priority=3)[1]
    assert {offer.cloud for offer in found.offers} == {"local"}
    assert [(refusal.rule, refusal.cloud) for refusal in found.refusals] == [("priority", "gcp"), ("priority", "aws")]
    found = planned(wanted, machine, priority=0)[1]
    assert {offer.cloud for offer in found.offers} == {"gcp", "local", "aws"}


def test_a_cloud_there_is_not() -> None:
    with pytest.raises(ValueError, match="no such cloud: mars; expected some of local, aws"):
        plan(job(), machine=None, today=TODAY, clouds=["gcp", "mars"])


def test_a_huge_request_stays_bounded() -> None:
    """Every accelerator as a preference of each of four roles, on every market of every cloud."""
    names = [f"{name}:1..8" for name in list(catalog.accelerators())[:32]]
    roles = {name: {"accelerator": names} for name in ("chief", "worker", "parameter_server", "evaluator")}
    found = planned({"market": ["on-demand", "spot", "flex-start", "reservation"]}, roles=roles)[1]
    assert 0 < len(found.offers) < 30_000
    assert len(found.refusals) < 1_000


def test_an_invalid_name_is_refused_not_raised() -> None:
    assert rules({"cloud": "gcp", "accelerator": "A1000"}) == {"accelerator-known"}
    assert "machine-type-known" in rules({"cloud": "gcp", "machine_type": "nonsense"})


# --- this machine -----------------------------------------------------------------------------------------------------


def local(resources: dict[str, Any], machine: LocalMachine | None, **fields: Any) -> Plan:
    return planned({"cloud": "local", **resources}, machine=machine, **fields)[1]


def test_the_cpu_is_enough() -> None:
    (offer,) = local({}, CPU_ONLY).offers
    assert (offer.price, offer.market, only_role(offer).accelerator) == (Decimal(0), "on-demand", None)


def test_the_machine_has_a_price_once() -> None:
    (offer,) = local({"nodes": 3}, LocalMachine(8, 32.0, price=Decimal("1.20"))).offers
    assert offer.price == Decimal("1.20")


def test_gpus_are_handed_out_once() -> None:
    machine = LocalMachine(8, 32.0, gpus=(L4, L4, A100))
    assert local({"accelerator": "L4:1", "nodes": 2}, machine).offers
    assert not local({"accelerator": "L4:2", "nodes": 2}, machine).offers
    roles = {"chief": {"accelerator": "L4:1"}, "worker": {"accelerator": "L4:2"}}
    assert not local({}, machine, roles=roles).offers
    roles["worker"]["accelerator"] = "A100-80GB:1"
    assert local({}, machine, roles=roles).offers


def test_preferences_hold_here_too() -> None:
    machine = LocalMachine(8, 32.0, gpus=(L4, A100))
    found = local({"accelerator": ["H100:1", "A100-80GB:1", "L4:1"]}, machine).offers
    assert [only_role(offer).accelerator for offer in found] == ["A100-80GB", "L4"]
    by_memory = local({"accelerator": {"memory": "40GB.."}}, machine).offers
    assert [only_role(offer).accelerator for offer in by_memory] == ["A100-80GB"]


def test_what_is_there_is_said() -> None:
    (refusal,) = local({"accelerator": "H100:8"}, LocalMachine(8, 32.0, gpus=(L4, L4))).refusals
    assert (refusal.rule, refusal.message) == ("local-machine", "this machine has L4:2")
    (refusal,) = local({"accelerator": "H100:8"}, CPU_ONLY).refusals
    assert "no GPU" in refusal.message
    assert local({}, None).refusals[0].rule == "local-machine"


def test_a_short_name_that_means_another_size_than_this_machines_is_explained() -> None:
    (refusal,) = local({"accelerator": "A100:1"}, LocalMachine(8, 32.0, gpus=(A100, A100))).refusals
    assert refusal.message == "this machine has A100-80GB:2; `A100` means A100-40GB"
    (refusal,) = local({"accelerator": "A100:1"}, LocalMachine(8, 32.0, gpus=(L4,))).refusals
    assert refusal.message == "this machine has L4:1"
    (refusal,) = local({"accelerator": "A100-80GB:4"}, LocalMachine(8, 32.0, gpus=(A100, A100))).refusals
    assert refusal.message == "this machine has A100-80GB:2"


def test_other_markets_are_refused() -> None:
    found = local({"market": ["spot", "on-demand"]}, CPU_ONLY)
    assert len(found.offers) == 1
    assert [refusal.rule for refusal in found.refusals] == ["market-supported"]


@pytest.mark.parametrize(
    ("name", "memory_gb", "accelerator"),
    [
        ("NVIDIA A100-SXM4-80GB", 85.0, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 39.5, "A100-40GB"),
        ("Tesla T4", 15.8, "T4"),
        ("NVIDIA L4", 24.1, "L4"),
        ("NVIDIA H200", 140.0, "H200-141GB"),
        ("NVIDIA H100 80GB HBM3", 85.0, "H100-80GB"),
        ("Tesla V100-SXM2-32GB", 34.0, "V100-32GB"),
        ("NVIDIA GeForce RTX 4090", 25.4, "NVIDIA GeForce RTX 4090"),
    ],
)
def test_names_of_drivers(name: str, memory_gb: float, accelerator: str) -> None:
    assert accelerator_of(LocalGpu("GPU-0", name, memory_gb)) == accelerator


# --- properties -------------------------------------------------------------------------------------------------------


@cache
def price_table(cloud: str) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["sku"], row["region"]): row for row in rows(f"prices_{cloud}")}


@cache
def rows(table: str) -> list[dict[str, str]]:
    with (TABLES / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def machine_rows(cloud: str) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["machine_type"], row["accelerator"]): row for row in rows(f"machine_types_{cloud}")}


@cache
def place_zones(cloud: str) -> dict[tuple[str, str], set[str]]:
    return {(row["offering"], row["region"]): set(row["zones"].split()) for row in rows(f"places_{cloud}")}


NAMES = ("L4", "T4", "V100", "A100-80GB", "H100", "RTX-PRO-6000-BSE", "A10", "A10G", "K80", "P100", "GB200", "MI300X")
COUNTS = ("1", "2", "3", "4", "8", "1/8", "1/2", "1..2", "2..8", "1/8..1")
accelerators = st.lists(
    st.one_of(
        st.builds("{}:{}".format, st.sampled_from(NAMES), st.sampled_from(COUNTS)),
        st.builds(
            lambda memory, count: {"memory": memory, "count": count},
            st.sampled_from(["16GB..", "24GB", "..40GB", "80GB..200GB"]),
            st.sampled_from(COUNTS),
        ),
    ),
    max_size=3,
    unique_by=str,
)
some_of = {
    "cloud": ["gcp", "aws", "vertex", "azure", "local"],
    "region": ["us-central1", "us-east4", "europe-west4", "us-east-1", "eu-west-1", "eastus", "westeurope"],
    "zone": ["us-central1-a", "us-central1-c", "europe-west4-b", "use1-az4"],
    "market": ["on-demand", "spot", "flex-start", "reservation"],
}


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    resources: dict[str, Any] = {"disk": draw(st.sampled_from(["100GB", "1TB"]))}
    for field, values in some_of.items():
        if draw(st.integers(0, 3)) == 0 or field == "market":
            resources[field] = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    fields: dict[str, Any] = {"resources": resources}
    if draw(st.booleans()):
        resources |= {"accelerator": draw(accelerators), "nodes": draw(st.integers(1, 4))}
    else:
        names = draw(st.lists(st.sampled_from(["chief", "worker", "evaluator"]), min_size=1, unique=True))
        fields["roles"] = {name: {"accelerator": draw(accelerators)} for name in names}
    if draw(st.booleans()):
        fields["limits"] = {"price": draw(st.sampled_from(["0.5 USD/h", "4 USD/h", "60 USD/h"]))}
    return job(**fields)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(spec=jobs())
def test_every_offer_is_valid_and_in_order(spec: JobSpec) -> None:
    machine = LocalMachine(8, 32.0, gpus=(L4, L4, A100))
    found = plan(spec, machine=machine, today=TODAY)
    for offer in found.offers:
        assert offer.price is None or offer.price > 0 or offer.cloud == "local"
        assert spec.resources.cloud is None or offer.cloud in spec.resources.cloud
        assert offer.market in spec.resources.market
        if offer.cloud != "local":
            check_rules(offer)
            check_tables(offer)
            check_price(offer)
        if spec.limits.price is not None:
            assert offer.price is not None
            assert offer.price <= spec.limits.price
        if spec.resources.region is not None:
            assert offer.region in spec.resources.region
        if spec.resources.zone is not None:
            assert offer.zone in spec.resources.zone
    check_order(spec, found)
    known_rules = {rule.name for rule in (*RULES, *TARGET_RULES)} | set(JOB_RULES)
    assert {refusal.rule for refusal in found.refusals} <= known_rules
    assert len(set(found.refusals)) == len(found.refusals)
    assert len(found.refusals) < 200
    assert found.offers or found.refusals
    silent = set(spec.resources.cloud or CLOUDS) - {o.cloud for o in found.offers} - {r.cloud for r in found.refusals}
    assert not silent
    assert plan(spec, machine=machine, today=TODAY) == found
    stored = json.loads(json.dumps(found.to_json()))
    assert [Offer.from_json(offer) for offer in stored["offers"]] == list(found.offers)


def check_rules(offer: Offer) -> None:
    """By the rules themselves."""
    for role in offer.roles:
        gpus = exactly(role.count) if role.accelerator else None
        ask = Request(
            offer.cloud,
            TODAY.isoformat(),
            role.accelerator,
            gpus,
            role.machine_type,
            offer.region,
            offer.zone,
            offer.market,
        )
        assert all_refusals(ask) == []


def check_tables(offer: Offer) -> None:
    """By the tables, read here in the plainest way."""
    offerings: list[set[str]] = []
    for role in offer.roles:
        host = "gcp" if offer.cloud == "vertex" else offer.cloud
        wanted = (role.machine_type, role.accelerator or "")
        row, sold = machine_rows(offer.cloud)[wanted], machine_rows(host)[wanted]
        assert row["status"] != "retired"
        assert offer.market in row["markets"].split()
        assert not role.accelerator or role.count in [Fraction(text) for text in row["counts"].split()]
        zones = place_zones(host)[sold["offering"], offer.region]
        if zones:
            offerings.append(zones)
            assert offer.zone is None or offer.zone in offerings[-1]
    assert not offerings or set.intersection(*offerings)


def check_price(offer: Offer) -> None:
    """The whole is the sum of its parts, and unknown if one of them is."""
    parts = [None if role.price is None else role.price * role.nodes for role in offer.roles]
    if None in parts or offer.disk_price is None:
        assert offer.price is None
        assert offer.price_date is None
    else:
        assert offer.price is not None
        assert abs(offer.price - sum((p for p in parts if p is not None), offer.disk_price)) < Decimal("0.00001")
        assert offer.price_date is not None


def check_order(spec: JobSpec, found: Plan) -> None:
    """Markets in order and prices ascending, among offers of the same accelerators and counts."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for offer in found.offers:
        kind = tuple((role.role, role.accelerator) for role in offer.roles)
        market = spec.resources.market.index(offer.market)
        groups.setdefault((kind, market), []).append((offer.price is None, offer.price or Decimal(0)))
    named = all(request.name for role in spec.effective_roles().values() for request in role.accelerator)
    once = all(
        len({request.name for request in role.accelerator}) == len(role.accelerator)
        for role in spec.effective_roles().values()
    )
    if named and once:  # otherwise one accelerator may stand for several preferences
        assert all(prices == sorted(prices) for prices in groups.values())
