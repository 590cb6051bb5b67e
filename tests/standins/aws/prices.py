"""Spot price history, Service Quotas and the Price List, which moto lacks or invents.

Shapes follow botocore's service models; values are set by tests. A price that no test has set is computed from the
type's vCPUs and GPUs: plausible, but not a real one.
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

from ..faults import Call
from . import moto_side
from .account import Account
from .answers import Answer, RefusedError, ec2_answer, json_answer
from .calls import numbered
from .capacity import FAMILIES, vcpus_of
from .handlers import Forward, Handler


def on_demand_price(account: Account, machine_type: str, region: str) -> Decimal:
    """Return the price in US dollars per hour."""
    if (machine_type, region) in account.prices:
        return account.prices[machine_type, region]
    info = moto_side.machine_types()[machine_type]
    gpus: int = sum(gpu.get("Count", 0) for gpu in info.get("GpuInfo", {}).get("Gpus", []))
    return vcpus_of(machine_type) * Decimal("0.05") + gpus * Decimal("0.35")


def spot_price(account: Account, machine_type: str, zone: str) -> Decimal:
    """Return the price in US dollars per hour."""
    if (machine_type, zone) in account.prices:
        return account.prices[machine_type, zone]
    return (on_demand_price(account, machine_type, zone[:-1]) / 3).quantize(Decimal("0.000001"))


def describe_spot_price_history(account: Account, call: Call, forward: Forward) -> Answer:
    """Return one price for each type and zone: the one that was set, or a third of the on-demand price."""
    types = numbered(call.params, "InstanceType")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - 3_600))
    items = "".join(
        f"<item><instanceType>{machine_type}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{spot_price(account, machine_type, zone)}</spotPrice><timestamp>{stamp}</timestamp>"
        f"<availabilityZone>{zone}</availabilityZone></item>"
        for machine_type in types
        for zone in moto_side.zones_offering(call.region, machine_type)
    )
    return ec2_answer(call.action, f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken></nextToken>")


def get_service_quota(account: Account, call: Call, forward: Forward) -> Answer:
    return json_answer({"Quota": _quota(account, call, call.params.get("QuotaCode", ""))})


def list_service_quotas(account: Account, call: Call, forward: Forward) -> Answer:
    codes = dict.fromkeys(code for _, *pair in FAMILIES for code in pair if code)
    return json_answer({"Quotas": [_quota(account, call, code) for code in codes]})


def _quota(account: Account, call: Call, code: str) -> dict[str, Any]:
    if call.params.get("ServiceCode") != "ec2" or not any(code in family[1:] for family in FAMILIES) or not code:
        raise RefusedError("NoSuchResourceException", f"The request failed because the quota {code} does not exist.")
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{call.region}:{moto_side.ACCOUNT}:ec2/{code}",
        "QuotaCode": code,
        "QuotaName": code,
        "Value": account.capacity.quota(call.region, code),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def get_products(account: Account, call: Call, forward: Forward) -> Answer:
    """Return the on-demand Linux prices of one type in all regions that offer it, filtered."""
    wanted = {
        value: call.params[key.replace(".Field", ".Value")]
        for key, value in call.params.items()
        if key.startswith("Filters.") and key.endswith(".Field")
    }
    machine_type = wanted.get("instanceType", "")
    if call.region not in ("us-east-1", "eu-central-1", "ap-south-1") or not machine_type:
        raise RefusedError(
            "InvalidParameterException", "the stand-in's Price List wants a region of its own and instanceType"
        )
    products = [_product(account, machine_type, region) for region in _regions(machine_type)]
    found = [one for one in products if all(one["product"]["attributes"].get(k) == v for k, v in wanted.items())]
    return json_answer({"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found]})


def _regions(machine_type: str) -> list[str]:
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    offers = INSTANCE_TYPE_OFFERINGS["region"]
    return sorted(region for region in offers if any(o["InstanceType"] == machine_type for o in offers[region]))


def _product(account: Account, machine_type: str, region: str) -> dict[str, Any]:
    sku = f"{machine_type}-{region}".upper().replace(".", "")[:16]
    amount = on_demand_price(account, machine_type, region)
    return {
        "product": {
            "productFamily": "Compute Instance",
            "sku": sku,
            "attributes": {
                "instanceType": machine_type,
                "regionCode": region,
                "operatingSystem": "Linux",
                "tenancy": "Shared",
                "preInstalledSw": "NA",
                "capacitystatus": "Used",
                "marketoption": "OnDemand",
                "servicecode": "AmazonEC2",
            },
        },
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                f"{sku}.JRTCKXETXF": {
                    "priceDimensions": {
                        f"{sku}.JRTCKXETXF.6YS6EN2CT7": {
                            "unit": "Hrs",
                            "beginRange": "0",
                            "endRange": "Inf",
                            "pricePerUnit": {"USD": f"{amount:.10f}"},
                        }
                    },
                    "sku": sku,
                    "termAttributes": {},
                }
            }
        },
        "version": "20260101000000",
        "publicationDate": "2026-01-01T00:00:00Z",
    }


HANDLERS: dict[tuple[str, str], Handler] = {
    ("ec2", "DescribeSpotPriceHistory"): describe_spot_price_history,
    ("servicequotas", "GetServiceQuota"): get_service_quota,
    ("servicequotas", "ListServiceQuotas"): list_service_quotas,
    ("pricing", "GetProducts"): get_products,
}
