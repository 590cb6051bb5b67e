"""Capacity by machine type, zone and market; quotas by metric; reservations.

The error of an exhausted zone is taken from a real operation of 2026 (kubernetes/k8s.io#9834); quota errors are as
quoted by users (QUOTA_EXCEEDED with quotaInfo); errors of a used-up reservation are not verified.
"""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..gcp.project import PROJECT
from . import catalog
from .operations import FailedError

DEFAULT_LIMIT = 10_000.0
GLOBAL = "global"
_UNREPORTED = frozenset(f"PREEMPTIBLE_NVIDIA_{model}_GPUS" for model in ("H100_MEGA", "H200", "B200", "RTX_PRO_6000"))
"""Metrics that regions do not report (no values of Quota.metric); the Cloud Quotas API does."""
_HELP = {
    "help": {
        "links": [
            {
                "description": "Troubleshooting documentation",
                "url": "https://cloud.google.com/compute/docs/resource-error",
            }
        ]
    }
}


@dataclass(frozen=True)
class Shape:
    """Resource needs of an instance."""

    machine_type: str
    zone: str
    market: str
    """`on-demand`, `spot`, `flex-start` or `reservation`."""
    accelerator: str
    count: int
    vcpus: int

    @property
    def region(self) -> str:
        return catalog.region_of(self.zone)


@functools.cache
def _metrics() -> Mapping[str, Mapping[str, str]]:
    with Path(__file__).with_name("quotas.csv").open(newline="") as file:
        return {row["accelerator"]: row for row in csv.DictReader(file)}


class Capacity:
    """Capacity and quotas, both counted over existing instances."""

    def __init__(self) -> None:
        self.refusals: dict[str, FailedError] = {}
        """Zone -> error with which the next instance there fails."""
        self._places: dict[tuple[str, str, str], int] = {}
        self._limits: dict[tuple[str, str, str], float] = {}

    def set_places(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        """Limit the number of concurrent machines; None: unlimited."""
        key = (machine_type, zone, market)
        if places is None:
            self._places.pop(key, None)
        else:
            self._places[key] = places

    def set_limit(self, region: str, metric: str, limit: float, family: str = "") -> None:
        """Set a quota. `region` may be `global`; `family` is the dimension gpu_family."""
        self._limits[region, metric, family] = limit

    def limit(self, region: str, metric: str, family: str = "") -> float:
        return self._limits.get((region, metric, family), DEFAULT_LIMIT)

    def admit(self, shape: Shape, there: Iterable[Shape]) -> None:
        """Check capacity and quotas for a new instance beside the existing ones. Raises FailedError."""
        if shape.zone in self.refusals:
            raise self.refusals.pop(shape.zone)
        taken = list(there)
        self._check_quotas(shape, taken)
        if shape.market == "reservation" or self._free(shape, shape.zone, taken):
            return
        others = [zone for zone in _zones_of(shape) if zone != shape.zone and self._free(shape, zone, taken)]
        raise _exhausted(shape, others)

    def usage(self, region: str, there: Iterable[Shape]) -> list[dict[str, Any]]:
        """Return a region's quotas as in regions.get, or the project's for `global`."""
        used: dict[str, float] = defaultdict(float)
        named = {metric for place, metric, family in self._limits if place == region and not family}
        for shape in there:
            for place, metric, family, amount in _counted(shape):
                if place == region and not family:
                    used[metric] += amount
        if region == GLOBAL:
            known = {"GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS"}
        else:
            rows = _metrics().values()
            known = {row[column] for row in rows if not row["family"] for column in ("metric", "preemptible")}
            known |= {row["preemptible"] for row in rows if row["preemptible"]} | {"CPUS", "PREEMPTIBLE_CPUS"}
        return [
            {"metric": metric, "limit": self.limit(region, metric), "usage": used[metric]}
            for metric in sorted((known | named) - _UNREPORTED)
        ]

    def _free(self, shape: Shape, zone: str, taken: list[Shape]) -> bool:
        key = (shape.machine_type, zone, shape.market)
        used = sum((one.machine_type, one.zone, one.market) == key for one in taken)
        return used < self._places.get(key, 1_000_000)

    def _check_quotas(self, shape: Shape, taken: list[Shape]) -> None:
        used: dict[tuple[str, str, str], float] = defaultdict(float)
        for one in taken:
            for place, metric, family, amount in _counted(one):
                used[place, metric, family] += amount
        for place, metric, family, amount in _counted(shape):
            if used[place, metric, family] + amount > (limit := self.limit(place, metric, family)):
                raise _over_quota(place, metric, family, limit)


def _counted(shape: Shape) -> Iterator[tuple[str, str, str, float]]:
    """Yield region, metric, GPU family and amount of each quota that the shape counts against."""
    cheap = shape.market in ("spot", "flex-start")
    if shape.machine_type.startswith("n1-"):
        yield shape.region, "PREEMPTIBLE_CPUS" if cheap else "CPUS", "", float(shape.vcpus)
    row = _metrics().get(shape.accelerator)
    if row is None:
        return
    amount = float(shape.count)
    if cheap and row["preemptible"]:
        yield shape.region, row["preemptible"], "", amount
    else:
        yield shape.region, row["metric"], row["family"], amount
    if not cheap:
        yield GLOBAL, "GPUS_ALL_REGIONS", "", amount


def _zones_of(shape: Shape) -> list[str]:
    """Return the zones of its region that offer such a machine."""
    zones = catalog.machine_types()[shape.machine_type].zones
    if shape.accelerator in catalog.attachable() and not catalog.machine_types()[shape.machine_type].accelerator:
        zones &= catalog.attachable()[shape.accelerator]
    return sorted(zone for zone in zones if catalog.region_of(zone) == shape.region)


def _exhausted(shape: Shape, others: list[str]) -> FailedError:
    project_zone = f"projects/{PROJECT}/zones/{shape.zone}"
    attachment = f"{shape.accelerator}:{shape.count}" if shape.accelerator else ""
    what = f"A {shape.machine_type} VM instance" + (
        f" with {shape.count} {shape.accelerator} accelerator(s)" if attachment else ""
    )
    text = f"{what} is currently unavailable in the {shape.zone} zone."
    if others:
        text += (
            f" Consider trying your request in the {', '.join(others)} zone(s), which currently has capacity to "
            "accommodate your request."
        )
    text += (
        " Alternatively, you can try your request again with a different VM hardware configuration or at a later time."
    )
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": {
            "zone": shape.zone,
            "vmType": shape.machine_type,
            "attachment": attachment,
            "zonesAvailable": ",".join(others),
        },
    }
    details: list[dict[str, Any]] = [
        _HELP,
        {"localizedMessage": {"locale": "en-US", "message": text}},
        {"errorInfo": info},
    ]
    message = (
        f"The zone '{project_zone}' does not have enough resources available to fulfill the request.  "
        "'(resource type:compute)'."
    )
    return FailedError("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503, message, details)


def _over_quota(place: str, metric: str, family: str, limit: float) -> FailedError:
    where = "globally" if place == GLOBAL else f"in region {place}"
    dimensions = {"gpu_family": family} if family else {}
    if place != GLOBAL:
        dimensions["region"] = place
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-per-project{'' if place == GLOBAL else '-region'}",
        "dimensions": dimensions,
        "limit": limit,
    }
    message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}."
    return FailedError("QUOTA_EXCEEDED", 403, message, [{"quotaInfo": info}])
