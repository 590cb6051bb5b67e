"""Lists of all zones in one call, with a fallback to the lists of one region.

An aggregated list fails as a whole if a single zone of any region cannot be listed. A launch whose region is known
needs only the lists of this region and its zones.
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
"""Seconds after a failure in which aggregated lists are not tried if the region is known."""

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
    """Return the items of an aggregated list, with a fallback to the lists of the region's zones.

    `region`: "" if unknown, which disables the fallback. Raises ProvisionError.
    """

    def zone_by_zone() -> list[_T]:
        zones = zones_of(clients, region)
        return [one for zone in zones for one in clients.ask(f"{doing} in {zone}", partial(in_zone, zone))]

    return ask_everywhere(clients, doing, everywhere, zone_by_zone if region else None)


def ask_everywhere(clients: Clients, doing: str, everywhere: Callable[[], _T], there: Callable[[], _T] | None) -> _T:
    """Return the result of an aggregated list, with a fallback to `there`, a query of one region with its own
    retries.

    `there`: None if the region is unknown, which disables the fallback. Raises ProvisionError.
    """
    if there is None:
        return clients.ask(doing, everywhere)
    if not is_avoided(clients):
        try:
            return clients.ask(doing, everywhere, AGGREGATED_S)
        except ProvisionError as error:
            avoid(clients, error)
    return there()


def is_avoided(clients: Clients) -> bool:
    """Return True if an aggregated list failed within the last AVOID_S."""
    return clients.clock.monotonic() < clients.listed_by_zone_until


def avoid(clients: Clients, error: ProvisionError) -> None:
    """Record that an aggregated list failed. Raises errors that are not transient: a region's list would fail, too."""
    if error.error_class != "transient":
        raise error
    log.warning("%s; the region is listed instead of all zones", error)
    clients.listed_by_zone_until = clients.clock.monotonic() + AVOID_S
