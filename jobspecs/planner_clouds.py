"""Offers of one cloud: every market, region and zone in which all roles of a job can run together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from . import catalog
from .catalog import Price
from .compatibility import Ask, first_refusal
from .models import JobSpec
from .plan import Offer, Refusal, RoleOffer
from .planner_notes import notes_on
from .planner_options import Option, options_for
from .planner_ranking import Ranked, rank
from .rules_base import listing
from .rules_machines import within_limits
from .rules_places import is_offered, region_known, where, zone_known, zone_regions

_MICRO = Decimal("0.000001")
MOST_PER_ROLE = 6
"""Of several roles' choices in a place, so many of each are combined, the cheapest always among them."""

Way = tuple[Option, ...]
"""One option for each role."""


class _Priced(NamedTuple):
    """A way in a region and market, ready to be offered in any of its zones."""

    way: Way
    roles: tuple[RoleOffer, ...]
    price: Decimal | None
    disk_price: Decimal | None
    date: str | None
    notes: tuple[str, ...]


class CloudPlanner:
    """Plans one job on one cloud with tables. `order` is the cloud's place in the user's list."""

    def __init__(self, spec: JobSpec, cloud: str, order: int, today: str) -> None:
        self._spec = spec
        self._cloud = cloud
        self._order = order
        self._today = today
        self._roles = spec.effective_roles()
        self._zoned = catalog.targets()[cloud].zones
        self._refusals: list[Refusal] = []
        self._prices: dict[tuple[str, str | None, Fraction, str, str], Price | None] = {}

    def plan(self) -> tuple[list[Ranked], list[Refusal]]:
        """Offers (not yet in order) and refusals."""
        found = options_for(self._roles.values(), self._cloud, self._today)
        self._refusals += found.refusals
        regions = self._regions()
        if not all(found.options) or (regions is not None and not regions):
            return [], self._refusals
        self._refuse_places(found.options, regions)
        offers: list[Ranked] = []
        for order, market in enumerate(self._spec.resources.market):
            sold = [list(self._sold(options, market)) for options in found.options]
            if all(sold):
                offers += self._in_market(sold, market, order, regions)
        return offers, self._refusals

    def _regions(self) -> list[str] | None:
        """The regions asked for that the cloud has, in the user's order; None: any. The others are refused."""
        asked, zones = self._spec.resources.region, self._spec.resources.zone
        if asked is not None:
            asked = tuple(self._known("region-known", asked))
        if zones is None:
            return None if asked is None else list(asked)
        homes = [zone_regions(self._cloud)[zone] for zone in self._known("zone-known", zones)]
        return [region for region in dict.fromkeys(homes) if asked is None or region in asked]

    def _known(self, rule: str, names: Iterable[str]) -> Iterator[str]:
        """The names of places which the cloud has; one refusal for each of the others."""
        for name in names:
            ask = Ask(self._cloud, self._today)
            if rule == "region-known":
                verdict = region_known(ask._replace(region=name))
            else:
                verdict = zone_known(ask._replace(zone=name))
            if verdict is None:
                yield name
            else:
                self._refusals.append(Refusal(rule, self._cloud, f"{self._cloud} {name}", *verdict))

    def _refuse_places(self, roles: Sequence[Sequence[Option]], regions: list[str] | None) -> None:
        """Say of each place asked for by name what is not offered there."""
        places: list[dict[str, str]] = [{"region": region} for region in regions or ()]
        places += [{"zone": zone} for zone in self._spec.resources.zone or () if zone in catalog.zones(self._cloud)]
        for place in places:
            for options in roles:
                self._explain(options, place)

    def _explain(self, options: Sequence[Option], fields: dict[str, str]) -> None:
        """Refuse each preference none of whose asks can have these fields too."""
        for preference in dict.fromkeys(option.preference for option in options):
            asks = dict.fromkeys(option.ask for option in options if option.preference == preference)
            refusals = [first_refusal(ask._replace(**fields)) for ask in asks]  # type: ignore[arg-type]
            if all(refusals):
                self._refusals += filter(None, refusals)

    def _sold(self, options: Sequence[Option], market: str) -> Iterator[Option]:
        self._explain(options, {"market": market})
        if market in catalog.targets()[self._cloud].markets:
            yield from (option for option in options if market in option.machine.markets)

    # --- places ----------------------------------------------------------------------------------------------------

    def _in_market(
        self, roles: Sequence[Sequence[Option]], market: str, order: int, regions: list[str] | None
    ) -> Iterator[Ranked]:
        apart: list[str] = []
        everywhere = sorted({region for options in roles for option in options for region in where(option.machine)})
        for region_order, region in enumerate(everywhere if regions is None else regions):
            there = [[option for option in options if is_offered(option.machine, region, None)] for options in roles]
            if not all(there):
                continue
            found = list(self._in_region(there, region, market))
            if not found and self._spec.resources.zone is None:
                apart.append(region)
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
            self._refuse_apart(apart, market)

    def _in_region(
        self, roles: Sequence[Sequence[Option]], region: str, market: str
    ) -> Iterator[tuple[str | None, _Priced]]:
        """Every way in every zone of the region where all roles can run; zone None: the provider chooses it."""
        seen: dict[tuple[Way, ...], list[_Priced]] = {}
        once: dict[Way, _Priced] = {}
        for zone in self._zones(roles, region):
            there = tuple(tuple(o for o in options if _runs_in(o, region, zone)) for options in roles)
            if there not in seen:
                seen[there] = list(self._ways(there, region, market))
            for priced in seen[there]:
                if zone is not None and not any(zone in _zones_of(option, region) for option in priced.way):
                    continue  # nothing is known of any of its zones: it is offered in the region as such
                if self._zoned:
                    yield zone, priced
                else:
                    once.setdefault(priced.way, priced)
        for priced in once.values():
            yield None, priced

    def _zones(self, roles: Sequence[Sequence[Option]], region: str) -> list[str | None]:
        """The zones to look at; None among them: where no zone is known."""
        known = {zone for options in roles for option in options for zone in _zones_of(option, region)}
        asked = self._spec.resources.zone
        if asked is not None:
            return [zone for zone in asked if zone in known]
        unknown = any(not _zones_of(option, region) for options in roles for option in options)
        return [*sorted(known), *([None] if unknown else [])]

    def _zone_order(self, zone: str | None) -> int:
        asked = self._spec.resources.zone
        return asked.index(zone) if asked and zone else 0

    def _refuse_apart(self, regions: list[str], market: str) -> None:
        names = [
            ", ".join(map(str, role.accelerator)) or role.machine_type or "no GPU" for role in self._roles.values()
        ]
        subject = f"{self._cloud} {' and '.join(names)}, {market}"
        message = f"{listing(regions)}: every role can run there, but not in the same zone"
        self._refusals.append(
            Refusal("one-zone", self._cloud, subject, message, "another region, or other accelerators")
        )

    # --- machines and prices ---------------------------------------------------------------------------------------

    def _ways(self, roles: tuple[Way, ...], region: str, market: str) -> Iterator[_Priced]:
        """Of each kind of option the cheapest, combined over the roles."""
        choices = [self._cheapest(options, region, market) for options in roles]
        if len(choices) > 1:
            choices = [self._shortlist(options, region, market) for options in choices]
        for way in product(*choices):
            yield self._priced(way, region, market)

    def _cheapest(self, options: Way, region: str, market: str) -> list[Option]:
        best: dict[object, tuple[tuple[object, ...], Option]] = {}
        for option in options:
            key = self._cost_key(option, region, market)
            if option.kind not in best or key < best[option.kind][0]:
                best[option.kind] = key, option
        return [option for _, option in best.values()]

    def _shortlist(self, options: Sequence[Option], region: str, market: str) -> list[Option]:
        """The first few by preference and price, and the cheapest of all: some combination then meets every cap."""
        ordered = sorted(options, key=lambda o: (o.preference, self._cost_key(o, region, market)))
        cheapest = min(ordered, key=lambda o: self._cost_key(o, region, market), default=None)
        kept = ordered[:MOST_PER_ROLE]
        return kept if cheapest is None or cheapest in kept else [*kept, cheapest]

    def _cost_key(self, option: Option, region: str, market: str) -> tuple[object, ...]:
        """Unknown prices after known ones; among those the smaller machine first."""
        price = self._price(option, region, market)
        machine = option.machine
        amount = Decimal(0) if price is None else price.amount
        return (price is None, amount, machine.vcpus or 0, machine.memory_gb or 0.0, machine.name)

    def _price(self, option: Option, region: str, market: str) -> Price | None:
        machine = option.machine
        key = (machine.name, machine.accelerator, option.gpus, region, market)
        if key not in self._prices:
            self._prices[key] = catalog.price(self._cloud, *key)
        return self._prices[key]

    def _priced(self, way: Way, region: str, market: str) -> _Priced:
        prices = [self._price(option, region, market) for option in way]
        nodes = [role.nodes for role in self._roles.values()]
        disk = catalog.disk_price(self._cloud, region)
        disk_price = None
        if disk is not None:
            disk_price = (disk.amount * Decimal(str(self._spec.resources.disk)) * sum(nodes)).quantize(_MICRO)
        total = disk_price
        for price, count in zip(prices, nodes, strict=True):
            total = None if total is None or price is None else total + (price.amount * count).quantize(_MICRO)
        known = [price for price in (*prices, disk) if price is not None]
        return _Priced(
            way,
            tuple(
                _role_offer(name, role.nodes, option, price)
                for (name, role), option, price in zip(self._roles.items(), way, prices, strict=True)
            ),
            total,
            disk_price,
            min((price.date for price in known), default=None) if total is not None else None,
            notes_on(way, prices, market, self._spec, self._today),
        )

    def _offer(self, priced: _Priced, region: str, zone: str | None, market: str) -> Offer:
        return Offer(
            cloud=self._cloud,
            region=region,
            zone=zone,
            market=market,
            roles=priced.roles,
            disk_gb=self._spec.resources.disk,
            disk_price=priced.disk_price,
            price=priced.price,
            price_date=priced.date,
            notes=priced.notes,
        )


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


def _zones_of(option: Option, region: str) -> tuple[str, ...]:
    """Zones of the region where the option can run. Vertex AI takes no zone, but runs on Compute Engine's machines."""
    machine = option.machine
    cloud = "gcp" if machine.cloud == "vertex" else machine.cloud
    return catalog.places(cloud, machine.name, machine.accelerator).get(region, ())


def _runs_in(option: Option, region: str, zone: str | None) -> bool:
    """Whether the option can run in the zone; where its zones are not known, the tables do not speak against it."""
    zones = _zones_of(option, region)
    return not zones or (zone in zones and within_limits(option.machine, option.gpus, zone))
