"""Cache of a region's zones, subnets and Spot prices, shared by all jobs of a process.

These data do not decide whether a machine runs or is billed. After a refused launch they are queried again: see
forget().
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from ....jobspecs import catalog
from ...base import ProvisionError
from ...shared.poll_cache import PollCache
from ..clients import Clients
from ..errors import translate_errors
from ..resources import network
from . import prices

PLACES_S = 600.0
"""Seconds for which zones and subnets are cached."""
PRICES_S = 60.0
"""Seconds for which Spot prices are cached."""


class RegionCache:
    """Cache of zones, subnets and Spot prices, by region. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._zones: PollCache[str, Mapping[str, str]] = PollCache(self._ask_zones, clients.clock, ttl_s=PLACES_S)
        self._subnets: PollCache[str, list[network.Listed]] = PollCache(
            self._ask_subnets, clients.clock, ttl_s=PLACES_S
        )
        self._prices: PollCache[tuple[str, frozenset[str]], list[prices.SpotPrice]] = PollCache(
            self._ask_prices, clients.clock, ttl_s=PRICES_S
        )

    def zone_ids(self, region: str) -> Mapping[str, str]:
        """Return AZ name -> AZ id. Raises ProvisionError."""
        return self._zones.get(region)

    def subnets(self, region: str) -> list[network.Listed]:
        """Return the region's subnets. Raises ProvisionError."""
        return self._subnets.get(region)

    def spot_prices(self, region: str, machine_types: Iterable[str]) -> list[prices.SpotPrice]:
        """Return the Spot prices of these machine types and of all that the tables list as Spot, so that all jobs share
        one call a minute. Raises ProvisionError."""
        return self._prices.get((region, _sold_as_spot() | frozenset(machine_types)))

    def forget(self, region: str) -> None:
        """Invalidate a region's cached zones and subnets: a launch may have been refused because they changed."""
        self._zones.forget(region)
        self._subnets.forget(region)

    def _ask_zones(self, region: str) -> Mapping[str, str]:
        with translate_errors(f"ask for the zones of {region}", self._clients.clock):
            return prices.zone_ids(self._clients.ec2(region))

    def _ask_subnets(self, region: str) -> list[network.Listed]:
        with translate_errors(f"choose a place in {region}", self._clients.clock):
            return network.list_subnets(self._clients.ec2(region))

    def _ask_prices(self, key: tuple[str, frozenset[str]]) -> list[prices.SpotPrice]:
        region, machine_types = key
        zones, clock = self.zone_ids(region), self._clients.clock
        now = datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)
        with translate_errors(f"ask for Spot prices in {region}", clock):
            try:
                return prices.spot_prices(self._clients.ec2(region), machine_types, zones, now)
            except prices.OddPriceError as error:
                raise ProvisionError("transient", f"Spot prices in {region}: {error}", scope="region") from error


def _sold_as_spot() -> frozenset[str]:
    types = catalog.machine_types("aws")
    return frozenset(name for name, machines in types.items() if any("spot" in machine.markets for machine in machines))
