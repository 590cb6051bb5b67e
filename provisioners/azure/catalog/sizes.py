"""What Azure says of the sizes of machines in a region: zones, restrictions of the subscription, features.

One list of all sizes for each region (Microsoft.Compute/skus), which is some thousand lines long: asked once an hour.
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
"""Seconds for which a region's list is used."""
_VERSION = "2021-07-01"
"""Of the list of SKUs: the one that the SDK asks for, too."""
_ARM = ("p", "pl")
"""What a size's features begin with if its processor is Arm's: `D4ps_v6`, `D4plds_v6`."""
_SLOW = frozenset({"A", "B"})
"""Families with sizes that do not take accelerated networking."""
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Size(NamedTuple):
    """A size in a region, as this subscription may use it."""

    zones: tuple[str, ...]
    """In which it can be had; (): the region has none for it."""
    reason: str
    """Why it cannot be had in the region at all; "": it can."""
    family: str
    vcpus: int
    rdma: bool
    """It has InfiniBand."""
    accelerated: bool
    """It takes accelerated networking."""
    spot: bool = True
    """It is sold as Spot."""


class Sizes:
    """Cache of the sizes of each region. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, region: str, machine_type: str, market: str) -> Size:
        """Raises ProvisionError(not_offered) if the region does not have it, or not for this subscription or market."""
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
    """Why a size cannot be had in its region; "": it can."""
    if size.reason:
        return f"it is not sold to this subscription ({size.reason}), ask for access at the portal, Quotas"
    return "it is not sold as Spot" if market == "spot" and not size.spot else ""


def skus_of(clients: Clients, region: str, doing: str) -> list[Json]:
    """All sizes that a region lists, in wire format: to the SDK's models such a list would take seconds to become.

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
    """From Azure's answer."""
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
    """Whether a size takes accelerated networking, by its name, for those who ask Azure nothing. Source: Azure's
    documentation, "Accelerated Networking overview" (all current sizes, but not each of the A and B series)."""
    return _letters_of(machine_type)[0] not in _SLOW


def architecture_of(machine_type: str) -> str:
    """`x86_64` or `arm64`; that of a size the tables do not know (one without GPU) is read off its name."""
    known = catalog.machine_types("azure").get(machine_type)
    if known:
        return known[0].arch
    return "arm64" if _letters_of(machine_type)[1].startswith(_ARM) else "x86_64"


def _letters_of(machine_type: str) -> tuple[str, str]:
    """Family and features of a size by its name: ("NC", "as") of `Standard_NC4as_T4_v3`."""
    word = machine_type.partition("_")[2].partition("_")[0]
    rest = word.lstrip(_CAPITALS)
    return word.removesuffix(rest), rest.lstrip("0123456789-")


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
