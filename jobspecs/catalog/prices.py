"""List prices of machines and disks, with date and source. Unknown prices are None, never 0."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from ..targets import WITH_TABLES
from . import csv_tables, table_overrides
from .machines import find_machine_type, host_cloud, places

HOURS_PER_MONTH = 730
"""Hours in a month, for disks, which are priced per month: all providers count 730 (365 days * 24 h / 12)."""

_COLUMN = {"on-demand": 0, "spot": 1}
PRICED_MARKETS = frozenset(_COLUMN)
"""Markets with published prices; the tables have none for flex-start and reservation."""


class Price(NamedTuple):
    """Price in US dollars."""

    amount: Decimal
    date: str
    """Date of the figure (YYYY-MM-DD); for a sum, the date of its oldest part."""
    source: str
    """Id of the source in tables/SOURCES.md; `a + b` for a sum."""
    upper_bound: bool = False
    """True if the actual price may be lower."""


def price(  # noqa: PLR0917 - the coordinates of one price, in the order of an offer
    cloud: str, machine_type: str, accelerator: str | None, count: Fraction, region: str, market: str
) -> Price | None:
    """Return the price per hour of one machine with `count` GPUs, without disk.

    None if the price is unknown, or if the machine is not sold in this region and market.
    """
    machine = find_machine_type(cloud, machine_type, accelerator)
    if machine is None or market not in machine.markets or region not in places(cloud, machine_type, accelerator):
        return None
    host = _sku_price(cloud, machine_type, region, market)
    if host is None or accelerator is None or find_machine_type(cloud, machine_type, None) is None:
        return host
    # A machine type that is also sold without GPUs: GPUs are attached and priced separately.
    gpu = _sku_price(cloud, machine.provider_accelerator, region, market)
    if gpu is None:
        return None
    amount = host.amount + gpu.amount * count.numerator / count.denominator
    return Price(amount, min(host.date, gpu.date), f"{host.source} + {gpu.source}")


def _sku_price(cloud: str, sku: str, region: str, market: str) -> Price | None:
    newer = _spot(cloud).get((sku, region)) if market == "spot" else None
    if newer is not None:
        amount, source, date = newer
        return Price(Decimal(amount), date, source)
    row = _prices(cloud).get((sku, region))
    if row is None or market not in _COLUMN:
        return None
    amount, source, date = row[_COLUMN[market]], row[2], row[3]
    return Price(Decimal(amount), date, source) if amount else None


@cache
def _prices(cloud: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return (SKU, region) -> (on-demand price, spot price, source, date).

    The values are text, because only a few of a thousand rows are used.
    """
    if cloud not in WITH_TABLES or host_cloud(cloud) != cloud:  # no table has the fee that is added to the host's price
        return {}
    table = csv_tables.rows(f"prices_{cloud}", "sku", "region", "on_demand_usd_h", "spot_usd_h", "source", "date")
    return {(row[0], row[1]): row[2:] for row in table}


@cache
def _spot(cloud: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return (SKU, region) -> (spot price, source, date); empty without a table of `cloudgpu catalog refresh`.

    The price is that of the region's most expensive zone.
    """
    table = table_overrides.find(f"spot_{cloud}")
    if table is None:
        return {}
    columns = ("sku", "region", "spot_usd_h", "source", "date")
    return {(row[0], row[1]): row[2:] for row in csv_tables.parse(table.text, *columns)}


@cache
def disk_price(cloud: str, region: str) -> Price | None:
    """Return the price of the boot SSD per GB and hour; for a region without a row, an upper bound.

    The upper bound is the cloud's highest price.
    """
    row = _disk_prices().get((cloud, region)) or _disk_prices().get((cloud, "*"))
    if row is None:
        return None
    amount, bound, source, date = row
    return Price(Decimal(amount) / HOURS_PER_MONTH, date, source, upper_bound=bound == "upper")


@cache
def billed_disk_gb(cloud: str, disk_gb: float) -> float:
    """Return the size in GB that is billed for a disk: the next larger size if a cloud sells only certain sizes."""
    sizes = next((words for name, words in csv_tables.rows("disk_prices", "cloud", "sizes_gb") if name == cloud), "")
    return next((float(size) for size in sizes.split() if float(size) >= disk_gb), disk_gb)


@cache
def _disk_prices() -> dict[tuple[str, str], tuple[str, ...]]:
    table = csv_tables.rows("disk_prices", "cloud", "region", "usd_gb_month", "bound", "source", "date")
    return {(row[0], row[1]): row[2:] for row in table}
