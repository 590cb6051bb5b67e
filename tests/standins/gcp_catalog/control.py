"""Test client for Cloud Billing's price list and Cloud Quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..gce.control import GceControl
from .billing import sku

COMPUTE, VERTEX = "compute.googleapis.com", "aiplatform.googleapis.com"


class CatalogControl(GceControl):
    """Control by the stand-in's URL."""

    def add_sku(self, description: str, region: str, usd: str, **more: str) -> None:
        """Add an entry to the price list; `more`: `unit`, `usage_type`."""
        self.do("cloudbilling/add", sku=sku(description, [region], usd, **more))

    def set_price(self, description: str, usd: str) -> None:
        """Set the price of an entry in all its regions."""
        self.do("cloudbilling/price", description=description, usd=usd)

    def set_cloud_quota(self, service: str, quota: str, *limits: tuple[Mapping[str, str], int | None]) -> None:
        """Set a quota's limits as (dimensions, limit); limit None: not reported; no dimensions: for regions without an
        entry."""
        infos: list[dict[str, Any]] = [
            {
                "dimensions": dict(dimensions),
                "details": {} if limit is None else {"value": str(limit)},
                "applicableLocations": [dimensions["region"]] if "region" in dimensions else [],
            }
            for dimensions, limit in limits
        ]
        self.do("cloudquotas/set", service=service, quota=quota, infos=infos)
