"""The price of a whole job per hour: machines with their GPUs, and disks."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from .catalog import Price

_MICRO = Decimal("0.000001")


class Total(NamedTuple):
    """US dollars per hour of all machines and disks of a job."""

    price: Decimal | None
    """None: a part of it is unknown. Never 0 for that."""
    disks: Decimal | None
    """Of all disks."""
    date: str | None
    """The oldest date among the machines' prices, of which a disk's is a small addition; None with an unknown price."""
    machines: tuple[Price, ...]
    """Their prices, as far as they are known."""
    bound: bool
    """The disks' price is an upper bound."""


def total_price(machines: Sequence[Price | None], nodes: Sequence[int], disk_gb: float, disk: Price | None) -> Total:
    """The sum over the roles: a machine's price times its nodes, and a disk for each node; to 0.000001 dollars."""
    disks = disks_price(sum(nodes), disk_gb, disk)
    known = tuple(price for price in machines if price is not None)
    bound = disk is not None and disk.upper_bound
    if disks is None or None in machines:
        return Total(None, disks, None, known, bound)
    price = disks
    for machine, count in zip(machines, nodes, strict=True):
        price += nodes_price(machine, count) or 0
    return Total(price, disks, min(machine.date for machine in known), known, bound)


def nodes_price(machine: Price | None, nodes: int) -> Decimal | None:
    """Return what the machines of a role cost; None: unknown."""
    return None if machine is None else (machine.amount * nodes).quantize(_MICRO)


def disks_price(nodes: int, disk_gb: float, disk: Price | None) -> Decimal | None:
    """Return what a disk for each node costs; None: unknown."""
    return None if disk is None else (disk.amount * Decimal(str(disk_gb)) * nodes).quantize(_MICRO)
