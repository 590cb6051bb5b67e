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
    """The oldest date among the figures; None with an unknown price."""
    figures: tuple[Price, ...]
    """What is known: the machines' prices and that of a GB of disk."""


def total_price(machines: Sequence[Price | None], nodes: Sequence[int], disk_gb: float, disk: Price | None) -> Total:
    """The sum over the roles: a machine's price times its nodes, and a disk for each node; to 0.000001 dollars."""
    disks = None if disk is None else (disk.amount * Decimal(str(disk_gb)) * sum(nodes)).quantize(_MICRO)
    figures = tuple(price for price in (*machines, disk) if price is not None)
    if disks is None or None in machines:
        return Total(None, disks, None, figures)
    price = disks
    for machine, count in zip(machines, nodes, strict=True):
        price += (machine.amount * count).quantize(_MICRO) if machine is not None else 0
    return Total(price, disks, min(figure.date for figure in figures), figures)
