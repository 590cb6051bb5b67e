"""The AWS tables, asked of AWS: machine types, places, list prices, Spot prices and quotas, region by region.

Read-only calls: ec2:DescribeRegions, DescribeInstanceTypes, DescribeInstanceTypeOfferings, DescribeAvailabilityZones
and DescribeSpotPriceHistory, pricing:GetProducts, servicequotas:GetServiceQuota. A table is complete for the regions
that were asked, or it is not made: whoever may not ask about one region leaves it out by name.
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
    Calls,
    Row,
    in_order,
    known_rows,
    published,
    shipped_rows,
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
"""Of an availability zone proper; local and Wavelength zones have a part more."""
_MEMORY_TOLERANCE = 0.15

SPOT = ("sku", "region", "spot_usd_h", "source", "date")
QUOTAS = ("region", "market", "code", "name", "vcpus", "source", "date")


class Machine(NamedTuple):
    """A machine type as EC2 describes it in a region."""

    name: str
    vcpus: int
    memory_gb: float
    arch: str
    markets: frozenset[str]
    provider_accelerator: str
    """The API's name; "": it tells of none."""
    accelerator: str | None
    """Canonical; None: not in our tables."""
    gpus: Fraction


def refresh(regions: Sequence[str], on_progress: Progress, clients: Clients | None = None) -> Iterator[Outcome]:
    """Ask about these regions (none: all that the account has enabled), publish each table as soon as it is complete.

    Raises ProvisionError before anything is asked about a region that does not exist, or where nobody may ask; OSError.
    """
    clients = clients or Clients()
    for region in regions:
        clients.check_region(region)
    asked = tuple(dict.fromkeys(regions)) or tuple(sorted(name for name, on in clients.regions.items() if on))
    now = datetime.datetime.fromtimestamp(clients.clock.now(), datetime.UTC)
    with ThreadPoolExecutor(_WORKERS) as pool:
        calls = Calls(pool, on_progress, lambda doing: translate_errors(doing, clients.clock))
        asking = _Asking(clients, asked, now, calls)
        made = (asking.machine_types, asking.places, asking.prices, asking.spot, asking.quotas)
        try:
            yield from published({f"{table.__name__}_{CLOUD}": table for table in made}, asking.settle, now)
        finally:
            pool.shutdown(cancel_futures=True)


class _Asking:
    """The tables' questions, and how the answers are merged with what was known. Each is called once, in this order."""

    def __init__(self, clients: Clients, regions: tuple[str, ...], now: datetime.datetime, calls: Calls) -> None:
        self._clients = clients
        self._regions = regions
        self._now = now
        self._today = now.date().isoformat()
        self._calls = calls
        self._types = known_rows("machine_types_aws", MACHINE_TYPES, 1)
        self._places = known_rows("places_aws", PLACES, 2)

    def settle(self, update: Update) -> None:
        """The table is in use: the ones that follow are of its machine types, and of its places."""
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
        """The dearest zone's: a limit on the price then holds wherever in the region the machine is got."""
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
            if price.since.year < 2015:  # EC2 had no GPUs for sale as Spot then: no real clock wrote this
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
        """vCPUs; None: the region has no such quota."""
        service_quotas = self._clients.service_quotas(region)
        try:
            return limit(service_quotas, quota)
        except service_quotas.exceptions.NoSuchResourceException:
            return None

    def _sold(self, market: str) -> list[str]:
        """Machine types that are sold so, in a region that was asked."""
        there = {name for name, region in self._places if region in self._regions}
        return sorted(row[0] for row in self._types.values() if market in row[6].split() and row[0] in there)

    def _merged(self, machine: Machine) -> Row | None:
        """The table's row with what EC2 says of it; None: it carries something the tables do not know.

        What a known machine type carries is left as the tables have it: SOURCES.md tells where they overrule the API.
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
        return Update(table, columns, in_order(rows), self._regions, found, shipped)


def _patterns(machine_types: Iterable[str]) -> list[str]:
    """For EC2's filters: all families that begin as the known ones do, so that their successors are found: `g*`."""
    letters = {re.match("[a-z]+", name)[0] for name in machine_types}  # type: ignore[index]  # all names begin so
    return sorted(f"{name}*" for name in letters if not any(name != o and name.startswith(o) for o in letters))


def _describe(ec2: EC2Client, patterns: list[str]) -> list[Machine]:
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": patterns}]
    )
    found = (_machine(item) for page in pages for item in page["InstanceTypes"])
    return [machine for machine in found if machine is not None]


def _machine(item: Mapping[str, Any]) -> Machine | None:
    """None: no accelerator is told of, and no known machine type is meant."""
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
    """Machine types of the shipped table."""
    return frozenset(name for (name,) in shipped_rows("machine_types_aws", MACHINE_TYPES, 1))


def _accelerator(name: str, memory_gb: float) -> str | None:
    """Canonical name; None: not known. EC2 calls both sizes of the A100 and of the V100 alike: the memory tells."""
    known = _provider_names().get(name, set())
    found = find_accelerator(name) if name and not known else None
    sizes = [accelerators()[one] for one in sorted(known)] or ([found] if found else [])
    if len(sizes) < 2:
        return sizes[0].name if sizes else None
    nearest = min(sizes, key=lambda one: abs(one.memory_gb - memory_gb))
    return nearest.name if abs(nearest.memory_gb - memory_gb) <= _MEMORY_TOLERANCE * memory_gb else None


@cache
def _provider_names() -> dict[str, set[str]]:
    """EC2's name of an accelerator -> ours, as in the shipped table."""
    names: dict[str, set[str]] = {}
    text = csv_tables.shipped_text("machine_types_aws")
    for theirs, ours in csv_tables.parse(text, "provider_accelerator", "accelerator"):
        names.setdefault(theirs, set()).add(ours)
    return names


def _offered(ec2: EC2Client) -> dict[str, set[str]]:
    """machine type -> AZ ids. Of all types: that this call's filter knows wildcards is written nowhere."""
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
    """`us-east-1 L-DB2E81BA`."""
    return f"{pair[0]} {pair[1].code}"


def _decimal(amount: Decimal) -> str:
    """Never in exponents."""
    return f"{amount:f}"
