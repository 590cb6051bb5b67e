"""Catalogue of Compute Engine: regions, zones, machine types, accelerators, images.

Zones of machine types come from the package's own tables (jobspecs/tables), so tests do not detect errors there. Images
are those of images.csv, one per family.
"""

from __future__ import annotations

import csv
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

HOST = "https://www.googleapis.com/compute/v1"
_TABLES = Path(__file__).parents[3] / "jobspecs/tables"
_LOCAL_SSDS = {"a2-ultragpu-": 1, "a3-highgpu-": 2, "a3-megagpu-": 2, "a3-ultragpu-8g": 4, "a4-highgpu-": 4}
"""Partitions of 375 GiB per GPU ("Accelerator-optimized machine family")."""
_CREATED = "2024-01-01T00:00:00.000-08:00"


@dataclass(frozen=True)
class MachineType:
    """One machine type with its bundled accelerators."""

    name: str
    vcpus: int
    memory_gb: float
    architecture: str
    """`X86_64` or `ARM64`, as in the API."""
    accelerator: str
    """Bundled accelerator; "": none, or attached separately."""
    count: int
    zones: frozenset[str]

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Image:
    """One image."""

    project: str
    family: str
    name: str
    architecture: str
    disk_gb: int
    uefi: bool

    @property
    def path(self) -> str:
        return f"projects/{self.project}/global/images/{self.name}"


def identity(*parts: str) -> str:
    """Return a numeric resource id as Compute Engine's, derived deterministically from the parts."""
    return str(int(hashlib.sha256("/".join(parts).encode()).hexdigest()[:15], 16) + 10**17)


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


@functools.cache
def _places() -> Mapping[str, frozenset[str]]:
    """Return offering -> zones. If the table names only a region, all of the region's zones offer it."""
    rows = list(_rows(_TABLES / "places_gcp.csv"))
    known: dict[str, set[str]] = {}
    for row in rows:
        known.setdefault(row["region"], set()).update(row["zones"].split())
    found: dict[str, set[str]] = {}
    for row in rows:
        every = known[row["region"]] or {f"{row['region']}-{letter}" for letter in "abc"}
        found.setdefault(row["offering"], set()).update(row["zones"].split() or every)
    return {offering: frozenset(places) for offering, places in found.items()}


@functools.cache
def machine_types() -> Mapping[str, MachineType]:
    """Return the machine types by name."""
    found: dict[str, MachineType] = {}
    for row in _rows(_TABLES / "machine_types_gcp.csv"):
        if row["status"] == "retired" or row["machine_type"] in found:
            continue
        bundled = not row["offering"].startswith("n1")
        count = max((Fraction(one) for one in row["counts"].split()), default=Fraction(0))
        found[row["machine_type"]] = MachineType(
            row["machine_type"],
            int(row["vcpus"]),
            float(row["memory_gb"]),
            "ARM64" if row["arch"] == "arm64" else "X86_64",
            row["provider_accelerator"] if bundled else "",
            max(1, int(count)) if bundled and row["accelerator"] else 0,
            _places().get(row["offering"].partition("+")[0], frozenset()),
        )
    return found


@functools.cache
def attachable() -> Mapping[str, frozenset[str]]:
    """Return accelerator -> zones, for accelerators that are attached to N1."""
    return {offering.partition("+")[2]: zones for offering, zones in _places().items() if offering.startswith("n1+")}


@functools.cache
def accelerators() -> Mapping[str, frozenset[str]]:
    """Return accelerator -> zones."""
    found = {name: set(zones) for name, zones in attachable().items()}
    for one in machine_types().values():
        if one.accelerator:
            found.setdefault(one.accelerator, set()).update(one.zones)
    return {name: frozenset(zones) for name, zones in found.items()}


@functools.cache
def zones() -> tuple[str, ...]:
    return tuple(sorted({zone for places in _places().values() for zone in places}))


@functools.cache
def regions() -> tuple[str, ...]:
    return tuple(sorted({region_of(zone) for zone in zones()}))


@functools.cache
def images() -> tuple[Image, ...]:
    return tuple(
        Image(
            row["project"],
            row["family"],
            f"{row['family']}-v20261101",
            row["architecture"],
            int(row["disk_gb"]),
            row["uefi"] == "yes",
        )
        for row in _rows(Path(__file__).with_name("images.csv"))
    )


# -- as resources of the API


def zone_resource(project: str, zone: str) -> dict[str, Any]:
    base = f"{HOST}/projects/{project}"
    return {
        "kind": "compute#zone",
        "id": identity("zone", zone),
        "creationTimestamp": _CREATED,
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": f"{base}/regions/{region_of(zone)}",
        "selfLink": f"{base}/zones/{zone}",
        "supportsPzs": False,
    }


def machine_type_resource(project: str, zone: str, one: MachineType) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": identity("machineType", one.name),
        "creationTimestamp": _CREATED,
        "name": one.name,
        "description": f"{one.vcpus} vCPUs, {one.memory_gb:g} GB RAM",
        "guestCpus": one.vcpus,
        "memoryMb": int(one.memory_gb * 1_024),
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "isSharedCpu": False,
        "architecture": one.architecture,
        "zone": zone,
        "selfLink": f"{HOST}/projects/{project}/zones/{zone}/machineTypes/{one.name}",
    }
    if one.accelerator:
        made["accelerators"] = [{"guestAcceleratorType": one.accelerator, "guestAcceleratorCount": one.count}]
    partitions = next((one.count * each for name, each in _LOCAL_SSDS.items() if one.name.startswith(name)), 0)
    if partitions:
        made["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": partitions}
    return made


def accelerator_resource(project: str, zone: str, name: str) -> dict[str, Any]:
    base = f"{HOST}/projects/{project}/zones/{zone}"
    return {
        "kind": "compute#acceleratorType",
        "id": identity("acceleratorType", name),
        "creationTimestamp": _CREATED,
        "name": name,
        "description": name.replace("-", " ").upper(),
        "maximumCardsPerInstance": 8,
        "zone": base,
        "selfLink": f"{base}/acceleratorTypes/{name}",
    }


def image_resource(one: Image) -> dict[str, Any]:
    features = [{"type": "UEFI_COMPATIBLE"}] if one.uefi else []
    return {
        "kind": "compute#image",
        "id": identity("image", one.name),
        "creationTimestamp": _CREATED,
        "name": one.name,
        "family": one.family,
        "architecture": one.architecture,
        "diskSizeGb": str(one.disk_gb),
        "status": "READY",
        "guestOsFeatures": [{"type": "VIRTIO_SCSI_MULTIQUEUE"}, {"type": "GVNIC"}, *features],
        "selfLink": f"{HOST}/{one.path}",
    }
