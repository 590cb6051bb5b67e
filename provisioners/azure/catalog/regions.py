"""Regions of the subscription."""

from __future__ import annotations

from collections.abc import Sequence

from ....jobspecs.suggest import did_you_mean
from ...base import ProvisionError
from ..clients import Clients

_VERSION = "2022-12-01"


def regions_of(clients: Clients) -> list[str]:
    """Return the subscription's regions. Raises ProvisionError."""
    url = f"subscriptions/{clients.subscription}/locations?api-version={_VERSION}"
    found = clients.get(url, "ask for the subscription's regions").get("value") or ()
    return sorted(
        str(item["name"])
        for item in found
        # `asia`, `unitedstates` are groups of regions.
        if (item.get("metadata") or {}).get("regionType", "Physical") == "Physical"
    )


def check_regions(wanted: Sequence[str], there: Sequence[str]) -> None:
    """Raise ProvisionError(invalid) for a region that the subscription does not have."""
    for region in wanted:
        if region not in there:
            meant = did_you_mean(region, there) or f"there are {', '.join(there)}"
            message = f"Azure has no region {region} for this subscription; {meant}"
            raise ProvisionError("invalid", message, scope="region")
