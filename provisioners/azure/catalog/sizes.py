"""VM sizes of a region: zones, restrictions of the subscription, features.

A region's list of all sizes (Microsoft.Compute/skus) has thousands of lines and is queried at most once an hour.
Source: Azure REST API, "Resource Skus - List"; names of capabilities as `az vm list-skus` shows them.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from ....jobspecs import catalog
from ...base import ProvisionError
from ...shared.poll_cache import PollCache
from ..clients import Clients, Json

_TTL_S = 3_600.0
"""Seconds for which a region's list is cached."""
_VERSION = "2021-07-01"
"""API version of the list of SKUs, the same as the SDK's."""
_ARM = ("p", "pl")
"""Prefixes of the features of sizes with Arm processors: `D4ps_v6`, `D4plds_v6`."""
_SLOW = frozenset({"A", "B"})
"""Families with some sizes that do not support accelerated networking."""
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Size(NamedTuple):
    """A VM size in a region, as available to this subscription."""

    zones: tuple[str, ...]
    """Zones that offer it; (): the region has no zones for it."""
    reason: str
    """Reason why the region does not offer it; "": it does."""
    family: str
    vcpus: int
    rdma: bool
    """True if it has InfiniBand."""
    accelerated: bool
    """True if it supports accelerated networking."""
    spot: bool = True
    """True if it is sold as Spot."""


class Sizes:
    """Cache of the sizes of each region. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, region: str, machine_type: str, market: str) -> Size:
        """Return a size. Raises ProvisionError(not_offered) if the region, subscription or market does not offer it."""
        found = self.of_region(region).get(machine_type.lower())
        if found is None or (reason := why_not(found, market)):
            why = f"{region} has no {machine_type}" if found is None else f"{machine_type} in {region}: {reason}"
            message = f"{why}; choose another region, or another machine type"
            raise ProvisionError("not_offered", message, scope="region", code="SkuNotAvailable")
        return found

    def of_region(self, region: str) -> dict[str, Size]:
        """Return the sizes by their names in lower case. Raises ProvisionError."""
        return self._cache.get(region)

    def _ask(self, region: str) -> dict[str, Size]:
        skus = skus_of(self._clients, region, f"look up the sizes of {region}")
        return {str(sku["name"]).lower(): size_of(sku, region) for sku in skus}


def why_not(size: Size, market: str) -> str:
    """Return why a size is not available in its region and market; "": it is available."""
    if size.reason:
        return f"it is not sold to this subscription ({size.reason}), ask for access at the portal, Quotas"
    return "it is not sold as Spot" if market == "spot" and not size.spot else ""


def skus_of(clients: Clients, region: str, doing: str) -> list[Json]:
    """Return all sizes that a region lists, in wire format: parsing to the SDK's models would take seconds.

    Raises ProvisionError.
    """
    where = quote(f"location eq '{region}'")
    url = f"subscriptions/{clients.subscription}/providers/Microsoft.Compute/skus"
    url += f"?api-version={_VERSION}&$filter={where}"
    found: list[Json] = []
    while url:
        page = clients.get(url, doing)
        found += [one for one in page.get("value") or () if one.get("resourceType") == "virtualMachines"]
        url = str(page.get("nextLink") or "")
    return found


def size_of(sku: Json, region: str) -> Size:
    """Parse a size from the API's response."""
    features = {one["name"]: str(one.get("value", "")) for one in sku.get("capabilities") or ()}
    there = [one for one in sku.get("locationInfo") or () if str(one.get("location", "")).lower() == region.lower()]
    closed: set[str] = set()
    reason = ""
    for limit in sku.get("restrictions") or ():
        if limit.get("type") == "Zone":
            closed.update((limit.get("restrictionInfo") or {}).get("zones") or ())
        elif region.lower() in {str(value).lower() for value in limit.get("values") or ()}:
            reason = str(limit.get("reasonCode") or "restricted")
    zones = {str(zone) for one in there for zone in one.get("zones") or ()}
    if zones and zones <= closed:
        reason = reason or "no zone is open to it"
    return Size(
        zones=tuple(sorted(zones - closed)),
        reason=reason,
        family=str(sku.get("family") or ""),
        vcpus=_whole(features.get("vCPUs", "")),
        rdma=features.get("RdmaEnabled") == "True",
        accelerated=features.get("AcceleratedNetworkingEnabled") == "True",
        spot=features.get("LowPriorityCapable") != "False",
    )


def is_accelerated(machine_type: str) -> bool:
    """Return True if a size supports accelerated networking, judged by its name, without a query.

    Source: Azure's documentation, "Accelerated Networking overview" (all current sizes, but not all of the A and B
    series).
    """
    return _letters_of(machine_type)[0] not in _SLOW


def architecture_of(machine_type: str) -> str:
    """Return `x86_64` or `arm64`, from the tables or, for other sizes (without GPU), from the name."""
    known = catalog.machine_types("azure").get(machine_type)
    if known:
        return known[0].arch
    return "arm64" if _letters_of(machine_type)[1].startswith(_ARM) else "x86_64"


def _letters_of(machine_type: str) -> tuple[str, str]:
    """Return family and features in a size's name: ("NC", "as") for `Standard_NC4as_T4_v3`."""
    word = machine_type.partition("_")[2].partition("_")[0]
    rest = word.lstrip(_CAPITALS)
    return word.removesuffix(rest), rest.lstrip("0123456789-")


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
