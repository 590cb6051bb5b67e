"""A test's hold on Cloud Billing's price list and Cloud Quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..gce.control import GceControl
from .billing import sku

COMPUTE, VERTEX = "compute.googleapis.com", "aiplatform.googleapis.com"


class CatalogControl(GceControl):
    """Made of the stand-in's URL."""

    def add_sku(self, description: str, region: str, usd: str, **more: str) -> None:
        """One entry more of the price list: `unit`, `usage_type`."""
        self.do("cloudbilling/add", sku=sku(description, [region], usd, **more))

    def set_price(self, description: str, usd: str) -> None:
        """Of an entry, wherever it holds."""
        self.do("cloudbilling/price", description=description, usd=usd)

    def set_cloud_quota(self, service: str, quota: str, *limits: tuple[Mapping[str, str], int | None]) -> None:
        """(dimensions, limit; None: none is told) of a quota; no dimensions: holds in all regions without their own."""
        infos: list[dict[str, Any]] = [
            {
                "dimensions": dict(dimensions),
                "details": {} if limit is None else {"value": str(limit)},
                "applicableLocations": [dimensions["region"]] if "region" in dimensions else [],
            }
            for dimensions, limit in limits
        ]
        self.do("cloudquotas/set", service=service, quota=quota, infos=infos)
