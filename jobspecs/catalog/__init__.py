"""Catalog of accelerators, machine types, places, prices and limits, from the tables in jobspecs/tables.

Tables are parsed on first use and cached; importing this module reads no file. For unknown names, functions return None
or an empty value and raise no error, because the caller can explain the mistake better. An unknown figure is None,
never 0. jobspecs/tables/SOURCES.md lists sources, dates and licences; docs/reference/tables.md explains the columns.
"""

from __future__ import annotations

from ..targets import WITH_TABLES as CLOUDS
from .accelerators import Accelerator, accelerators, find_accelerator, fold
from .legacy import (
    LegacyMachine,
    ai_platform_counts,
    ai_platform_legacy,
    ai_platform_legacy_names,
    ai_platform_machine_types,
    ai_platform_regions,
)
from .machines import (
    MachineType,
    N1Limits,
    Status,
    accelerator_status,
    find_machine_type,
    host_cloud,
    machine_types,
    n1_limits,
    places,
    regions,
    zones,
)
from .prices import HOURS_PER_MONTH, Price, billed_disk_gb, disk_price, price

__all__ = [
    "CLOUDS",
    "HOURS_PER_MONTH",
    "Accelerator",
    "LegacyMachine",
    "MachineType",
    "N1Limits",
    "Price",
    "Status",
    "accelerator_status",
    "accelerators",
    "ai_platform_counts",
    "ai_platform_legacy",
    "ai_platform_legacy_names",
    "ai_platform_machine_types",
    "ai_platform_regions",
    "billed_disk_gb",
    "disk_price",
    "find_accelerator",
    "find_machine_type",
    "fold",
    "host_cloud",
    "machine_types",
    "n1_limits",
    "places",
    "price",
    "regions",
    "zones",
]
