"""Prices of Compute Engine's machines, including Spot, from Google's price list (Cloud Billing Catalog API).

The list has no machine types: it has prices of vCPUs, memory, GPUs and local SSDs, each with a description such as `A2
Instance Core running in Iowa`. skus.csv maps descriptions to parts of machines. A machine's price is the sum of its
parts, or unknown if one of them is. Descriptions of other forms of purchase (commitments, calendar mode, Flex-start's
"DWS Defined Duration", sole tenancy) do not match: no table has their prices.

Sources in skus.csv: `cyclenerd`: see jobspecs/tables/SOURCES.md (its mapping of descriptions); `public-code`: several
public programs that read Google's list, not verified otherwise.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ....jobspecs.catalog import HOURS_PER_MONTH
from ..rest import Rest, items

Part = Literal["core", "ram", "gpu", "ssd", "whole"]
"""Priced part of a machine; `whole`: the machine is priced by the number of GPUs, everything else included."""
MARKETS = ("on-demand", "spot")
_TABLE = Path(__file__).with_name("skus.csv")
_PATH = "v1/services/6F81-5844-456A/skus"
"""Path of Compute Engine's price list; the API has only ids of services."""
_FIELDS = (
    "skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates(startUsageAmount,unitPrice))),nextPageToken"
)
_PAGE = "5000"
_BOUGHT = frozenset({"OnDemand", "Preemptible"})
"""usageType values of prices without a commitment. They do not show the market, which the description contains: A4's
Spot price has the type OnDemand."""
_SSD_GIB = 375
"""GiB per partition of a local SSD, on the machine types for which skus.csv has SSDs."""
_MICRO = Decimal("0.000001")


class Kind(NamedTuple):
    """Row of skus.csv for one market."""

    part: Part
    of: str
    """GPUs: the accelerator's name in the API; other parts: prefix of the machine types' names."""
    market: str
    text: re.Pattern[str]
    unit: str


class Shape(NamedTuple):
    """Priced parts of a machine."""

    machine_type: str
    vcpus: int
    memory_gb: float
    accelerator: str
    """The API's name of the machine type's built-in accelerator; "": none, or attached and priced separately."""
    gpus: Fraction
    ssds: int
    """Number of built-in local SSD partitions."""


class Book:
    """Price list: prices of parts by region."""

    def __init__(self) -> None:
        self._prices: dict[tuple[Part, str, str, str], Decimal | None] = {}
        self.odd: set[str] = set()
        """Descriptions with an unparsable price or with two prices: these prices are unknown."""

    def add(self, sku: Mapping[str, Any]) -> None:
        """Add an entry of the API's list if it is the price of a part in skus.csv; most entries are not."""
        description = str(sku.get("description", ""))
        kinds = _kinds_of(description)
        if not kinds or (sku.get("category") or {}).get("usageType") not in _BOUGHT:
            return
        for kind in kinds:
            amount = _hourly(sku, kind.unit)
            if amount is None:
                self.odd.add(description)
            for region in sku.get("serviceRegions") or ():
                key = (kind.part, kind.of, kind.market, region)
                if self._prices.setdefault(key, amount) != amount:
                    self.odd.add(f"{description}: two prices in {region}")
                    self._prices[key] = None

    def __len__(self) -> int:
        return len(self._prices)

    def gpu(self, accelerator: str, region: str, market: str) -> Decimal | None:
        """Return US dollars per hour of one attached GPU; None: unknown, or not sold in this market."""
        return _rounded(self._prices.get(("gpu", accelerator, market, region)))

    def machine(self, shape: Shape, region: str, market: str) -> Decimal | None:
        """Return US dollars per hour of a machine with its built-in parts; None: unknown, or not sold in this
        market."""
        whole = self._of_series("whole", shape, region, market)
        if whole is not None:
            return _rounded(whole * _decimal(shape.gpus))
        parts: list[Decimal | None] = [
            _times(self._of_series("core", shape, region, market), Decimal(shape.vcpus)),
            _times(self._of_series("ram", shape, region, market), Decimal(str(shape.memory_gb))),
        ]
        if shape.accelerator:
            gpu = self._prices.get(("gpu", shape.accelerator, market, region))
            parts.append(_times(gpu, _decimal(shape.gpus)))
        if shape.ssds:
            parts.append(_times(self._of_series("ssd", shape, region, market), Decimal(shape.ssds * _SSD_GIB)))
        known = [part for part in parts if part is not None]
        return _rounded(sum(known, Decimal(0))) if len(known) == len(parts) else None

    def _of_series(self, part: Part, shape: Shape, region: str, market: str) -> Decimal | None:
        of = next((one.of for one in _kinds() if one.part == part and shape.machine_type.startswith(one.of)), None)
        return None if of is None else self._prices.get((part, of, market, region))


def read(rest: Rest) -> Book:
    """Read the whole list, about ten pages of 5,000 entries. Needs no permission. Raises ProvisionError."""
    book = Book()
    doing = "ask for Compute Engine's price list"
    for page in rest.pages("cloudbilling", _PATH, doing, pageSize=_PAGE, currencyCode="USD", fields=_FIELDS):
        for sku in items(page, "skus"):
            book.add(sku)
    return book


def _hourly(sku: Mapping[str, object], unit: str) -> Decimal | None:
    """Return US dollars per hour of one vCPU, GiB or GPU; None: the price has another form."""
    expression: Mapping[str, Any] = next((info["pricingExpression"] for info in items(sku, "pricingInfo")), {})
    rates = items(expression, "tieredRates")
    if len(rates) != 1 or rates[0].get("startUsageAmount", 0) != 0 or expression.get("usageUnit") != unit:
        return None
    price: Mapping[str, Any] = rates[0].get("unitPrice") or {}
    try:
        amount = Decimal(str(price.get("units", 0))) + Decimal(price.get("nanos", 0)) / 1_000_000_000
    except (InvalidOperation, TypeError, ValueError):
        return None
    if price.get("currencyCode") != "USD" or amount <= 0:
        return None
    return amount / HOURS_PER_MONTH if unit.endswith(".mo") else amount


def _times(price: Decimal | None, amount: Decimal) -> Decimal | None:
    return None if price is None else price * amount


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / number.denominator


def _rounded(price: Decimal | None) -> Decimal | None:
    return None if price is None else price.quantize(_MICRO)


# --- the table --------------------------------------------------------------------------------------------------------


@cache
def _kinds() -> tuple[Kind, ...]:
    return tuple(_read_kinds())


def _read_kinds() -> Iterator[Kind]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for market in MARKETS:
                text = re.compile(row[market.replace("-", "_")])
                yield Kind(row["part"], row["of"], market, text, row["unit"])  # type: ignore[arg-type]  # a test checks the table


def _kinds_of(description: str) -> list[Kind]:
    """Return the matching kinds; several if machine series share a part, such as local SSDs."""
    return [kind for kind in _fitting(description) if kind.text.fullmatch(description)]


def _fitting(description: str) -> Iterable[Kind]:
    """Return the rows of skus.csv that may match a description.

    A quick check excludes most of the tens of thousands of descriptions."""
    return _kinds() if _WORTH.search(description) else ()


_WORTH = re.compile(r" Instance (?:Core|Ram) | GPU |RTX 6000|gpu slice|SSD backed Local")
