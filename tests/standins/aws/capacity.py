"""Capacity by machine type, zone and market; vCPU quotas by family, market and region.

Codes, statuses and messages: real traces of InsufficientInstanceCapacity with HTTP 500 (see README.md), and the EC2
user guide's "Troubleshoot instance launch issues"; the short messages for Spot are not verified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from . import moto_side
from .answers import RefusedError

# Service Quotas' codes for "Running On-Demand … instances" and "All … Spot Instance Requests": instance family letters,
# code for on-demand, code for Spot. Values are in vCPUs.
FAMILIES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("a", "c", "d", "h", "i", "m", "r", "t", "z"), "L-1216C47A", "L-34B43A08"),
    (("g", "vt"), "L-DB2E81BA", "L-3819A6DF"),
    (("p",), "L-417A185B", ""),  # Spot: no code for p6 could be verified
    (("p2", "p3", "p4"), "L-417A185B", "L-7212CCBC"),
    (("p5",), "L-417A185B", "L-C4BD4855"),
    (("inf",), "L-1945791B", "L-B5D1601B"),
    (("trn",), "L-2C3B7624", "L-6B0D517C"),
    (("dl",), "L-6E869C2A", "L-85EED4F7"),
)
DEFAULT_QUOTA = 10_000.0


def quota_code(machine_type: str, market: str) -> str:
    """Return the code of the quota that a type's vCPUs count against, or ""."""
    family = machine_type.partition(".")[0]
    named = [(prefix, row) for row in FAMILIES for prefix in row[0] if family.startswith(prefix)]
    if not named:
        return ""
    row = max(named, key=lambda pair: len(pair[0]))[1]
    return row[2] if market == "spot" else row[1]


class Capacity:
    """Capacity and quotas, both counted over running machines."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, str], int] = {}
        self._quotas: dict[tuple[str, str], float] = {}

    def set_places(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        """Limit the number of concurrent machines; None: unlimited."""
        key = (machine_type, zone, market)
        if places is None:
            self._places.pop(key, None)
        else:
            self._places[key] = places

    def set_quota(self, region: str, code: str, value: float) -> None:
        self._quotas[region, code] = value

    def quota(self, region: str, code: str) -> float:
        return self._quotas.get((region, code), DEFAULT_QUOTA)

    def admit(
        self, machine_type: str, *, region: str, zone: str, market: str, least: int, most: int, there: Iterable[Any]
    ) -> int:
        """Return how many machines may be launched beside the existing ones. Raises RefusedError."""
        counts, vcpus = _count(there)
        self._check_offered(region, machine_type, zone)
        self._check_quota(region, machine_type, market, least, vcpus)
        free = self._free(machine_type, zone, market, counts)
        if free >= least:
            return min(most, free)
        others = [
            other
            for other in moto_side.zones_offering(region, machine_type)
            if other != zone and self._free(machine_type, other, market, counts) >= least
        ]
        raise RefusedError("InsufficientInstanceCapacity", _no_capacity(machine_type, zone, market, others), 500)

    def _free(self, machine_type: str, zone: str, market: str, counts: dict[tuple[str, str, str], int]) -> int:
        key = (machine_type, zone, market)
        return self._places.get(key, 1_000_000) - counts[key]

    def _check_offered(self, region: str, machine_type: str, zone: str) -> None:
        zones = moto_side.zones_offering(region, machine_type)
        if zone and zone not in zones and machine_type in moto_side.machine_types():
            raise RefusedError(
                "Unsupported",
                f"Your requested instance type ({machine_type}) is not supported in your requested Availability Zone "
                f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
                f"{', '.join(zones)}.",
            )

    def _check_quota(self, region: str, machine_type: str, market: str, least: int, vcpus: dict[str, int]) -> None:
        code = quota_code(machine_type, market)
        if code and vcpus[code] + least * vcpus_of(machine_type) > (limit := self.quota(region, code)):
            if market == "spot":
                raise RefusedError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            raise RefusedError(
                "VcpuLimitExceeded",
                f"You have requested more vCPU capacity than your current vCPU limit of {limit:.0f} allows for the "
                "instance bucket that the specified instance type belongs to. Please visit "
                "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
            )


def vcpus_of(machine_type: str) -> int:
    """Return a type's vCPUs; 0 for an unknown type, whose launch is refused elsewhere."""
    return int(moto_side.machine_types().get(machine_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 0))


def market_of(instance: Any) -> str:
    """Return the market of a moto instance."""
    return "spot" if instance.lifecycle == "spot" else "on-demand"


def _count(there: Iterable[Any]) -> tuple[dict[tuple[str, str, str], int], dict[str, int]]:
    places: dict[tuple[str, str, str], int] = defaultdict(int)
    vcpus: dict[str, int] = defaultdict(int)
    for instance in there:
        market = market_of(instance)
        places[instance.instance_type, instance.availability_zone, market] += 1
        vcpus[quota_code(instance.instance_type, market)] += vcpus_of(instance.instance_type)
    return places, vcpus


def _no_capacity(machine_type: str, zone: str, market: str, others: list[str]) -> str:
    if market == "spot":
        return "There is no Spot capacity available that matches your request."
    text = (
        f"We currently do not have sufficient {machine_type} capacity in the Availability Zone you requested ({zone}). "
        "Our system will be working on provisioning additional capacity."
    )
    if others:
        text += (
            f" You can currently get {machine_type} capacity by not specifying an Availability Zone in your request "
            f"or choosing {', '.join(others)}."
        )
    return text
