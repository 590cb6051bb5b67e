"""Capacity by size, region, zone and market; quotas by family.

Texts are as quoted by users: AllocationFailed and ZonalAllocationFailed ("Troubleshoot allocation failures"),
SkuNotAvailable ("Resolve errors for SKU not available"), quotas ("Resolve errors for resource quotas"). Tests choose
the kind of capacity error, and whether it comes immediately or from the operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from . import catalog
from .arm import RefusedError
from .operations import FailedError

DEFAULT_LIMIT = 10_000
LOW_PRIORITY = "lowPriorityCores"
REGIONAL = "cores"
HOW = Literal["allocation", "constraints", "sku"]
_GUIDE = (
    "Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance. For more "
    "details, please refer to 'https://aka.ms/azurevmallocationfailure'."
)
_LOCAL = {LOW_PRIORITY: "Total Regional Low-priority vCPUs", REGIONAL: "Total Regional vCPUs"}


@dataclass(frozen=True)
class Shape:
    """Resource needs of a machine."""

    size: catalog.Size
    region: str
    zone: str
    """"": any zone of the region."""
    spot: bool
    reservation: str = ""
    """Id of its capacity reservation."""
    reserved: bool = False
    """True if it uses a place in the reservation."""

    @property
    def market(self) -> str:
        return "spot" if self.spot else "reservation" if self.reserved else "on-demand"


@dataclass
class Places:
    """Maximum number of concurrent machines, and the kind of error beyond it."""

    places: int
    how: HOW = "allocation"


class Capacity:
    """Capacity and quotas, both counted over existing machines."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, str, str], Places] = {}
        self._limits: dict[tuple[str, str], int] = {}

    def set_places(self, place: tuple[str, str, str, str], places: int | None, how: HOW) -> None:
        """Limit the concurrent machines of a `place`: size, region, zone ("": the whole region) and market; None:
        unlimited."""
        key = (place[0].lower(), *place[1:])
        if places is None:
            self._places.pop(key, None)
        else:
            self._places[key] = Places(places, how)

    def set_limit(self, region: str, family: str, limit: int) -> None:
        self._limits[region, family.lower()] = limit

    def limit(self, region: str, family: str) -> int:
        return self._limits.get((region, family.lower()), DEFAULT_LIMIT)

    def check_at_once(self, shape: Shape, there: Iterable[Shape]) -> None:
        """Check quotas, and capacity limits of the kind `sku`. Raises RefusedError."""
        taken = list(there)
        if not shape.reserved:
            self._check_quotas(shape, taken)
        full = self._full(shape, taken)
        if full is not None and full.how == "sku":
            raise not_available(shape)

    def admit(self, shape: Shape, there: Iterable[Shape]) -> str:
        """Check capacity; return the machine's zone or "". Raises FailedError."""
        full = self._full(shape, list(there))
        if full is None:
            return shape.zone
        zone = "Zonal" if shape.zone else ""
        if full.how == "constraints":
            text = (
                "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is "
                "too restrictive. Please remove some constraints and try again. Constraints applied are:\n"
                f"  - {'Availability Zone' if zone else 'Networking Constraints'}\n  - VM Size\n"
            )
            raise FailedError(f"Overconstrained{zone}AllocationRequest", text)
        place = "zone" if zone else "region"
        text = (
            f"Allocation failed. We do not have sufficient capacity for the requested VM size in this {place}. {_GUIDE}"
        )
        raise FailedError(f"{zone}AllocationFailed", text)

    def usages(self, region: str, there: Iterable[Shape]) -> list[dict[str, Any]]:
        """Return a region's usages of Microsoft.Compute."""
        taken = [one for one in there if one.region == region]
        families = sorted({one.family for one in catalog.sizes().values()})
        return [
            {
                "unit": "Count",
                "currentValue": self._used(name, taken),
                "limit": self.limit(region, name),
                "name": {"value": name, "localizedValue": _LOCAL.get(name, f"{name} vCPUs")},
            }
            for name in [REGIONAL, LOW_PRIORITY, *families]
        ]

    def _full(self, shape: Shape, taken: list[Shape]) -> Places | None:
        if shape.reserved:
            return None
        for zone in {shape.zone, ""}:
            found = self._places.get((shape.size.name.lower(), shape.region, zone, shape.market))
            used = sum(
                (one.size.name, one.region, one.market) == (shape.size.name, shape.region, shape.market)
                and zone in ("", one.zone)
                for one in taken
            )
            if found is not None and used >= found.places:
                return found
        return None

    def _check_quotas(self, shape: Shape, taken: list[Shape]) -> None:
        here = [one for one in taken if one.region == shape.region]
        for name in (LOW_PRIORITY,) if shape.spot else (shape.size.family, REGIONAL):
            used, limit = self._used(name, here), self.limit(shape.region, name)
            if used + shape.size.vcpus > limit:
                raise over_quota(shape, name, limit, used)

    def _used(self, name: str, here: list[Shape]) -> int:
        return sum(
            one.size.vcpus
            for one in here
            if (name == LOW_PRIORITY and one.spot)
            or (one.market == "on-demand" and name in (REGIONAL, one.size.family))
        )


def not_available(shape: Shape) -> RefusedError:
    where = f"location '{shape.region}'" + (f" zones '{shape.zone}'" if shape.zone else "")
    text = (
        "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: "
        f"{shape.size.name}' is currently not available in {where}. Please try another size or deploy to a different "
        "location or different zone. See https://aka.ms/azureskunotavailable for details."
    )
    return RefusedError("SkuNotAvailable", 409, text)


def over_quota(shape: Shape, name: str, limit: int, used: int) -> RefusedError:
    result = {LOW_PRIORITY: "LowPriorityCores", REGIONAL: "Total Regional Cores"}.get(name, f"{name} Cores")
    vcpus = shape.size.vcpus
    text = (
        f"Operation could not be completed as it results in exceeding approved {result} quota. Additional details - "
        f"Deployment Model: Resource Manager, Location: {shape.region}, Current Limit: {limit}, Current Usage: {used}, "
        f"Additional Required: {vcpus}, (Minimum) New Limit Required: {used + vcpus}. Setup Alerts when Quota reaches "
        "threshold. Learn more at https://aka.ms/quotamonitoringalerting . Submit a request for Quota increase at "
        "https://aka.ms/ProdportalCRP/#blade/Microsoft_Azure_Capacity/UsageAndQuota.ReactView by specifying parameters "
        "listed in the 'Details' section for deployment to succeed. Please read more about quota limits at "
        "https://docs.microsoft.com/en-us/azure/azure-supportability/per-vm-quota-requests"
    )
    return RefusedError("OperationNotAllowed", 409, text)
