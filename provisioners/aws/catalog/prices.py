"""Current EC2 prices: list prices from the Price List API, Spot prices from the price history.

The Price List API is queried for each machine type (pricing:GetProducts, a few kilobytes a response). The alternative
that needs no permission, the bulk offer file, contains every SKU of a region and has hundreds of megabytes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple

from ....jobspecs.plan import Offer
from ...shared.refresh_queries import OddAnswerError

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_pricing import PricingClient

_MICRO = Decimal("0.000001")
_LINUX = "Linux/UNIX"
_CLOCKS_DIFFER = datetime.timedelta(hours=1)
"""Tolerated clock skew: if this clock is ahead of AWS's, a query from now on would start in the future and return
nothing."""
_SOLD_AS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
"""Price List attributes of the machines that RunInstances starts; other variants of a type have other prices."""


class SpotPrice(NamedTuple):
    """Spot price of one machine type in one zone, in US dollars an hour."""

    machine_type: str
    zone: str
    """AZ id, or the AZ name if the id is unknown."""
    amount: Decimal
    since: datetime.datetime
    """Time from which the price applies, until a newer one replaces it."""


class OddPriceError(OddAnswerError):
    """The API returned an implausible price; the message quotes it."""


def spot_prices(
    ec2: EC2Client, machine_types: Iterable[str], zones: Mapping[str, str], now: datetime.datetime
) -> list[SpotPrice]:
    """Return the current Spot prices of the machine types in the client's region, by zone, where there are any.

    `zones`: AZ name -> AZ id (zone_ids()). Raises botocore's errors, OddPriceError.
    """
    newest: dict[tuple[str, str], SpotPrice] = {}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=sorted(machine_types),  # type: ignore[arg-type]  # the stubs lack newer types
        ProductDescriptions=[_LINUX],
        StartTime=now - _CLOCKS_DIFFER,  # the response includes the price in force at that time
    )
    for page in pages:
        for item in page["SpotPriceHistory"]:
            name = item["AvailabilityZone"]
            found = SpotPrice(
                machine_type=item["InstanceType"],
                zone=zones.get(name, name),
                amount=_amount(item["SpotPrice"], item["InstanceType"]),
                since=item["Timestamp"],
            )
            key = (found.machine_type, found.zone)
            if key not in newest or newest[key].since < found.since:
                newest[key] = found
    return list(newest.values())


def zone_ids(ec2: EC2Client) -> dict[str, str]:
    """Return AZ name -> AZ id for this account and region. Raises botocore's errors."""
    answer = ec2.describe_availability_zones()
    return {zone["ZoneName"]: zone["ZoneId"] for zone in answer["AvailabilityZones"]}


def on_demand_prices(pricing: PricingClient, machine_type: str) -> dict[str, Decimal]:
    """Return region -> list price in US dollars an hour. Raises botocore's errors, OddPriceError."""
    filters = {"instanceType": machine_type, **_SOLD_AS}
    pages = pricing.get_paginator("get_products").paginate(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in filters.items()],
    )
    found: dict[str, Decimal] = {}
    for page in pages:
        for text in page["PriceList"]:
            product = json.loads(text)
            attributes = product["product"]["attributes"]
            # Capacity Blocks are separate products; older responses lack this attribute.
            if attributes.get("marketoption", "OnDemand") != "OnDemand":
                continue
            for amount in _hourly(product, machine_type):
                region = attributes["regionCode"]
                if found.setdefault(region, amount) != amount:
                    raise OddPriceError(f"{machine_type} has two list prices in {region}: {found[region]} and {amount}")
    return found


def _hourly(product: Mapping[str, Any], machine_type: str) -> Iterator[Decimal]:
    """Yield the hourly US dollar prices of a product's on-demand terms; zero, the price inside a reservation, is left
    out."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs":
                amount = _amount(dimension["pricePerUnit"].get("USD", ""), machine_type, free=True)
                if amount:
                    yield amount


def _amount(text: str, machine_type: str, *, free: bool = False) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0 or (amount == 0 and not free):
        raise OddPriceError(f"{machine_type} at {text!r} US dollars an hour")
    return amount.normalize()


def offer_price(found: Iterable[SpotPrice], offer: Offer) -> Decimal | None:
    """Return the offer's total price in US dollars an hour at these Spot prices, disks included.

    If EC2 chooses the zone, the highest price of any zone counts. Returns None if a price is unknown, and for other
    markets: list prices hardly change, so that the plan's price still holds.
    """
    if offer.market != "spot" or offer.disk_price is None:
        return None
    machine_types = {role.machine_type for role in offer.roles}
    dearest: dict[str, Decimal] = {}
    for price in found:
        if offer.zone in {None, price.zone}:
            dearest[price.machine_type] = max(price.amount, dearest.get(price.machine_type, price.amount))
    if machine_types - set(dearest):
        return None
    machines = sum((dearest[role.machine_type] * role.nodes for role in offer.roles), Decimal(0))
    return (machines + offer.disk_price).quantize(_MICRO)
