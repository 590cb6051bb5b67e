"""Catalogue of Azure: regions with zones, machine sizes, quota families, images.

Regions of sizes come from the package's own tables (jobspecs/tables), so tests do not detect errors there. A region has
zones 1, 2 and 3, or none ("Azure regions with availability zone support").
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

_TABLES = Path(__file__).parents[3] / "jobspecs/tables"
_HERE = Path(__file__).parent
ZONES = ("1", "2", "3")
_WITHOUT_ZONES = frozenset({"westus", "northcentralus", "southindia", "ukwest", "australiacentral", "japanwest"})
"""Regions without zones, among those with GPU sizes; japanwest has zones since 2025, but the tables do not rely on
that."""
INFINIBAND = frozenset({"r"})
"""Letters of a size's features that mean RDMA ("Azure VM sizes naming conventions")."""


@dataclass(frozen=True)
class Size:
    """One machine size."""

    name: str
    vcpus: int
    memory_gb: float
    gpus: Fraction
    offering: str
    family: str
    """Quota family, as in usages and SKUs."""
    regions: frozenset[str]
    spot: bool
    reservable: bool
    """True if it can be in a capacity reservation."""


@dataclass(frozen=True)
class Image:
    """A platform image: `publisher:offer:sku`."""

    publisher: str
    offer: str
    sku: str
    version: str
    generation: str
    disk_gb: int


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


@functools.cache
def _families() -> Mapping[str, str]:
    """Return offering -> family."""
    return {row["offering"]: row["family"] for row in _rows(_HERE / "families.csv")}


@functools.cache
def sizes() -> Mapping[str, Size]:
    """Return the sizes by lower-case name, without those that no region offers."""
    places: dict[str, set[str]] = {}
    for row in _rows(_TABLES / "places_azure.csv"):
        places.setdefault(row["offering"], set()).add(row["region"])
    found: dict[str, Size] = {}
    for row in _rows(_TABLES / "machine_types_azure.csv"):
        if row["status"] == "retired" or not row["offering"]:
            continue
        found[row["machine_type"].lower()] = Size(
            row["machine_type"],
            int(row["vcpus"]),
            float(row["memory_gb"] or 0),
            Fraction(row["counts"].split()[0]),
            row["offering"],
            _families()[row["offering"]],
            frozenset(places.get(row["offering"], ())),
            "spot" in row["markets"].split(),
            "reservation" in row["markets"].split(),
        )
    for row in _rows(_HERE / "cpu_sizes.csv"):
        found[row["size"].lower()] = Size(
            row["size"],
            int(row["vcpus"]),
            float(row["memory_gb"]),
            Fraction(0),
            "",
            row["family"],
            regions(),
            True,
            True,
        )
    return found


@functools.cache
def regions() -> frozenset[str]:
    return frozenset(row["region"] for row in _rows(_TABLES / "places_azure.csv"))


def zones(region: str) -> tuple[str, ...]:
    return () if region in _WITHOUT_ZONES else ZONES


def region_name(location: str) -> str:
    """Return the name of a region: `eastus` for `East US`."""
    return location.replace(" ", "").lower()


@functools.cache
def images() -> tuple[Image, ...]:
    return tuple(
        Image(row["publisher"], row["offer"], row["sku"], row["version"], row["generation"], int(row["disk_gb"]))
        for row in _rows(_HERE / "images.csv")
    )


def find_image(publisher: str, offer: str, sku: str) -> Image | None:
    """Return the newest image, case-insensitively, or None."""
    wanted = (publisher.lower(), offer.lower(), sku.lower())
    return next((one for one in images() if (one.publisher, one.offer, one.sku) == wanted), None)
