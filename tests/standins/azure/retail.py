"""The Retail Prices API (prices.azure.com): the public price list, which requires no login.

Shapes follow Microsoft's documentation, "Azure Retail Prices overview": entries, filters by `and` and `eq`, pages with
a link to the next, whose host is prices.azure.com. On-demand amounts are those of the package's own table; Spot amounts
are not in it, so a fifth is used. The list also has the real one's other products for the same size: Windows, Batch's
"Low Priority", Cloud Services, DevTest, reservations, and non-primary meters, which are not billed.
"""

from __future__ import annotations

import csv
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .arm import RefusedError

PATH = "/api/retail/prices"
PAGE = 100
"""Number of entries per page; the real API's pages have 1,000."""
_TABLE = Path(__file__).parents[3] / "jobspecs/tables/prices_azure.csv"
_TERM = re.compile(r"(\w+) eq '([^']*)'")
_FIELDS = {
    "priceType": "type",
    "serviceName": "serviceName",
    "armSkuName": "armSkuName",
    "armRegionName": "armRegionName",
}
_SINCE = "2024-01-01T00:00:00Z"
Entry = dict[str, Any]


class RetailPrices:
    """Thread-safe price list with the tests' changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fill()

    def fill(self) -> None:
        """Restore the initial state."""
        self._added: list[Entry] = []
        self._set: dict[tuple[str, str, str], str] = {}

    def verbs(self) -> dict[str, Callable[..., None]]:
        """Return the control verbs."""
        return {"prices/set": self.set, "prices/add": self.add}

    def set(self, size: str, region: str, market: str, usd: str) -> None:
        """Set the price of a size, `on-demand` or `spot`."""
        with self._lock:
            self._set[size, region, market] = usd

    def add(self, size: str, region: str, usd: str, changes: Mapping[str, Any]) -> None:
        """Add an entry that copies the one for Linux on demand, except `changes`."""
        with self._lock:
            self._added.append(_entry(size, region, usd) | dict(changes))

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the response to a request; names in `query` are in lower case. Raises RefusedError."""
        if unknown := set(query) - {"api-version", "$filter", "$skip", "currencycode", "meterregion"}:
            raise RefusedError("BadRequest", 400, f"Invalid query parameter {min(unknown)}")
        wanted = _terms(query.get("$filter", ""))
        with self._lock:
            found = [entry for entry in self._all() if all(entry[_FIELDS[name]] == text for name, text in wanted)]
        skip = int(query.get("$skip", "0"))
        link = f"https://prices.azure.com:443{PATH}?" + "&".join(
            f"{quote(name, safe='$')}={quote(text)}" for name, text in {**query, "$skip": str(skip + PAGE)}.items()
        )
        items = found[skip : skip + PAGE]
        return {
            "BillingCurrency": "USD",
            "CustomerEntityId": "Default",
            "CustomerEntityType": "Retail",
            "Items": items,
            "NextPageLink": link if skip + PAGE < len(found) else None,
            "Count": len(items),
        }

    def _all(self) -> Iterator[Entry]:
        with _TABLE.open(newline="") as file:
            for row in csv.DictReader(file):
                yield from self._of(row["sku"], row["region"], row["on_demand_usd_h"])
        yield from self._added

    def _of(self, size: str, region: str, usd: str) -> Iterator[Entry]:
        amount = Decimal(self._set.get((size, region, "on-demand"), usd))
        spot = Decimal(self._set.get((size, region, "spot"), amount / 5))
        plain = _entry(size, region, str(amount))
        yield plain
        yield _entry(size, region, str(spot), " Spot")
        yield plain | {"productName": f"{plain['productName']} Windows", "retailPrice": float(amount + 1)}
        yield _entry(size, region, str(amount / 4), " Low Priority")
        yield plain | {"productName": f"{plain['productName']} CloudServices", "retailPrice": float(amount + 2)}
        yield plain | {"type": "DevTestConsumption", "retailPrice": float(amount / 3)}
        yield plain | {"type": "Reservation", "reservationTerm": "1 Year", "retailPrice": float(amount * 5000)}
        yield plain | {"isPrimaryMeterRegion": False, "retailPrice": float(amount * 2)}


def _entry(size: str, region: str, usd: str, kind: str = "") -> Entry:
    name = size.removeprefix("Standard_").replace("_", " ") + kind
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": float(usd),
        "unitPrice": float(usd),
        "armRegionName": region,
        "location": region,
        "effectiveStartDate": _SINCE,
        "meterId": "00000000-0000-0000-0000-000000000000",
        "meterName": name,
        "productId": "DZH318Z0BQ4W",
        "skuId": "DZH318Z0BQ4W/00G1",
        "productName": f"Virtual Machines {size.removeprefix('Standard_').partition('_')[0]} Series",
        "skuName": name,
        "serviceName": "Virtual Machines",
        "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size,
    }


def _terms(text: str) -> list[tuple[str, str]]:
    """Parse a filter into fields and values. Raises RefusedError."""
    parts = [_TERM.fullmatch(part.strip()) for part in text.split(" and ")] if text else []
    found = [part.groups() for part in parts if part is not None and part[1] in _FIELDS]
    if len(found) != len(parts):
        raise RefusedError("BadRequest", 400, f"Invalid OData parameters supplied: {text}")
    return [(name, value) for name, value in found]
