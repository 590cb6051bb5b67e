"""What `cloudgpu gpus` shows, read off the tables: the offers of one accelerator, and a summary of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from ..jobspecs import catalog
from ..jobspecs.catalog import Accelerator, MachineType, Price


@dataclass(frozen=True, slots=True)
class Found:
    """The cheapest place of a machine type in one market."""

    region: str
    price: Price


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """A machine type that carries the accelerator, with its places within the scope."""

    machine: MachineType
    gone: bool
    places: dict[str, tuple[str, ...]]
    """region -> zones."""
    prices: dict[str, Found]
    """market -> the cheapest place, at the smallest count; markets without a known price are absent."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One accelerator over all clouds of the scope."""

    accelerator: Accelerator
    clouds: dict[str, str | None]
    """Clouds that sell it today -> the day the last of its machine types ends, if that is announced."""
    cheapest: Cheapest | None


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The lowest known on-demand price of a machine, for each of its GPUs."""

    per_gpu: Decimal
    cloud: str
    region: str
    machine_type: str
    date: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What was asked for: clouds, perhaps one region, and the day to look at."""

    clouds: tuple[str, ...]
    region: str | None
    today: str

    def offers(self, accelerator: str) -> list[MachineOffer]:
        """By cloud, then size; those that can be had come first. With a region: only those sold there."""
        found = [self._offer(machine) for machine in self._machines(accelerator)]
        found = [offer for offer in found if self.region is None or offer.places]
        return sorted(found, key=lambda o: (o.gone, catalog.CLOUDS.index(o.machine.cloud), _size(o.machine)))

    def summaries(self) -> list[Summary]:
        """Accelerators that somebody sells in a known place, in the tables' order."""
        found = [self._summary(accelerator) for accelerator in catalog.accelerators().values()]
        return [summary for summary in found if summary.clouds]

    def _machines(self, accelerator: str) -> Iterator[MachineType]:
        for cloud in self.clouds:
            for group in catalog.machine_types(cloud).values():
                yield from (machine for machine in group if machine.accelerator == accelerator)

    def _offer(self, machine: MachineType) -> MachineOffer:
        sold = catalog.places(machine.cloud, machine.name, machine.accelerator)
        places = {region: zones for region, zones in sold.items() if self.region in {None, region}}
        prices = {market: _cheapest(machine, market, places) for market in ("on-demand", "spot")}
        return MachineOffer(
            machine=machine,
            gone=machine.is_gone(self.today),
            places=places,
            prices={market: found for market, found in prices.items() if found is not None},
        )

    def _summary(self, accelerator: Accelerator) -> Summary:
        sold = [offer for offer in self.offers(accelerator.name) if offer.places and not offer.gone]
        clouds = {
            cloud: _common_end([offer.machine for offer in sold if offer.machine.cloud == cloud])
            for cloud in self.clouds
            if any(offer.machine.cloud == cloud for offer in sold)
        }
        prices = [_per_gpu(offer, offer.prices["on-demand"]) for offer in sold if "on-demand" in offer.prices]
        return Summary(accelerator, clouds, min(prices, key=lambda found: found.per_gpu, default=None))


def _size(machine: MachineType) -> tuple[Fraction, int, float, str]:
    return (machine.counts[0], machine.vcpus or 0, machine.memory_gb or 0.0, machine.name)


def _cheapest(machine: MachineType, market: str, places: dict[str, tuple[str, ...]]) -> Found | None:
    prices = [
        Found(region, found)
        for region in places
        if (found := catalog.price(machine.cloud, machine.name, machine.accelerator, machine.counts[0], region, market))
    ]
    return min(prices, key=lambda found: (found.price.amount, found.region), default=None)


def _per_gpu(offer: MachineOffer, found: Found) -> Cheapest:
    count = offer.machine.counts[0]
    return Cheapest(
        per_gpu=found.price.amount * count.denominator / count.numerator,
        cloud=offer.machine.cloud,
        region=found.region,
        machine_type=offer.machine.name,
        date=found.price.date,
    )


def _common_end(machines: list[MachineType]) -> str | None:
    """The day on which the last of them ends; None while one has no announced end."""
    ends = [machine.ends for machine in machines]
    return None if None in ends else max(filter(None, ends))
