"""Refresh of the AWS tables from AWS's APIs: machine types, places, list prices, Spot prices and quotas.

Read-only calls: ec2:DescribeRegions, DescribeInstanceTypes, DescribeInstanceTypeOfferings, DescribeAvailabilityZones
and DescribeSpotPriceHistory, pricing:GetProducts, servicequotas:GetServiceQuota. A table is made only if all queries
succeed for all regions; users who lack permission in a region must pass the other regions by name.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ....jobspecs.catalog import accelerators, csv_tables, find_accelerator
from ...shared.refresh import Outcome, Progress, Update
from ...shared.refresh_queries import (
    MACHINE_TYPES,
    PLACES,
    PRICES,
    SOURCE,
    ParallelQueries,
    Row,
    known_rows,
    publish_all,
    shipped_rows,
    sorted_rows,
)
from ..clients import Clients
from ..errors import translate_errors
from .prices import OddPriceError, on_demand_prices, spot_prices, zone_ids
from .quotas import Quota, limit, quota_of

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client

CLOUD = "aws"

_WORKERS = 8
_MARKETS = {"on-demand": "on-demand", "spot": "spot", "capacity-block": "reservation"}
_ZONE_ID = re.compile(r"[a-z0-9]+-az\d+")
"""Id of an availability zone; ids of local and Wavelength zones have one more part."""
_MEMORY_TOLERANCE = 0.15

SPOT = ("sku", "region", "spot_usd_h", "source", "date")
QUOTAS = ("region", "market", "code", "name", "vcpus", "source", "date")


class Machine(NamedTuple):
    """Machine type as described by EC2 in one region."""

    name: str
    vcpus: int
    memory_gb: float
    arch: str
    markets: frozenset[str]
    provider_accelerator: str
    """Accelerator name in the API; "": none."""
    accelerator: str | None
    """Canonical accelerator name; None: not in the tables."""
    gpus: Fraction


def refresh(regions: Sequence[str], on_progress: Progress, clients: Clients | None = None) -> Iterator[Outcome]:
    """Refresh the tables for these regions (none: all enabled regions); yield the outcome of each table when it is
    made.

    Raises ProvisionError before any query if a region does not exist or is not enabled; OSError.
    """
    clients = clients or Clients()
    for region in regions:
        clients.check_region(region)
    asked = tuple(dict.fromkeys(regions)) or tuple(sorted(name for name, on in clients.regions.items() if on))
    now = datetime.datetime.fromtimestamp(clients.clock.now(), datetime.UTC)
    with ThreadPoolExecutor(_WORKERS) as pool:
        calls = ParallelQueries(pool, on_progress, lambda doing: translate_errors(doing, clients.clock))
        asking = _Refresh(clients, asked, now, calls)
        made = (asking.machine_types, asking.places, asking.prices, asking.spot, asking.quotas)
        try:
            yield from publish_all({f"{table.__name__}_{CLOUD}": table for table in made}, asking.settle, now)
        finally:
            pool.shutdown(cancel_futures=True)


class _Refresh:
    """Queries of one refresh, and merging of the answers with the current tables.

    The methods named after tables are called once each, in the order of their definition."""

    def __init__(
        self, clients: Clients, regions: tuple[str, ...], now: datetime.datetime, calls: ParallelQueries
    ) -> None:
        self._clients = clients
        self._regions = regions
        self._now = now
        self._today = now.date().isoformat()
        self._calls = calls
        self._types = known_rows("machine_types_aws", MACHINE_TYPES, 1)
        self._places = known_rows("places_aws", PLACES, 2)

    def settle(self, update: Update) -> None:
        """Use a published table of machine types or places for the tables that follow."""
        if update.columns is MACHINE_TYPES:
            self._types = {row[:1]: row for row in update.rows}
        elif update.columns is PLACES:
            self._places = {row[:2]: row for row in update.rows}

    def machine_types(self) -> tuple[Update, str]:
        patterns = _patterns(name for (name,) in self._types)
        answers = self._calls.each(
            "machine types of", self._regions, lambda r: _describe(self._clients.ec2(r), patterns)
        )
        found: dict[str, Machine] = {}
        for machine in (machine for machines in answers.values() for machine in machines):
            before = found.get(machine.name, machine)
            found[machine.name] = machine._replace(markets=machine.markets | before.markets)
        rows, left_out = dict(self._types), []
        for machine in found.values():
            row = self._merged(machine)
            if row is None:
                left_out.append(f"{machine.name} ({machine.provider_accelerator})")
            else:
                rows[machine.name,] = row
        remark = f"left out, for the tables do not know what they carry: {', '.join(sorted(left_out))}"
        shipped = {offering for offering, region in shipped_rows("places_aws", PLACES, 2) if region in self._regions}
        update = self._update("machine_types_aws", MACHINE_TYPES, rows, len(found), len(shipped))
        return update, remark if left_out else ""

    def places(self) -> tuple[Update, str]:
        answers = self._calls.each("places in", self._regions, lambda r: _offered(self._clients.ec2(r)))
        kept = {key: row for key, row in self._places.items() if key[1] not in self._regions}
        found = {
            (name, region): (name, region, " ".join(sorted(zones)))
            for region, offered in answers.items()
            for name, zones in offered.items()
            if (name,) in self._types
        }
        shipped = self._shipped_pairs("places_aws", PLACES)
        return self._update("places_aws", PLACES, kept | found, len(found), shipped), ""

    def prices(self) -> tuple[Update, str]:
        names = self._sold("on-demand")
        pricing = self._clients.pricing()
        answers = self._calls.each("prices of", names, lambda name: on_demand_prices(pricing, name))
        found: dict[Row, Row] = {
            (name, region): (name, region, _decimal(amount), "", SOURCE, self._today)
            for name, amounts in answers.items()
            for region, amount in amounts.items()
            if region in self._regions and (name, region) in self._places
        }
        return self._priced("prices_aws", PRICES, found), ""

    def spot(self) -> tuple[Update, str]:
        """Return the highest Spot price among the zones: a price limit then holds in every zone of the region."""
        names = set(self._sold("spot"))
        there = {region: {name for name, where in self._places if where == region} & names for region in self._regions}
        answers = self._calls.each(
            "Spot prices in",
            [region for region in self._regions if there[region]],
            lambda region: self._spot_in(region, there[region]),
        )
        found: dict[Row, Row] = {
            (name, region): (name, region, _decimal(amount), SOURCE, self._today)
            for region, amounts in answers.items()
            for name, amount in amounts.items()
        }
        return self._priced("spot_aws", SPOT, found), ""

    def _spot_in(self, region: str, names: Iterable[str]) -> dict[str, Decimal]:
        ec2 = self._clients.ec2(region)
        dearest: dict[str, Decimal] = {}
        for price in spot_prices(ec2, names, zone_ids(ec2), self._now):
            if price.since.year < 2015:  # EC2 did not sell GPUs as Spot yet: the date is wrong
                raise OddPriceError(f"{price.machine_type} has a Spot price of {price.since.date()}")
            dearest[price.machine_type] = max(price.amount, dearest.get(price.machine_type, price.amount))
        return dearest

    def quotas(self) -> tuple[Update, str]:
        markets = {(row[0], market) for row in self._types.values() for market in row[6].split()}
        asked = {quota for name, market in markets if (quota := quota_of(name, market)) is not None}
        pairs = [(region, quota) for region in self._regions for quota in sorted(asked)]
        answers = self._calls.each("quotas of", pairs, lambda pair: self._limit(*pair), _words)
        found = {
            (region, quota.code): (region, quota.market, quota.code, quota.name, f"{vcpus:g}", SOURCE, self._today)
            for (region, quota), vcpus in answers.items()
            if vcpus is not None
        }
        kept = {key: row for key, row in known_rows("quotas_aws", QUOTAS, 3).items() if key[0] not in self._regions}
        return self._update("quotas_aws", QUOTAS, kept | found, len(found), 0), ""

    def _limit(self, region: str, quota: Quota) -> float | None:
        """Return the limit in vCPUs; None: the region has no such quota."""
        service_quotas = self._clients.service_quotas(region)
        try:
            return limit(service_quotas, quota)
        except service_quotas.exceptions.NoSuchResourceException:
            return None

    def _sold(self, market: str) -> list[str]:
        """Return the machine types that are sold in this market in any of the queried regions."""
        there = {name for name, region in self._places if region in self._regions}
        return sorted(row[0] for row in self._types.values() if market in row[6].split() and row[0] in there)

    def _merged(self, machine: Machine) -> Row | None:
        """Return the table's row updated from EC2's answer; None for a new type with an unknown accelerator.

        The accelerators of a known machine type are kept from the table: SOURCES.md says where the tables override the
        API.
        """
        before = dict(zip(MACHINE_TYPES, self._types.get((machine.name,), ()), strict=False))
        if not before and machine.accelerator is None:
            return None
        retired = before.get("status") == "retired"
        elsewhere = {region for name, region in self._places if name == machine.name} - set(self._regions)
        markets = machine.markets | set(before["markets"].split() if before and elsewhere else ())
        row = {
            "machine_type": machine.name,
            "accelerator": before.get("accelerator", machine.accelerator or ""),
            "counts": before.get("counts", str(machine.gpus)),
            "vcpus": str(machine.vcpus),
            "memory_gb": f"{machine.memory_gb:g}",
            "arch": machine.arch,
            "markets": " ".join(market for market in _MARKETS.values() if market in markets),
            "status": "active",
            "ends": "",
            "offering": machine.name,
            "provider_accelerator": machine.provider_accelerator,
            "note": "" if retired else before.get("note", ""),
            "source": SOURCE,
            "date": self._today,
        }
        return tuple(row[column] for column in MACHINE_TYPES)

    def _priced(self, table: str, columns: tuple[str, ...], found: Mapping[Row, Row]) -> Update:
        kept = {key: row for key, row in known_rows(table, columns, 2).items() if key[1] not in self._regions}
        shipped = self._shipped_pairs(table, columns) if columns is PRICES else 0
        return self._update(table, columns, kept | dict(found), len(found), shipped)

    def _shipped_pairs(self, table: str, columns: tuple[str, ...]) -> int:
        return sum(region in self._regions for _, region in shipped_rows(table, columns, 2))

    def _update(
        self, table: str, columns: tuple[str, ...], rows: Mapping[Row, Row], found: int, shipped: int
    ) -> Update:
        return Update(table, columns, sorted_rows(rows), self._regions, found, shipped)


def _patterns(machine_types: Iterable[str]) -> list[str]:
    """Return name patterns for EC2's filters, e.g. `g*`: prefixes of known families, which also match their
    successors."""
    letters = {re.match("[a-z]+", name)[0] for name in machine_types}  # type: ignore[index]  # names begin with letters
    return sorted(f"{name}*" for name in letters if not any(name != o and name.startswith(o) for o in letters))


def _describe(ec2: EC2Client, patterns: list[str]) -> list[Machine]:
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": patterns}]
    )
    found = (_machine(item) for page in pages for item in page["InstanceTypes"])
    return [machine for machine in found if machine is not None]


def _machine(item: Mapping[str, Any]) -> Machine | None:
    """Parse a machine type; None if it has no accelerators and is not in the shipped table."""
    devices = (
        *(item.get("GpuInfo") or {}).get("Gpus", ()),
        *(item.get("NeuronInfo") or {}).get("NeuronDevices", ()),
        *(item.get("InferenceAcceleratorInfo") or {}).get("Accelerators", ()),
    )
    if not devices and (item.get("MediaAcceleratorInfo") or item["InstanceType"] not in _table_names()):
        return None
    device: Mapping[str, Any] = devices[0] if devices else {}
    part = Fraction(str(device.get("GpuPartitionSize", 1)))
    name = str(device.get("Name", ""))
    architectures = item["ProcessorInfo"]["SupportedArchitectures"]
    return Machine(
        name=item["InstanceType"],
        vcpus=item["VCpuInfo"]["DefaultVCpus"],
        memory_gb=item["MemoryInfo"]["SizeInMiB"] / 1024,
        arch="arm64" if "arm64" in architectures else "x86_64",
        markets=frozenset(_MARKETS[word] for word in item["SupportedUsageClasses"] if word in _MARKETS),
        provider_accelerator=name,
        accelerator=_accelerator(name, device.get("MemoryInfo", {}).get("SizeInMiB", 0) / 1024 / float(part)),
        gpus=part * device.get("LogicalGpuCount", 1) if part < 1 else Fraction(device.get("Count", 0)),
    )


@cache
def _table_names() -> frozenset[str]:
    """Return the machine types of the shipped table."""
    return frozenset(name for (name,) in shipped_rows("machine_types_aws", MACHINE_TYPES, 1))


def _accelerator(name: str, memory_gb: float) -> str | None:
    """Return the canonical name of an accelerator of EC2; None: unknown.

    EC2 uses one name for both memory sizes of the A100, and of the V100: `memory_gb`, of one accelerator, decides."""
    known = _provider_names().get(name, set())
    found = find_accelerator(name) if name and not known else None
    sizes = [accelerators()[one] for one in sorted(known)] or ([found] if found else [])
    if len(sizes) < 2:
        return sizes[0].name if sizes else None
    nearest = min(sizes, key=lambda one: abs(one.memory_gb - memory_gb))
    return nearest.name if abs(nearest.memory_gb - memory_gb) <= _MEMORY_TOLERANCE * memory_gb else None


@cache
def _provider_names() -> dict[str, set[str]]:
    """Return EC2's name of an accelerator -> canonical names, from the shipped table."""
    names: dict[str, set[str]] = {}
    text = csv_tables.shipped_text("machine_types_aws")
    for theirs, ours in csv_tables.parse(text, "provider_accelerator", "accelerator"):
        names.setdefault(theirs, set()).add(ours)
    return names


def _offered(ec2: EC2Client) -> dict[str, set[str]]:
    """Return machine type -> ids of the availability zones that offer it.

    Queries all types, since wildcards in this call's filter are not documented."""
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone-id", PaginationConfig={"PageSize": 1000}
    )
    found: dict[str, set[str]] = {}
    for page in pages:
        for item in page["InstanceTypeOfferings"]:
            if _ZONE_ID.fullmatch(item["Location"]):
                found.setdefault(item["InstanceType"], set()).add(item["Location"])
    return found


def _words(pair: tuple[str, Quota]) -> str:
    """Format region and quota for progress messages, e.g. `us-east-1 L-DB2E81BA`."""
    return f"{pair[0]} {pair[1].code}"


def _decimal(amount: Decimal) -> str:
    """Format an amount without an exponent."""
    return f"{amount:f}"
