"""Catalog queries of `cloudgpu gpus`: the offers of one accelerator, and a summary of each accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from ...jobspecs import catalog
from ...jobspecs.catalog import Accelerator, MachineType, Price
from ...jobspecs.rules.machines import is_attached, is_sensible
from ...jobspecs.units import CountRange, SizeRange


@dataclass(frozen=True, slots=True)
class PlacePrice:
    """Cheapest place of a machine type in one market."""

    region: str
    price: Price


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """Machine type that carries the accelerator, with its places within the scope."""

    machine: MachineType
    counts: tuple[Fraction, ...]
    """Possible GPU counts that match the query, ascending."""
    retired: bool
    places: dict[str, tuple[str, ...]]
    """Mapping of region to zones."""
    prices: dict[str, PlacePrice]
    """Cheapest place at the smallest count, by market; markets without a known price are absent."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One accelerator over all clouds of the scope."""

    accelerator: Accelerator
    clouds: dict[str, str | None]
    """Cloud that sells the accelerator today -> date on which its last machine type ends; None: no end is announced."""
    cheapest: Cheapest | None


@dataclass(frozen=True, slots=True)
class Cheapest:
    """Lowest known on-demand price per GPU, of a machine that a plan would choose."""

    per_gpu: Decimal
    cloud: str
    region: str
    machine_type: str
    date: str


@dataclass(frozen=True, slots=True)
class Scope:
    """Query of `cloudgpu gpus`: clouds, a date, and optionally a region, a memory size and a number of GPUs."""

    clouds: tuple[str, ...]
    region: str | None
    today: str
    memory: SizeRange | None = None
    """Memory of one GPU, or of the offered fraction of one."""
    gpus: CountRange | None = None
    """GPUs per machine."""

    def offers(self, accelerator: str) -> list[MachineOffer]:
        """Return the machine types by cloud, then size; available ones first. With a region: only those sold there."""
        found = [
            self._offer(machine, counts)
            for machine in self._machines(accelerator)
            if (counts := tuple(count for count in machine.counts if self._matches(accelerator, count)))
        ]
        found = [offer for offer in found if self.region is None or offer.places]
        return sorted(found, key=lambda o: (o.retired, catalog.CLOUDS.index(o.machine.cloud), _size(o.machine)))

    def summaries(self) -> list[Summary]:
        """Return the accelerators sold in a known place, in catalog order; with a memory range, GPUs only."""
        kinds = {"gpu"} if self.memory else {"gpu", "asic"}
        found = [self._summary(one) for one in catalog.accelerators().values() if one.kind in kinds]
        return [summary for summary in found if summary.clouds]

    def _machines(self, accelerator: str) -> Iterator[MachineType]:
        for cloud in self.clouds:
            for group in catalog.machine_types(cloud).values():
                yield from (machine for machine in group if machine.accelerator == accelerator)

    def _matches(self, accelerator: str, count: Fraction) -> bool:
        size = catalog.accelerators()[accelerator].memory_gb * float(min(count, Fraction(1)))
        return (self.gpus is None or count in self.gpus) and (self.memory is None or size in self.memory)

    def _offer(self, machine: MachineType, counts: tuple[Fraction, ...]) -> MachineOffer:
        sold = catalog.places(machine.cloud, machine.name, machine.accelerator)
        places = {region: zones for region, zones in sold.items() if self.region in {None, region}}
        prices = {market: _cheapest(machine, counts[0], market, places) for market in ("on-demand", "spot")}
        return MachineOffer(
            machine=machine,
            counts=counts,
            retired=machine.is_retired_on(self.today),
            places=places,
            prices={market: found for market, found in prices.items() if found is not None},
        )

    def _summary(self, accelerator: Accelerator) -> Summary:
        sold = [offer for offer in self.offers(accelerator.name) if offer.places and not offer.retired]
        clouds = {
            cloud: _common_end([offer.machine for offer in sold if offer.machine.cloud == cloud])
            for cloud in self.clouds
            if any(offer.machine.cloud == cloud for offer in sold)
        }
        prices = [_per_gpu(offer, offer.prices["on-demand"]) for offer in _chosen(sold) if "on-demand" in offer.prices]
        return Summary(accelerator, clouds, min(prices, key=lambda found: found.per_gpu, default=None))


def _chosen(offers: list[MachineOffer]) -> list[MachineOffer]:
    """Return the offers that a plan considers by default: fractions of a GPU only if no whole GPUs are offered, and
    attached GPUs only on machines that are large enough for them."""
    whole = [offer for offer in offers if offer.counts[0] >= 1]
    return [
        offer
        for offer in whole or offers
        if not is_attached(offer.machine.cloud, offer.machine.name) or is_sensible(offer.machine, offer.counts[0])
    ]


def _size(machine: MachineType) -> tuple[Fraction, int, float, str]:
    return (machine.counts[0], machine.vcpus or 0, machine.memory_gb or 0.0, machine.name)


def _cheapest(
    machine: MachineType, count: Fraction, market: str, places: dict[str, tuple[str, ...]]
) -> PlacePrice | None:
    prices = [
        PlacePrice(region, found)
        for region in places
        if (found := catalog.price(machine.cloud, machine.name, machine.accelerator, count, region, market))
    ]
    return min(prices, key=lambda found: (found.price.amount, found.region), default=None)


def _per_gpu(offer: MachineOffer, found: PlacePrice) -> Cheapest:
    count = offer.counts[0]
    return Cheapest(
        per_gpu=found.price.amount * count.denominator / count.numerator,
        cloud=offer.machine.cloud,
        region=found.region,
        machine_type=offer.machine.name,
        date=found.price.date,
    )


def _common_end(machines: list[MachineType]) -> str | None:
    """Return the latest end date of the machine types; None if one of them has no announced end."""
    ends = [machine.ends for machine in machines]
    return None if None in ends else max(filter(None, ends))
