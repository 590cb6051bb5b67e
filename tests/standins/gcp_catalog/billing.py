"""Cloud Billing's catalogue of SKUs, restricted to Compute Engine's prices.

Shapes follow the discovery document. Descriptions (skus.csv) are Google's, as quoted by public programs, including
those of other purchase options. Prices of us-central1 that several of them quote alike are the real ones of 2026; the
others are invented. All other regions cost 10% more.
"""

from __future__ import annotations

import csv
import functools
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..faults import Call
from ..gcp.discovery import discovery
from ..gcp.fields import FieldsError, check, parse, pruned
from ..gcp.project import Project
from ..gcp.service import RefusedError, Request, Response, Service, answer_json, error_one_platform

COMPUTE = "6F81-5844-456A"
_PLACES = {"us-central1": "Americas", "us-east1": "South Carolina", "europe-west4": "Netherlands", "europe-west1": ""}
"""region -> its name in descriptions; `Americas` covers several regions"""
_MOST = 5_000


class Billing(Service):
    """Price list API. It requires a token but no permission."""

    name = "cloudbilling"

    def __init__(self, project: Project) -> None:
        self._project = project
        self._more: list[dict[str, Any]] = []
        self._prices: dict[str, str] = {}

    def call(self, request: Request) -> Call | None:
        match = discovery("cloudbilling", "v1").match(request.method, request.path)
        if match is None or match.method.id != "services.skus.list":
            return None
        return Call(self.name, "", match.method.id, request.caller, {**match.params, **request.query})

    def answer(self, request: Request, call: Call) -> Response:
        document = discovery("cloudbilling", "v1")
        match = document.match(request.method, request.path)
        assert match is not None, "call() has found it"
        if unknown := document.unknown_queries(match.method, request.query):
            raise RefusedError("INVALID_ARGUMENT", 400, f'Invalid JSON payload received. Unknown name "{unknown[0]}"')
        if call.params.get("servicesId") != COMPUTE:
            raise RefusedError("NOT_FOUND", 404, "Requested entity was not found.")
        if request.query.get("currencyCode", "USD") != "USD":
            raise RefusedError("INVALID_ARGUMENT", 400, "the stand-in knows US dollars only")
        try:
            mask = parse(request.query.get("fields", ""))
            check(mask, "cloudbilling", match.method.response)
        except FieldsError as error:
            raise RefusedError("INVALID_ARGUMENT", 400, str(error)) from error
        every = [*_skus(), *self._more]
        size = min(int(request.query.get("pageSize", _MOST)), _MOST, self._page)
        at = int(request.query.get("pageToken") or 0)
        page = [self._priced(sku) for sku in every[at : at + size]]
        token = str(at + size) if at + size < len(every) else ""
        return answer_json(pruned({"skus": page, "nextPageToken": token}, mask))

    _page = 40
    """Maximum page size, small enough that listings have several pages."""

    def error(self, code: str, status: int, message: str) -> Response:
        return error_one_platform(code, status, message)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {"add": self._add, "price": self._price}

    def reset(self) -> None:
        self._more.clear()
        self._prices.clear()

    def _add(self, sku: dict[str, Any]) -> None:
        """Add an entry in the API's format."""
        self._more.append(sku)

    def _price(self, description: str, usd: str) -> None:
        """Set an entry's price."""
        self._prices[description] = usd

    def _priced(self, sku: dict[str, Any]) -> dict[str, Any]:
        usd = self._prices.get(sku["description"])
        return sku if usd is None else {**sku, "pricingInfo": [_pricing(Decimal(usd), _unit_of(sku))]}


def sku(
    description: str, regions: list[str], usd: str, unit: str = "h", usage_type: str = "OnDemand"
) -> dict[str, Any]:
    """Return an entry for `add`."""
    number = f"{zlib.crc32(' '.join([description, *regions]).encode()):08X}"
    return {
        "name": f"services/{COMPUTE}/skus/{number}",
        "skuId": number,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": "GPU",
            "usageType": usage_type,
        },
        "serviceRegions": regions,
        "pricingInfo": [_pricing(Decimal(usd), unit)],
        "serviceProviderName": "Google",
    }


@functools.cache
def _skus() -> list[dict[str, Any]]:
    with Path(__file__).with_name("skus.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for region, place in _PLACES.items():
        for row in rows:
            usd = Decimal(row["usd"]) * (1 if region == "us-central1" else Decimal("1.1"))
            made = sku(row["description"].format(place=place or "Belgium"), [region], str(usd), row["unit"])
            made["category"] |= {
                "usageType": row["usage_type"],
                "resourceFamily": row["family"],
                "resourceGroup": row["group"],
            }
            found.append(made)
    return found


def _unit_of(sku: Mapping[str, Any]) -> str:
    return str(sku["pricingInfo"][0]["pricingExpression"]["usageUnit"])


def _pricing(usd: Decimal, unit: str) -> dict[str, Any]:
    units = int(usd)
    price = {"currencyCode": "USD", "units": str(units), "nanos": int((usd - units) * 1_000_000_000)}
    return {
        "summary": "",
        "effectiveTime": "2026-11-21T00:00:00Z",
        "pricingExpression": {
            "usageUnit": unit,
            "displayQuantity": 1,
            "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}],
        },
        "currencyConversionRate": 1,
    }
