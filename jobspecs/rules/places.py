"""Rules on places and markets: whether regions and zones exist, and whether machine types are sold there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from .. import catalog
from ..catalog import MachineType
from ..suggest import did_you_mean
from ..targets import info
from .base import Request, Verdict, listing, refresh_command
from .machines import fitting


def place_known(ask: Request) -> Verdict | None:
    """Require a known region for a matching machine type; for a few sizes, providers publish no regions."""
    machines = _sold(ask)
    if not machines or any(map(where, machines)):
        return None
    names = listing(sorted({machine.name for machine in machines}), 3)
    return Verdict(f"the tables name no region that has {names}", refresh_command(ask.cloud))


def region_known(ask: Request) -> Verdict | None:
    """Require a region in which the cloud offers a machine type of the tables."""
    region = ask.region or ""
    if region in catalog.regions(ask.cloud):
        return None
    elsewhere = clouds_with_region(region)
    hint = f"it is a region of {listing(elsewhere)}" if elsewhere else ""
    return Verdict(
        f"{ask.cloud} has no region {region!r} with GPUs", hint or did_you_mean(region, catalog.regions(ask.cloud))
    )


def clouds_with_region(region: str) -> list[str]:
    return [cloud for cloud in catalog.CLOUDS if region in catalog.regions(cloud)]


def zone_known(ask: Request) -> Verdict | None:
    """Require a zone from the cloud's table; for AWS an AZ id, because AZ names differ between accounts."""
    zone = ask.zone or ""
    if zone in catalog.zones(ask.cloud):
        return None
    elsewhere = [cloud for cloud in catalog.CLOUDS if zone in catalog.zones(cloud)]
    hint = f"it is a zone of {listing(elsewhere)}" if elsewhere else zone_hint(zone)
    return Verdict(f"{ask.cloud} has no zone {zone!r} with GPUs", hint or did_you_mean(zone, catalog.zones(ask.cloud)))


def zone_hint(zone: str) -> str:
    """Return the hint for an availability zone's account-specific name, such as us-east-1a; "" for any other text."""
    cloud = next((one for one in catalog.CLOUDS if info(one).zone_ids and zone[:-1] in catalog.regions(one)), None)
    if cloud is None:
        return ""
    ids = sorted(name for name, region in zone_regions(cloud).items() if region == zone[:-1])
    return f"{cloud.upper()} means another zone by that name in each account: write an AZ id, {listing(ids)}"


@cache
def zone_regions(cloud: str) -> Mapping[str, str]:
    """Return the region of each zone in the cloud's tables."""
    return {
        zone: region
        for group in catalog.machine_types(cloud).values()
        for machine in group
        for region, zones in where(machine).items()
        for zone in zones
        if zone in catalog.zones(cloud)
    }


def zone_in_region(ask: Request) -> Verdict | None:
    """Require a zone that is in the requested region."""
    region = zone_regions(ask.cloud).get(ask.zone or "")
    if region is None or region == ask.region:
        return None
    return Verdict(f"{ask.zone} is a zone of {region}, not of {ask.region}", f"region: {region}")


def offered_in_region(ask: Request) -> Verdict | None:
    """Require a matching machine type in the region (providers' lists of regions by machine type)."""
    machines = _sold(ask)
    if not machines or any(ask.region in where(m) for m in machines):
        return None
    return _not_offered(ask.region, "regions", {region for m in machines for region in where(m)})


def offered_in_zone(ask: Request) -> Verdict | None:
    """Require a matching machine type in the zone.

    If only the regions of a machine type are known, all zones of these are accepted.
    """
    machines = _sold(ask)
    home = zone_regions(ask.cloud).get(ask.zone or "", "")
    for machine in machines:
        zones = where(machine).get(home)
        if zones is not None and (not zones or ask.zone in zones):
            return None
    have = {zone for machine in machines for zones in where(machine).values() for zone in zones}
    return _not_offered(ask.zone, "zones", have) if machines else None


def _sold(ask: Request) -> list[MachineType]:
    """Return the matching machine types; if a market is requested, only those sold on it."""
    return [machine for machine in fitting(ask) if ask.market is None or ask.market in machine.markets]


def _not_offered(place: str | None, kind: str, have: set[str]) -> Verdict:
    return Verdict(f"not offered in {place}", f"{kind} that have it: {listing(sorted(have))}" if have else "")


def where(machine: MachineType) -> Mapping[str, tuple[str, ...]]:
    """Return the zones, by region, that offer the machine type; a region has none if the provider chooses the zone."""
    return catalog.places(machine.cloud, machine.name, machine.accelerator)


def market_supported(ask: Request) -> Verdict | None:
    """Require a market on which cloudgpu can buy from the target (table of targets)."""
    target = info(ask.cloud)
    if ask.market in target.markets:
        return None
    return Verdict(
        f"cloudgpu has no market {ask.market!r} on {ask.cloud}", f"market: {listing(sorted(target.markets))}"
    )


def market_sold(ask: Request) -> Verdict | None:
    """Require a machine type that is sold on the market: some are sold by Spot, Flex-start or reservation only."""
    machines = fitting(ask)
    if not machines or any(ask.market in m.markets for m in machines):
        return None
    names = ask.machine_type or listing(sorted({m.name for m in machines}), 3)
    markets = sorted({market for m in machines for market in m.markets})
    return Verdict(f"{names} is not sold as {ask.market}", f"market: {listing(markets)}" if markets else "")
