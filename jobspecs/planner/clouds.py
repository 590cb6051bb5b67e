"""Plan offers of one cloud: every market, region and zone in which all roles of a job can run together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import NamedTuple

from .. import catalog
from ..catalog import Price
from ..diagnostics import Loc
from ..models import JobSpec
from ..plan import Offer, Refusal, RoleOffer
from ..rules.base import listing
from ..rules.compatibility import Request, first_refusal, refusal_by
from ..rules.machines import within_limits
from ..rules.places import zone_regions
from ..targets import info
from .notes import notes_on
from .options import Option, options_for
from .prices import Quote, Total, disks_price, quote, total_price
from .ranking import Ranked, rank
from .search import Choice, best_ways

MAX_WAYS = 16
"""Maximum number of ways offered per place and market for a job with several roles, best first."""

Way = tuple[Option, ...]
"""One option for each role."""


class _Priced(NamedTuple):
    """Way with its price in a region and market; the offers made from it differ only by zone."""

    way: Way
    roles: tuple[RoleOffer, ...]
    total: Total
    notes: tuple[str, ...]


class CloudPlanner:
    """Planner of one job on one cloud with tables. `order` is the cloud's index in the user's list."""

    def __init__(self, spec: JobSpec, cloud: str, order: int, today: str) -> None:
        self._spec = spec
        self._cloud = cloud
        self._order = order
        self._today = today
        self._roles = spec.effective_roles()
        self._nodes = [role.nodes for role in self._roles.values()]
        self._zoned = info(cloud).zones
        self._refusals: list[Refusal] = []
        self._quotes: dict[tuple[Option, str, str], Quote] = {}

    def plan(self) -> tuple[list[Ranked], list[Refusal]]:
        """Return unsorted offers, and refusals."""
        found = options_for(self._spec, self._cloud, self._today)
        self._refusals += found.refusals
        regions = self._regions()
        if not all(found.options) or (regions is not None and not regions):
            return [], self._refusals
        self._refuse_places(found.options, regions)
        offers: list[Ranked] = []
        for order, market in enumerate(self._spec.resources.market):
            if not self._holds("market-supported", market=market):
                continue
            sold = [self._sold(options, market) for options in found.options]
            if all(sold):
                offers += self._in_market(sold, market, order, regions)
        return offers, self._refusals

    def _regions(self) -> list[str] | None:
        """Return the requested regions that the cloud has, in the user's order; None: any region.

        Records a refusal for each other requested region or zone.
        """
        asked, zones = self._spec.resources.region, self._spec.resources.zone
        regions = None if asked is None else [name for name in asked if self._holds("region-known", region=name)]
        if zones is None:
            return regions
        homes = zone_regions(self._cloud)
        found = dict.fromkeys(homes[name] for name in zones if self._holds("zone-known", zone=name))
        return [region for region in found if regions is None or region in regions]

    def _holds(self, rule: str, **field: str) -> bool:
        """Return whether a rule allows one name (`field`: name=value of a Request); record the refusal if not."""
        refusal = refusal_by(rule, Request(self._cloud, self._today, **field))  # type: ignore[arg-type]
        if refusal is not None:
            self._refuse(refusal, field)
        return refusal is None

    def _refuse(self, refusal: Refusal, field: dict[str, str]) -> None:
        """Record a refusal at the key of the entry of `region`, `zone` or `market` that it is about.

        A region that is only implied by a zone has the key of `zone`.
        """
        ((name, value),) = field.items()
        entries = getattr(self._spec.resources, name) or []
        key: Loc = ("resources", name, entries.index(value)) if value in entries else ("resources", "zone")
        self._refusals.append(refusal._replace(key=key))

    # --- refusals --------------------------------------------------------------------------------------------------

    def _sold(self, options: Sequence[Option], market: str) -> list[Option]:
        for _, refusal in _explain(options, {"market": market}):
            self._refuse(refusal, {"market": market})
        return [option for option in options if market in option.machine.markets and option.places]

    def _refuse_places(self, roles: Sequence[Sequence[Option]], regions: list[str] | None) -> None:
        """Record refusals for each requested place in which a role's options are not offered.

        For a job with one role, they contain the lowest price in other places.
        """
        places: list[dict[str, str]] = [{"region": region} for region in regions or ()]
        places += [{"zone": zone} for zone in self._spec.resources.zone or () if zone in catalog.zones(self._cloud)]
        for place, options in product(places, roles):
            for meant, refusal in _explain(options, place):
                everywhere = {region for option in meant for region in option.places}
                lowest = self._lowest([meant], everywhere) if len(roles) == 1 else None
                self._refuse(refusal if lowest is None else _elsewhere(refusal, lowest), place)

    def _refuse_market_in(self, roles: Sequence[Sequence[Option]], place: dict[str, str], market: str) -> None:
        """Record a refusal for each role that has machines in a requested place, but none on this market there."""
        for options in roles:
            for meant, refusal in _explain(options, {**place, "market": market}):
                if any(first_refusal(option.ask._replace(**place)) is None for option in meant):  # type: ignore[arg-type]
                    self._refuse(refusal, {"market": market})

    def _refuse_apart(self, roles: Sequence[Sequence[Option]], regions: list[str], market: str) -> None:
        """Record the refusal that no zone of these regions has machines for all roles (without regions: no region)."""
        names = [
            listing(list(map(str, role.accelerator))) or role.machine_type or "no GPU" for role in self._roles.values()
        ]
        where = f"{listing(regions)}: every role can run there, but not all" if regions else "the roles cannot run"
        self._refusals.append(
            Refusal(
                "one-zone",
                self._cloud,
                f"{self._cloud} {' and '.join(names)}, {market}",
                f"{where} in the same {'zone' if regions else 'region'}",
                "another region, or other accelerators" if regions else "other accelerators",
                self._lowest(roles, regions),
                ("resources",) if self._spec.roles is None else ("roles",),
            )
        )

    def _lowest(self, roles: Sequence[Sequence[Option]], regions: Iterable[str]) -> Decimal | None:
        """Return the lowest known price of the whole job in these regions, in US dollars per hour.

        It ignores that all roles must be in one zone. None if no price is known.
        """
        found = []
        for region, market in product(regions, self._spec.resources.market):
            there = [[option for option in options if region in option.places] for options in roles]
            if all(there):
                way = tuple(min(o, key=lambda one: self._cost_key(one, region, market)) for o in there)
                found.append(self._total(way, region, market))
        return min((total.price for total in found if total.price is not None and not total.at_most), default=None)

    # --- places ----------------------------------------------------------------------------------------------------

    def _in_market(
        self, roles: Sequence[Sequence[Option]], market: str, order: int, regions: list[str] | None
    ) -> Iterator[Ranked]:
        apart: list[str] = []
        common = set.intersection(*({region for option in options for region in option.places} for options in roles))
        if not common and len(roles) > 1:
            self._refuse_apart(roles, [], market)
        for region_order, region in enumerate(sorted(common) if regions is None else regions):
            if region not in common:
                self._refuse_market_in(roles, {"region": region}, market)
                continue
            there = [[option for option in options if region in option.places] for options in roles]
            found = list(self._in_region(there, region, market))
            if not found and self._spec.resources.zone is None:
                apart.append(region)
            for asked in self._spec.resources.zone or ():
                if zone_regions(self._cloud).get(asked) == region and asked not in {zone for zone, _ in found}:
                    self._refuse_market_in(roles, {"zone": asked}, market)
            for zone, priced in found:
                yield rank(
                    self._offer(priced, region, zone, market),
                    preferences=[option.preference for option in priced.way],
                    market=order,
                    cloud=self._order,
                    region=0 if regions is None else region_order,
                    zone=self._zone_order(zone),
                )
        if apart:
            self._refuse_apart(roles, apart, market)

    def _in_region(
        self, roles: Sequence[Sequence[Option]], region: str, market: str
    ) -> Iterator[tuple[str | None, _Priced]]:
        """Yield (zone, way) for each zone of the region that can run all roles; None: the provider chooses the zone."""
        seen: dict[tuple[Way, ...], list[_Priced]] = {}
        once: dict[Way, _Priced] = {}
        for zone in self._zones(roles, region):
            there = tuple(tuple(o for o in options if _runs_in(o, region, zone)) for options in roles)
            if there not in seen:
                seen[there] = list(self._ways(there, region, market))
            for priced in seen[there]:
                if zone is not None and self._spec.resources.zone is None and not _lists_zone(priced.way, region, zone):
                    continue  # no zone is known for this way: it is offered in the region as a whole
                if self._zoned:
                    yield zone, priced
                else:
                    once.setdefault(priced.way, priced)
        for priced in once.values():
            yield None, priced

    def _zones(self, roles: Sequence[Sequence[Option]], region: str) -> list[str | None]:
        """Return the zones to try; None means options whose zones in the region are unknown."""
        known = {zone for options in roles for option in options for zone in option.zones.get(region, ())}
        unknown = any(not option.zones.get(region) for options in roles for option in options)
        if self._spec.resources.zone is None:
            return [*sorted(known), *([None] if unknown else [])]
        homes = zone_regions(self._cloud)
        return [z for z in self._spec.resources.zone if z in known or (unknown and homes.get(z) == region)]

    def _zone_order(self, zone: str | None) -> int:
        asked = self._spec.resources.zone
        return asked.index(zone) if asked and zone else 0

    # --- machines and prices ---------------------------------------------------------------------------------------

    def _ways(self, roles: tuple[Way, ...], region: str, market: str) -> Iterator[_Priced]:
        """Yield the ways to offer: for one role, the cheapest option of each kind; for more, the best combinations."""
        choices = [self._cheapest(options, region, market) for options in roles]
        ways = product(*choices) if len(choices) == 1 else self._combined(choices, region, market)
        for way in ways:
            yield self._priced(way, region, market)

    def _combined(self, roles: Sequence[Sequence[Option]], region: str, market: str) -> Iterable[Way]:
        """Return the best MAX_WAYS ways, the best MAX_WAYS within the job's price limits, and the cheapest way.

        Ways above limits.price are refused later, with their price.
        """
        choices = [
            [Choice(one.preference, self._quote(one, region, market).key(nodes), one) for one in role]
            for role, nodes in zip(roles, self._nodes, strict=True)
        ]
        ways = best_ways(choices, MAX_WAYS)
        most = self._most_for_machines(region)
        if most is not None:
            ways += best_ways(choices, MAX_WAYS, most)
        if all(choices):
            ways.append(tuple(min(options, key=lambda o: self._cost_key(o, region, market)) for options in roles))
        return dict.fromkeys(ways)

    def _most_for_machines(self, region: str) -> Decimal | None:
        """Return the maximum price of all machines, without disks, within limits.price; None: no limit.

        With limits.cost alone it is infinite, because that limit only requires a known price.
        """
        limits = self._spec.limits
        if limits.price is None:
            return None if limits.cost is None else Decimal("Infinity")
        disks = disks_price(sum(self._nodes), *self._disk(region))
        return None if disks is None else limits.price - disks

    def _cheapest(self, options: Way, region: str, market: str) -> list[Option]:
        best: dict[object, tuple[tuple[object, ...], Option]] = {}
        for option in options:
            key = self._cost_key(option, region, market)
            if option.kind not in best or key < best[option.kind][0]:
                best[option.kind] = key, option
        return [option for _, option in best.values()]

    def _cost_key(self, option: Option, region: str, market: str) -> tuple[object, ...]:
        """Return the sort key of an option: by price, unknown prices last, then by machine size and name."""
        machine = option.machine
        price = self._quote(option, region, market).key()
        return (price, machine.vcpus or 0, machine.memory_gb or 0.0, machine.name)

    def _quote(self, option: Option, region: str, market: str) -> Quote:
        key = (option, region, market)
        if key not in self._quotes:
            self._quotes[key] = quote(option.machine, option.gpus, region, market)
        return self._quotes[key]

    def _priced(self, way: Way, region: str, market: str) -> _Priced:
        total = self._total(way, region, market)
        roles = tuple(
            _role_offer(name, role.nodes, option, self._quote(option, region, market).price)
            for (name, role), option in zip(self._roles.items(), way, strict=True)
        )
        return _Priced(way, roles, total, notes_on(way, total, market, self._spec, self._today))

    def _total(self, way: Way, region: str, market: str) -> Total:
        """Return the price of all machines, GPUs and disks of a way."""
        machines = [self._quote(option, region, market) for option in way]
        return total_price(machines, self._nodes, *self._disk(region))

    def _disk(self, region: str) -> tuple[float, Price | None]:
        """Return the billed size of a machine's disk in GB, and the price per GB and hour."""
        disk_gb = catalog.billed_disk_gb(self._cloud, self._spec.resources.disk)
        return disk_gb, catalog.disk_price(self._cloud, region)

    def _offer(self, priced: _Priced, region: str, zone: str | None, market: str) -> Offer:
        return Offer(
            cloud=self._cloud,
            region=region,
            zone=zone,
            market=market,
            roles=priced.roles,
            disk_gb=self._spec.resources.disk,
            disk_price=priced.total.disks,
            price=priced.total.price,
            price_date=priced.total.date,
            notes=priced.notes,
            price_at_most=priced.total.at_most,
            price_from=priced.total.least,
        )


