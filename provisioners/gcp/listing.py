"""Lists of all zones in one call; or, where one zone of the world keeps Compute Engine from that, of one region.

An aggregated list fails as a whole when one zone cannot be listed, even a zone of another continent. A launch whose
region is known needs the lists of this region and of its zones only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ..base import ProvisionError
from .clients import READ_S, Clients
from .rest import last_part

log = logging.getLogger("cloudgpu.provisioners.gcp")

AGGREGATED_S = 10.0
"""Seconds for which an aggregated list is retried before the region is listed."""
AVOID_S = 60.0
"""Seconds after a failure for which no aggregated list is tried where a region is known."""

_T = TypeVar("_T")


def zones_of(clients: Clients, region: str) -> list[str]:
    """Return the names of a region's zones. One call. Raises ProvisionError."""
    found = clients.ask(
        f"look for the zones of {region}",
        lambda: clients.regions.get(project=clients.project, region=region, retry=None, timeout=READ_S),
    )
    return sorted(last_part(url) for url in found.zones)


def list_everywhere(
    clients: Clients, doing: str, everywhere: Callable[[], list[_T]], in_zone: Callable[[str], list[_T]], region: str
) -> list[_T]:
    """Return what an aggregated list holds; if it fails, what the lists of the region's zones hold. `region`: "" if it
    is not known: then only the aggregated list will do. Raises ProvisionError."""

    def zone_by_zone() -> list[_T]:
        zones = zones_of(clients, region)
        return [one for zone in zones for one in clients.ask(f"{doing} in {zone}", partial(in_zone, zone))]

    return ask_everywhere(clients, doing, everywhere, zone_by_zone if region else None)


def ask_everywhere(clients: Clients, doing: str, everywhere: Callable[[], _T], there: Callable[[], _T] | None) -> _T:
    """Return the answer of an aggregated list; if it fails, that of `there`, which asks one region only and retries by
    itself. `there`: None if the region is not known. Raises ProvisionError."""
    if there is None:
        return clients.ask(doing, everywhere)
    if not is_avoided(clients):
        try:
            return clients.ask(doing, everywhere, AGGREGATED_S)
        except ProvisionError as error:
            avoid(clients, error)
    return there()


def is_avoided(clients: Clients) -> bool:
    """Return whether an aggregated list has failed within the last AVOID_S."""
    return clients.clock.monotonic() < clients.listed_by_zone_until


def avoid(clients: Clients, error: ProvisionError) -> None:
    """Note that an aggregated list has failed. Raises the error if the lists of a region would be refused as well."""
    if error.error_class != "transient":
        raise error
    log.warning("%s; the region is listed instead of all zones", error)
    clients.listed_by_zone_until = clients.clock.monotonic() + AVOID_S
