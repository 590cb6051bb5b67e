"""Cloud Billing's catalogue of SKUs, as far as Compute Engine's prices go.

Shapes are the discovery document's. Descriptions (skus.csv) are Google's own as public programs quote them, those of
other ways to buy included; prices of us-central1 that are quoted alike in several of them are the true ones of 2026,
the others made up. In every other region all is dearer by a tenth.
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
"""region -> as descriptions call it; `Americas` is of several."""
_MOST = 5_000


class Billing(Service):
    """Prices are public: a token is needed, no permission."""

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
    """So that lists have pages."""

    def error(self, code: str, status: int, message: str) -> Response:
        return error_one_platform(code, status, message)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {"add": self._add, "price": self._price}

    def reset(self) -> None:
        self._more.clear()
        self._prices.clear()

    def _add(self, sku: dict[str, Any]) -> None:
        """One entry more, as the API has it."""
        self._more.append(sku)

    def _price(self, description: str, usd: str) -> None:
        """What an entry costs from now on."""
        self._prices[description] = usd

    def _priced(self, sku: dict[str, Any]) -> dict[str, Any]:
        usd = self._prices.get(sku["description"])
        return sku if usd is None else {**sku, "pricingInfo": [_pricing(Decimal(usd), _unit_of(sku))]}


def sku(
    description: str, regions: list[str], usd: str, unit: str = "h", usage_type: str = "OnDemand"
) -> dict[str, Any]:
    """An entry for `add`."""
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
