"""Consistency of the fact tables: unique keys, resolvable references, possible figures, valid dates."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.models import CLOUDS, LauncherName, Market
from cloudgpu.jobspecs.targets import FLEET_CLOUDS, TargetInfo
from cloudgpu.jobspecs.units import parse_count

TABLES = Path(catalog.__file__).parents[1] / "tables"
MARKETS = set(get_args(Market))
TODAY = datetime.date(2026, 11, 20)
"""Date on which the tables were compiled: no figure may be newer."""

KEYS = {
    "accelerators": ("name",),
    "accelerator_aliases": ("alias",),
    "ai_platform_counts": ("machine_type", "accelerator"),
    "ai_platform_legacy": ("name",),
    "ai_platform_regions": ("accelerator", "region"),
    "disk_prices": ("cloud", "region"),
    "gcp_n1_limits": ("accelerator", "count", "zones"),
    **{f"machine_types_{cloud}": ("machine_type", "accelerator") for cloud in catalog.CLOUDS},
    **{f"places_{cloud}": ("offering", "region") for cloud in ("aws", "azure", "gcp")},
    **{f"prices_{cloud}": ("sku", "region") for cloud in ("aws", "azure", "gcp")},
    "regions_vertex": ("region",),
    "secret_schemes": ("scheme",),
    "settings": ("setting",),
    "table_dates": ("table",),
    "targets": ("target",),
}
Row = dict[str, str]


@cache
def table(name: str) -> list[Row]:
    with (TABLES / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def cells(column: str) -> Iterator[tuple[str, Row, str]]:
    """Yield (table, row, cell) of every filled cell of a column, in all tables that have it."""
    for name in KEYS:
        for row in table(name):
            if row.get(column):
                yield name, row, row[column]


def test_every_table_is_known_and_documented() -> None:
    assert {path.stem for path in TABLES.glob("*.csv")} == set(KEYS)
    page = (Path(catalog.__file__).parents[2] / "docs" / "reference" / "tables.md").read_text()
    for name in KEYS:
        family = re.sub(r"_(aws|gcp|vertex|azure)$", "_<cloud>", name)
        assert f"`{name}.csv`" in page or f"`{family}.csv`" in page, name
        for column in table(name)[0]:
            assert f"`{column}`" in page, f"docs/reference/tables.md explains no column {column} of {name}"


@pytest.mark.parametrize("name", KEYS)
def test_rows_are_plain_and_keys_unique(name: str) -> None:
    text = (TABLES / f"{name}.csv").read_text(encoding="utf-8")
    assert text.isascii()
    assert text.endswith("\n")
    assert '"' not in text, "cells need no quotes: lists are separated by blanks, sentences by semicolons"
    rows = table(name)
    assert rows
    assert all(None not in row and None not in row.values() for row in rows), "every row has every column"
    assert all(cell == cell.strip() for row in rows for cell in row.values())
    keys = [tuple(row[column] for column in KEYS[name]) for row in rows]
    assert len(set(keys)) == len(keys)


def test_dates_are_dates_of_the_past_and_sources_are_listed() -> None:
    listed = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (TABLES / "SOURCES.md").read_text(), re.MULTILINE))
    for name, row, cell in cells("date"):
        assert datetime.date.fromisoformat(cell) <= TODAY, (name, row)
    used = {source for _, _, source in cells("source")}
    assert used <= listed, used - listed


def test_tables_whose_rows_have_no_day_have_one_as_a_whole() -> None:
    timeless = {"accelerator_aliases", "secret_schemes", "settings", "targets"}
    undated = {name for name in KEYS if "date" not in table(name)[0]} - timeless
    assert {row["table"] for row in table("table_dates")} == undated


def test_every_fact_with_a_price_or_a_place_says_where_it_is_from() -> None:
    for name in KEYS:
        if name.startswith(("machine_types_", "prices_", "disk_", "gcp_n1", "regions_")):
            assert all(row["source"] and row["date"] for row in table(name)), name


def test_accelerator_names_resolve() -> None:
    known = {row["name"] for row in table("accelerators")}
    for name, row, cell in cells("accelerator"):
        assert cell in known, (name, row)


def test_aliases_lead_to_one_accelerator_each() -> None:
    names = [row["name"] for row in table("accelerators")] + [row["alias"] for row in table("accelerator_aliases")]
    folded = [catalog.fold(name) for name in names]
    assert len(set(folded)) == len(folded), "an alias that differs from another name only by case or separators"
    assert {row["used_by"] for row in table("accelerator_aliases")} == {"", "gcp", "driver"}


def test_providers_names_of_accelerators_are_aliases() -> None:
    for name in ("machine_types_gcp", "machine_types_vertex"):
        for row in table(name):
            if row["accelerator"]:
                found = catalog.find_accelerator(row["provider_accelerator"])
                assert found is not None, row
                assert found.name == row["accelerator"], row


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("NVIDIA-T4", "T4"), ("NVIDIA_T4", "T4"), ("nvidia-v100", "V100-16GB"), ("V100-SXM2-32GB", "V100-32GB")),
        *(("NVIDIA-A100", "A100-40GB"), ("A100-40G", "A100-40GB"), ("A100-SXM4-40GB", "A100-40GB")),
        *(("A100-80G", "A100-80GB"), ("A100-SXM4-80GB", "A100-80GB"), ("A100-PCIE-80GB", "A100-80GB")),
        *(("NVIDIA-H100", "H100-80GB"), ("H100-MEGA", "H100-80GB"), ("H100-PCIE", "H100-80GB")),
        *(("NVIDIA H100 PCIe", "H100-80GB"), ("H200-SXM", "H200-141GB"), ("AMD Instinct MI300X", "MI300X")),
    ],
)
def test_names_that_people_and_drivers_use_are_known(written: str, meant: str) -> None:
    found = catalog.find_accelerator(written)
    assert found is not None
    assert found.name == meant


def test_a_name_of_two_sizes_is_not_guessed() -> None:
    assert catalog.find_accelerator("A100-SXM") is None, "SXM4 modules have 40 or 80 GB"


def test_flex_start_is_not_sold_on_a3_edge() -> None:
    for name in ("a3-edgegpu-8g", "a3-edgegpu-8g-nolssd"):
        machine = catalog.find_machine_type("gcp", name, "H100-80GB")
        assert machine is not None
        assert machine.markets == {"on-demand", "spot", "reservation"}


def test_accelerator_figures_are_possible() -> None:
    for row in table("accelerators"):
        assert 4 <= float(row["memory_gb"]) <= 300, row
        assert row["kind"] in {"gpu", "asic"}
        for column, low, high in (
            ("bandwidth_gb_s", 100, 10_000),
            ("fp16_tflops", 10, 3_000),
            ("bf16_tflops", 10, 3_000),
            ("fp32_tflops", 1, 200),
            ("nvlink_gb_s", 0, 2_000),
            ("mig_slices", 0, 8),
        ):
            assert not row[column] or low <= float(row[column]) <= high, (column, row)


@pytest.mark.parametrize("cloud", catalog.CLOUDS)
def test_machine_types_are_possible(cloud: str) -> None:
    for row in table(f"machine_types_{cloud}"):
        counts = [parse_count(part) for part in row["counts"].split()]
        assert counts == sorted(set(counts)), row
        assert bool(counts) == bool(row["accelerator"]), row
        assert all(count.denominator == 1 or count < 1 for count in counts), row
        assert set(row["markets"].split()) <= MARKETS, row
        assert row["status"] in {"active", "deprecated", "retired"}, row
        assert (row["status"] == "retired") == (not row["markets"]), row
        if row["ends"]:
            ends = datetime.date.fromisoformat(row["ends"])
            assert row["status"] != "active", row
            assert (ends <= TODAY) == (row["status"] == "retired"), row
        if cloud != "vertex":
            assert row["arch"] in {"x86_64", "arm64"}
            assert not row["vcpus"] or 1 <= int(row["vcpus"]) <= 512, row
            assert not row["memory_gb"] or 1 <= float(row["memory_gb"]) <= 4_096, row


@pytest.mark.parametrize("cloud", catalog.CLOUDS)
def test_a_machine_type_has_one_size(cloud: str) -> None:
    for name, group in catalog.machine_types(cloud).items():
        assert len({(m.vcpus, m.memory_gb, m.arch) for m in group}) == 1, name


def test_only_the_size_whose_sources_disagree_lacks_memory() -> None:
    lacking = [row["machine_type"] for row in table("machine_types_azure") if not row["memory_gb"]]
    assert lacking == ["Standard_NC72lds_xl_RTXPRO6000BSE_v6"]


def test_vertex_machine_types_are_compute_engines() -> None:
    hosts = {(row["machine_type"], row["accelerator"]): row for row in table("machine_types_gcp")}
    for row in table("machine_types_vertex"):
        host = hosts[row["machine_type"], row["accelerator"]]
        assert row["status"] == host["status"]
        assert row["ends"] == host["ends"]
        assert set(row["counts"].split()) <= set(host["counts"].split()), row
        assert set(row["markets"].split()) <= set(host["markets"].split()) | {"reservation"}, row


def test_n1_counts_are_those_which_the_limits_allow() -> None:
    limits = [row for row in table("gcp_n1_limits") if not row["zones"]]
    for row in table("machine_types_gcp"):
        if not row["machine_type"].startswith("n1-") or not row["accelerator"]:
            continue
        vcpus, memory = int(row["vcpus"]), float(row["memory_gb"])
        allowed = [
            limit["count"]
            for limit in limits
            if limit["accelerator"] == row["accelerator"]
            and int(limit["min_vcpus"]) <= vcpus <= int(limit["max_vcpus"])
            and float(limit["min_memory_gb"]) <= memory <= float(limit["max_memory_gb"])
        ]
        assert row["counts"].split() == allowed, row


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_places_belong_to_machine_types_that_are_sold(cloud: str) -> None:
    sold = {row["offering"] for row in table(f"machine_types_{cloud}") if row["status"] != "retired"}
    offered = {row["offering"] for row in table(f"places_{cloud}")}
    assert offered <= sold, offered - sold
    placeless = {row["machine_type"] for row in table(f"machine_types_{cloud}") if not row["offering"]}
    assert not placeless or cloud == "azure"


def test_zones_lie_in_their_region() -> None:
    for row in table("places_gcp"):
        assert all(re.fullmatch(rf"{re.escape(row['region'])}-[a-z]", zone) for zone in row["zones"].split()), row
    prefixes: dict[str, set[str]] = {}
    for row in table("places_aws"):
        for zone in row["zones"].split():
            prefix, dash, number = zone.partition("-az")
            assert dash and number.isdecimal(), row
            prefixes.setdefault(row["region"], set()).add(prefix)
    assert all(len(found) == 1 for found in prefixes.values()), "AZ ids of one region begin alike"
    assert not any(row["zones"] for row in table("places_azure"))


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_prices_are_of_what_is_sold_there(cloud: str) -> None:
    places: dict[str, set[str]] = {}
    for row in table(f"places_{cloud}"):
        places.setdefault(row["offering"], set()).add(row["region"])
    sold: dict[str, list[Row]] = {}
    for row in table(f"machine_types_{cloud}"):
        for sku in {row["machine_type"], row["provider_accelerator"]} - {""}:
            sold.setdefault(sku, []).append(row)
    for row in table(f"prices_{cloud}"):
        offers = [o for o in sold[row["sku"]] if row["region"] in places.get(o["offering"], ())]
        assert offers, f"a price for a place where it is not offered: {row}"
        for market, column in (("on-demand", "on_demand_usd_h"), ("spot", "spot_usd_h")):
            if row[column]:
                assert any(market in o["markets"].split() for o in offers), f"a price in a market it is not in: {row}"


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_prices_are_possible(cloud: str) -> None:
    for row in table(f"prices_{cloud}"):
        amounts = [Decimal(row[column]) for column in ("on_demand_usd_h", "spot_usd_h") if row[column]]
        assert amounts, row
        assert all(Decimal("0.005") <= amount <= 200 for amount in amounts), row
        assert amounts == sorted(amounts, reverse=True), f"spot is dearer than on demand: {row}"


def test_disk_prices_have_a_bound_that_is_one() -> None:
    for cloud in ("aws", "gcp", "azure"):
        rows = [row for row in table("disk_prices") if row["cloud"] == cloud]
        bounds = [row for row in rows if row["bound"] == "upper"]
        assert [row["region"] for row in bounds] == ["*"]
        assert all(0 < Decimal(row["usd_gb_month"]) <= Decimal(bounds[0]["usd_gb_month"]) for row in rows)
        assert {row["region"] for row in rows if row["bound"] == "exact"} <= catalog.regions(cloud) | _OTHER_REGIONS


_OTHER_REGIONS = {
    # Regions with disks and without GPUs in the tables.
    *("africa-south1", "europe-north2", "europe-southwest1", "europe-west12", "europe-west6", "me-central1"),
    *("northamerica-northeast2", "northamerica-south1", "southamerica-west1", "asia-northeast2"),
    *("af-south-1", "ap-east-1", "ap-northeast-3", "eu-south-1", "eu-west-3", "me-south-1", "us-west-1"),
}


def test_targets_are_the_clouds_of_the_job_file() -> None:
    rows = table("targets")
    assert tuple(row["target"] for row in rows) == (*CLOUDS, "cluster")
    for row in rows:
        assert set(row["markets"].split()) <= MARKETS
        assert set(row["launchers"].split()) <= set(get_args(LauncherName)) - {"auto"}
        assert set(row["groups"].split()) <= set(row["markets"].split())
        assert bool(row["groups"]) == (row["target"] in FLEET_CLOUDS)
        flags = {column for column, kind in TargetInfo.__annotations__.items() if kind == "bool"}
        assert {row[flag] for flag in flags} <= {"yes", "no"}
        if row["target"] in catalog.CLOUDS:
            sold = {market for _, r, cell in cells("markets") for market in cell.split() if r in _machines(row)}
            assert sold <= set(row["markets"].split()), row


def _machines(target: Row) -> list[Row]:
    return table(f"machine_types_{target['target']}")


def test_ai_platform_tables_name_known_machines() -> None:
    hosts = catalog.machine_types("gcp")
    for row in table("ai_platform_counts"):
        assert row["machine_type"] in hosts
        counts = [int(part) for part in row["counts"].split()]
        assert counts == sorted(counts)
        assert set(counts) <= {1, 2, 4, 8, 16}
    for row in table("ai_platform_legacy"):
        assert row["machine_type"] in hosts
        assert row["evidence"] in {"documented", "analogy"}
        allowed = catalog.ai_platform_counts(row["machine_type"], row["accelerator"])
        assert int(row["count"]) in allowed, row
    assert len(table("ai_platform_counts")) == 80


def test_ai_platform_counts_follow_its_limits() -> None:
    """All N1 rows follow one rule: the counts whose limits on vCPUs and memory cover the machine."""
    limits = {
        "K80": {1: (8, 52), 2: (16, 104), 4: (32, 208), 8: (64, 208)},
        "P4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
        "P100": {1: (16, 104), 2: (32, 208), 4: (64, 208)},
        "T4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
        "V100-16GB": {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
    }
    machines = {name: group[0] for name, group in catalog.machine_types("gcp").items() if name.startswith("n1-")}
    for name in catalog.ai_platform_machine_types() & set(machines):
        vcpus, memory = machines[name].vcpus or 0, machines[name].memory_gb or 0
        for accelerator, by_count in limits.items():
            allowed = tuple(
                n for n, (most_vcpus, most_gb) in by_count.items() if vcpus <= most_vcpus and memory <= most_gb
            )
            assert catalog.ai_platform_counts(name, accelerator) == allowed, (name, accelerator)


def test_fractions_are_rational() -> None:
    fractions = {Fraction(part) for _, _, cell in cells("counts") for part in cell.split() if "/" in part}
    assert fractions == {Fraction(1, n) for n in (2, 3, 4, 6, 8)}
    assert not any("." in cell for _, _, cell in cells("counts"))