def _explain(options: Sequence[Option], fields: dict[str, str]) -> Iterator[tuple[list[Option], Refusal]]:
    """Yield (options, refusal) for each preference whose requests are all refused with these fields added.

    fields  fields of Request to set: region, zone or market
    """
    for preference in dict.fromkeys(option.preference for option in options):
        meant = [option for option in options if option.preference == preference]
        asks = dict.fromkeys(option.ask for option in meant)
        refusals = [first_refusal(ask._replace(**fields)) for ask in asks]  # type: ignore[arg-type]
        if all(refusals):
            yield from ((meant, refusal) for refusal in refusals if refusal is not None)


def _elsewhere(refusal: Refusal, lowest: Decimal) -> Refusal:
    return refusal._replace(allowed=f"{refusal.allowed}, from {lowest:.4f} USD/h", price=lowest)


def _role_offer(name: str, nodes: int, option: Option, price: Price | None) -> RoleOffer:
    machine = option.machine
    return RoleOffer(
        role=name,
        nodes=nodes,
        machine_type=machine.name,
        accelerator=machine.accelerator,
        count=option.gpus,
        vcpus=machine.vcpus,
        memory_gb=machine.memory_gb,
        price=None if price is None else price.amount,
    )


def _lists_zone(way: Way, region: str, zone: str) -> bool:
    """Return whether the tables list the zone for at least one of the way's options."""
    return any(zone in option.zones.get(region, ()) for option in way)


def _runs_in(option: Option, region: str, zone: str | None) -> bool:
    """Return whether the option can run in the zone; True if its zones are unknown."""
    zones = option.zones.get(region)
    if not zones:
        return True
    return zone in zones and (not option.attached or within_limits(option.machine, option.gpus, zone))
