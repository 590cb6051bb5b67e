"""Compute the price per hour of a whole job: machines with their GPUs, and disks."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from .. import catalog
from ..catalog import MachineType, Price
from .ranking import PriceKey, price_key

_MICRO = Decimal("0.000001")


class Quote(NamedTuple):
    """Price per hour of a machine with its GPUs, from the tables."""

    price: Price | None
    """The price; None: unknown. If a Spot price is unknown, the on-demand price with `upper_bound` set."""
    least: Price | None = None
    """Lower bound of the price if `price` is unknown; None: unknown."""

    def key(self, nodes: int = 1) -> PriceKey:
        """Return the sort key for `nodes` machines with this price."""
        return price_key(_times(self.price, nodes), _times(self.least, nodes))


class Total(NamedTuple):
    """US dollars per hour of all machines and disks of a job."""

    price: Decimal | None
    """Sum of all prices; None (never 0) if one of them is unknown."""
    disks: Decimal | None
    """Price of all disks; None: unknown."""
    date: str | None
    """Oldest date among the machines' prices; None if the price is unknown. Dates of disk prices are ignored, because
    disks are a small part of the price."""
    machines: tuple[Price, ...]
    """Known prices of the machines."""
    bound: bool
    """True if the disks' price is an upper bound."""
    at_most: bool = False
    """True if `price` is an upper bound, because the price of one of the machines is an upper bound."""
    least: Decimal | None = None
    """Lower bound of the total if `price` is unknown; None: unknown."""


def quote(machine: MachineType, gpus: Fraction, region: str, market: str) -> Quote:
    """Return the price of one machine with its GPUs, or its bounds.

    A Spot machine costs at most its on-demand price: EC2 has that as the default maximum price, on Azure the maximum
    price -1 means it, and Compute Engine's Spot prices are discounts on it.
    """
    price = _listed(machine.cloud, machine, gpus, region, market)
    if price is None and market == "spot" and market in machine.markets:
        most = _listed(machine.cloud, machine, gpus, region, "on-demand")
        price = None if most is None else most._replace(upper_bound=True)
    host = catalog.host_cloud(machine.cloud)
    if price is None and host != machine.cloud:
        return Quote(None, _listed(host, machine, gpus, region, market))
    return Quote(price)


def _listed(cloud: str, machine: MachineType, gpus: Fraction, region: str, market: str) -> Price | None:
    return catalog.price(cloud, machine.name, machine.accelerator, gpus, region, market)


def total_price(machines: Sequence[Quote], nodes: Sequence[int], disk_gb: float, disk: Price | None) -> Total:
    """Return the total price of all roles, rounded to 0.000001 dollars.

    machines  price of one machine of each role
    nodes     number of machines of each role
    disk_gb   billed size of each machine's disk
    disk      price per GB and hour
    """
    disks = disks_price(sum(nodes), disk_gb, disk)
    known = tuple(machine.price for machine in machines if machine.price is not None)
    bound = disk is not None and disk.upper_bound
    if disks is None or len(known) < len(machines):
        least = [_times(machine.least, count) for machine, count in zip(machines, nodes, strict=True)]
        at_least = None if None in least else sum(filter(None, least), Decimal(0) if bound or disks is None else disks)
        return Total(None, disks, None, known, bound, least=at_least)
    price = disks + sum(filter(None, map(_times, known, nodes)))
    at_most = any(machine.upper_bound for machine in known)
    return Total(price, disks, min(machine.date for machine in known), known, bound, at_most)


def _times(machine: Price | None, nodes: int) -> Decimal | None:
    return None if machine is None else (machine.amount * nodes).quantize(_MICRO)


def disks_price(nodes: int, disk_gb: float, disk: Price | None) -> Decimal | None:
    """Return the price of the disks of all nodes per hour; None if it is unknown. See total_price()."""
    return None if disk is None else (disk.amount * Decimal(str(disk_gb)) * nodes).quantize(_MICRO)
