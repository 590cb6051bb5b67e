"""Refresh of Google's tables from its APIs: machine types, places, list prices, and the quotas of both targets.

Read-only calls: compute.regions.list, machineTypes.list and acceleratorTypes.list of every zone, projects.get; Cloud
Billing's services.skus.list; Cloud Quotas' quotaInfos.get. A table is published only if it is complete for the
requested regions. No API returns which accelerators, and how many, N1 can attach, or in which markets a machine type is
sold: these stay as in the tables.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from ....jobspecs.catalog import csv_tables as catalog_read
from ....jobspecs.catalog import find_accelerator
from ....jobspecs.suggest import did_you_mean
from ...base import ProvisionError
from ...shared.clock import Clock, SystemClock
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
from ..account import Account
from ..rest import Rest, items, last_part
from . import prices, quotas

QUOTAS = ("region", "market", "code", "accelerator", "limit", "source", "date")
_WORKERS = 8
_COMPUTE = "compute/v1/projects/{project}"
_FAMILIES = 'name eq "(a|g|n1)[0-9a-z]*-.*"'
"""API filter of machine types: accelerator-optimised families are A and G with a number."""
_TYPE_FIELDS = (
    "items(name,guestCpus,memoryMb,architecture,accelerators,bundledLocalSsds,deprecated),nextPageToken",
    "items(name,deprecated),nextPageToken",
)
_ATTACHES = "n1-"
"""Prefix of machine types without built-in accelerators; attached ones have separate prices and places."""
_ARCHITECTURES = {"X86_64": "x86_64", "ARM64": "arm64"}
_STATUS = {"DEPRECATED": "deprecated", "OBSOLETE": "retired", "DELETED": "retired"}

_T = TypeVar("_T")


class Machine(NamedTuple):
    """A machine type as the API describes it in a zone."""

    name: str
    vcpus: int
    memory_gb: float
    arch: str
    """Processor architecture; "": not in the API's response."""
    accelerator: str
    """Name in the API; "": no built-in accelerator."""
    gpus: int
    ssds: int
    """Number of built-in local SSD partitions."""
    status: str
    """`deprecated`, `retired`; "": neither."""
    ends: str


class Region(NamedTuple):
    """A region of the project."""

    name: str
    zones: tuple[str, ...]
    quotas: Mapping[str, quotas.Allowed]
    """Quotas by metric."""


def refresh(
    regions: Sequence[str], on_progress: Progress, account: Account | None = None, clock: Clock | None = None
) -> Iterator[Outcome]:
    """Query these regions (none: all of the project), and publish and yield each table as soon as it is complete.

    Raises ProvisionError before any other query for an unknown region or missing permission; OSError.
    """
    clock = clock or SystemClock()
    rest = Rest(account or Account(clock), clock)
    there = _regions(rest)
    for region in regions:
        _check_region(region, there)
    asked = tuple(dict.fromkeys(regions)) or tuple(sorted(there))
    now = datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)
    with ThreadPoolExecutor(_WORKERS) as pool:
        asking = TableRefresh(rest, {name: there[name] for name in asked}, now, ParallelQueries(pool, on_progress))
        try:
            yield from publish_all(asking.tables(), asking.use_published, now)
        finally:
            pool.shutdown(cancel_futures=True)


class TableRefresh:
    """Queries for the tables, and the merge of their results with the known rows."""

    def __init__(
        self, rest: Rest, regions: Mapping[str, Region], now: datetime.datetime, calls: ParallelQueries
    ) -> None:
        self._rest = rest
        self._regions = regions
        self._names = tuple(regions)
        self._today = now.date().isoformat()
        self._calls = calls
        self._types = known_rows("machine_types_gcp", MACHINE_TYPES, 2)
        self._places = known_rows("places_gcp", PLACES, 2)

    def tables(self) -> dict[str, Callable[[], tuple[Update, str]]]:
        """Return the tables' builders in order: later tables refer to earlier ones."""
        return {
            "machine_types_gcp": self.machine_types,
            "places_gcp": self.places,
            "prices_gcp": self.prices,
            "quotas_gcp": self.quotas_gcp,
            "quotas_vertex": self.quotas_vertex,
        }

    def use_published(self, update: Update) -> None:
        """Use a published table: later tables refer to its machine types or places."""
        if update.table == "machine_types_gcp":
            self._types = {row[:2]: row for row in update.rows}
        elif update.table == "places_gcp":
            self._places = {row[:2]: row for row in update.rows}

    # -- machine types and places

    def machine_types(self) -> tuple[Update, str]:
        machines, attachable = self._machines(), self._attachable()
        rows, left_out = dict(self._types), []
        for machine in machines.values():
            known = {key: row for key, row in self._types.items() if key[0] == machine.name}
            for key, row in known.items():
                rows[key] = self._renewed(machine, row, attachable)
            if not known and machine.accelerator:
                added = self._added(machine)
                if added is None:
                    left_out.append(f"{machine.name} ({machine.accelerator})")
                else:
                    rows[added[:2]] = added
        remark = f"left out, for the tables have nothing alike: {', '.join(sorted(left_out))}"
        found = len({key[0] for key in rows} & set(machines))
        shipped = len({row[0] for row in self._types.values() if row[6] and _sold_in(row, self._places, self._names)})
        update = Update("machine_types_gcp", MACHINE_TYPES, sorted_rows(rows), self._names, found, shipped)
        return update, remark if left_out else ""

    def places(self) -> tuple[Update, str]:
        rows = [_named(MACHINE_TYPES, row) for row in self._types.values() if row[7] != "retired" and row[9]]
        kept = {key: row for key, row in self._places.items() if key[1] not in self._regions}
        found: dict[Row, Row] = {}
        for offering in sorted({row["offering"] for row in rows}):
            alike = [row for row in rows if row["offering"] == offering]
            for region in self._regions.values():
                zones = self._zones_with(alike, region)
                if zones:
                    found[offering, region.name] = (offering, region.name, " ".join(zones))
        shipped = sum(region in self._regions for _, region in shipped_rows("places_gcp", PLACES, 2))
        update = Update("places_gcp", PLACES, sorted_rows(kept | found), self._names, len(found), shipped)
        return update, ""

    def _zones_with(self, alike: Sequence[Mapping[str, str]], region: Region) -> list[str]:
        """Return the zones that sell all of these machine types that the region has; if none does, those that sell
        any."""
        per_zone = {zone: self._by_zone()[zone] for zone in region.zones}
        attached = alike[0]["provider_accelerator"] if alike[0]["machine_type"].startswith(_ATTACHES) else ""
        if attached:
            per_zone = {zone: names for zone, names in per_zone.items() if attached in self._accelerators()[zone]}
        wanted = {row["machine_type"] for row in alike} & set().union(*per_zone.values())
        whole = [zone for zone, names in per_zone.items() if wanted and wanted <= names.keys()]
        return sorted(whole or [zone for zone, names in per_zone.items() if wanted & names.keys()])

    def _renewed(self, machine: Machine, row: Row, attachable: Mapping[str, tuple[str, str]]) -> Row:
        """Return an updated row. Accelerator and markets stay as in the table, unless the machine type was retired."""
        known = _named(MACHINE_TYPES, row)
        status, ends = machine.status, machine.ends
        if machine.name.startswith(_ATTACHES) and known["provider_accelerator"]:
            status, ends = attachable.get(known["provider_accelerator"], ("", ""))
        if known["status"] == "retired":
            return row
        known |= {"vcpus": str(machine.vcpus), "memory_gb": f"{machine.memory_gb:g}", "date": self._today}
        known |= {"arch": machine.arch or known["arch"], "source": SOURCE}
        if status:
            known |= {"status": status, "ends": ends or known["ends"]}
            known["markets"] = "" if status == "retired" else known["markets"]
        return tuple(known[column] for column in MACHINE_TYPES)

    def _added(self, machine: Machine) -> Row | None:
        """Return a row for a new machine type, copied from one of its family, if possible with the same number of GPUs.

        None: the tables have no machine type of its family, or not its accelerator."""
        named = (_named(MACHINE_TYPES, row) for row in self._types.values() if row[10] == machine.accelerator)
        sisters = (one for one in named if _family(one["machine_type"]) == _family(machine.name) and one["markets"])
        sister = max(sisters, key=lambda one: one["counts"] == str(machine.gpus), default=None)
        accelerator = find_accelerator(machine.accelerator)
        if sister is None or accelerator is None:
            return None
        row = sister | {
            "machine_type": machine.name,
            "accelerator": accelerator.name,
            "counts": str(machine.gpus),
            "vcpus": str(machine.vcpus),
            "memory_gb": f"{machine.memory_gb:g}",
            "arch": machine.arch or sister["arch"],
            "status": machine.status or "active",
            "ends": machine.ends,
            "offering": machine.name,
            "source": SOURCE,
            "date": self._today,
        }
        return tuple(row[column] for column in MACHINE_TYPES)

    # -- prices

    def prices(self) -> tuple[Update, str]:
        machines = self._machines()
        [book] = self._calls.each("prices of", ["Compute Engine"], lambda _: prices.read(self._rest)).values()
        found: dict[Row, Row] = {}
        for row in map(_Sold, self._types.values()):
            for region in self._names:
                if row.markets and (row.offering, region) in self._places:
                    shown = [_shown(row.price(book, machines, region, market)) for market in prices.MARKETS]
                    if any(shown):
                        found[row.sku, region] = (row.sku, region, *shown, SOURCE, self._today)
        kept = {key: row for key, row in known_rows("prices_gcp", PRICES, 2).items() if key[1] not in self._regions}
        shipped = sum(region in self._regions for _, region in shipped_rows("prices_gcp", PRICES, 2))
        update = Update("prices_gcp", PRICES, sorted_rows(kept | found), self._names, len(found), shipped)
        return update, f"prices that are not understood: {'; '.join(sorted(book.odd))}" if book.odd else ""

    # -- quotas

    def quotas_gcp(self) -> tuple[Update, str]:
        known = {
            (region.name, quota): region.quotas[quota.metric].limit
            for region in self._regions.values()
            for quota in quotas.quotas("gcp")
            if quota.metric in region.quotas
        }
        project_limits = quotas.region_limits(self._rest_get_project())
        everywhere = {name: allowed.limit for name, allowed in project_limits.items() if name in quotas.ALL_REGIONS}
        return self._quotas("gcp", known, self._names, everywhere)

    def quotas_vertex(self) -> tuple[Update, str]:
        served = {region for (region,) in catalog_read.rows("regions_vertex", "region")}
        return self._quotas("vertex", {}, [name for name in self._names if name in served], {})

    def _quotas(
        self,
        target: str,
        known: Mapping[tuple[str, quotas.Quota], float],
        regions: Sequence[str],
        everywhere: Mapping[str, float],
    ) -> tuple[Update, str]:
        wanted = [quota for quota in quotas.quotas(target) if any((name, quota) not in known for name in regions)]
        answers = self._calls.each("quota", wanted, lambda quota: quotas.cloud_limits(self._rest, quota), _name_of)
        limits = dict(known)
        for quota, infos in answers.items():
            for region in regions:
                limit = None if infos is None else quotas.granted(infos, region, quota.gpu_family)
                if limit is not None:
                    limits.setdefault((region, quota), limit)
        found: dict[Row, Row] = {
            (region, quota.name): (region, quota.market, quota.name, quota.of, _limit(limit), SOURCE, self._today)
            for (region, quota), limit in limits.items()
        }
        for name, limit in everywhere.items():
            found[quotas.GLOBAL, name] = (quotas.GLOBAL, "", name, "", _limit(limit), SOURCE, self._today)
        table = f"quotas_{target}"
        before = {(row[0], row[2]): row for row in known_rows(table, QUOTAS, 3).values()}
        kept = {key: row for key, row in before.items() if key[0] not in (*self._names, quotas.GLOBAL)}
        return Update(table, QUOTAS, sorted_rows(kept | found), self._names, len(found)), ""

    # -- responses that several tables use, queried only once, even if that fails

    def _rest_get_project(self) -> dict[str, Any]:
        def ask(_: str) -> dict[str, Any]:
            return self._rest.get("compute", _COMPUTE, "ask for the project's quotas", fields="quotas")

        return self._calls.each("quotas of", ["the project"], ask)["the project"]

    def _machines(self) -> dict[str, Machine]:
        """Return all machine types by name."""
        return {name: machine for found in self._by_zone().values() for name, machine in found.items()}

    def _by_zone(self) -> dict[str, dict[str, Machine]]:
        return self._calls.once("machine types", lambda: self._of_zones("machine types of", "machineTypes", _machine))

    def _accelerators(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Return zone -> accelerator -> (status, end date), as _deprecation()."""
        return self._calls.once(
            "accelerators", lambda: self._of_zones("accelerators of", "acceleratorTypes", _deprecation)
        )

    def _attachable(self) -> dict[str, tuple[str, str]]:
        return {name: deprecation for found in self._accelerators().values() for name, deprecation in found.items()}

    def _of_zones(self, what: str, kind: str, read: Callable[[Mapping[str, object]], _T]) -> dict[str, dict[str, _T]]:
        zones = [zone for region in self._regions.values() for zone in region.zones]
        fields = _TYPE_FIELDS[kind != "machineTypes"]
        filters = {"filter": _FAMILIES} if kind == "machineTypes" else {}

        def ask(zone: str) -> dict[str, _T]:
            path, doing = f"{_COMPUTE}/zones/{zone}/{kind}", f"ask for {what} {zone}"
            pages = self._rest.pages("compute", path, doing, fields=fields, maxResults="500", **filters)
            return {item["name"]: read(item) for page in pages for item in items(page)}

        return self._calls.each(what, zones, ask)


class _Sold:
    """Row of machine types, prepared for a price list."""

    def __init__(self, row: Row) -> None:
        named = _named(MACHINE_TYPES, row)
        self.offering = named["offering"]
        self.markets = named["markets"].split()
        self._name, self._gpu = named["machine_type"], named["provider_accelerator"]
        self._attached = bool(self._gpu) and self._name.startswith(_ATTACHES)
        self._gpus = Fraction(named["counts"].split()[0]) if self._gpu and not self._attached else Fraction(0)
        self.sku = self._gpu if self._attached else self._name

    def price(self, book: prices.Book, machines: Mapping[str, Machine], region: str, market: str) -> Decimal | None:
        """Return US dollars per hour; None: unknown, or not sold in this market."""
        if market not in self.markets:
            return None
        if self._attached:
            return book.gpu(self._gpu, region, market)
        machine = machines.get(self._name)
        if machine is None:
            return None
        gpu = self._gpu if self._gpus else ""
        shape = prices.Shape(machine.name, machine.vcpus, machine.memory_gb, gpu, self._gpus, machine.ssds)
        return book.machine(shape, region, market)


# --- API responses
# --------------------------------------------------------------------------------------------------------


def _regions(rest: Rest) -> dict[str, Region]:
    """Return the project's regions by name. Raises ProvisionError."""
    doing, fields = "ask for the project's regions", "items(name,zones,quotas),nextPageToken"
    pages = rest.pages("compute", f"{_COMPUTE}/regions", doing, fields=fields)
    found = (
        Region(
            item["name"],
            tuple(sorted(last_part(zone) for zone in item.get("zones") or ())),
            quotas.region_limits(item),
        )
        for page in pages
        for item in items(page)
    )
    return {region.name: region for region in found}


def _check_region(region: str, there: Iterable[str]) -> None:
    names = sorted(there)
    if region not in names:
        meant = did_you_mean(region, names) or f"there are {', '.join(names)}"
        message = f"Google Cloud has no region {region} for this project; {meant}"
        raise ProvisionError("invalid", message, scope="region")


def _machine(item: Mapping[str, Any]) -> Machine:
    carried: Mapping[str, Any] = next(iter(items(item, "accelerators")), {})
    status, ends = _deprecation(item)
    return Machine(
        name=item["name"],
        vcpus=int(item["guestCpus"]),
        memory_gb=round(int(item["memoryMb"]) / 1024, 2),  # the API returns 14.4 GiB as 14,746 MiB
        arch=_ARCHITECTURES.get(item.get("architecture", ""), ""),
        accelerator=str(carried.get("guestAcceleratorType", "")),
        gpus=int(carried.get("guestAcceleratorCount", 0)),
        ssds=int((item.get("bundledLocalSsds") or {}).get("partitionCount", 0)),
        status=status,
        ends=ends,
    )


def _deprecation(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return status and end date; both "" where not given."""
    deprecation: Mapping[str, str] = item.get("deprecated") or {}
    end = deprecation.get("deleted") or deprecation.get("obsolete") or ""
    return _STATUS.get(deprecation.get("state", ""), ""), end[:10]


# --- rows -------------------------------------------------------------------------------------------------------------


def _family(machine_type: str) -> str:
    """Return the family: `a3-highgpu` for `a3-highgpu-8g` and its variant `a3-highgpu-8g-nolssd`."""
    return "-".join(machine_type.split("-")[:2])


def _named(columns: Sequence[str], row: Row) -> dict[str, str]:
    return dict(zip(columns, row, strict=True))


def _sold_in(row: Row, places: Mapping[Row, Row], regions: Iterable[str]) -> bool:
    return any((row[9], region) in places for region in regions)


def _shown(price: Decimal | None) -> str:
    """Format a price without an exponent; "" for None."""
    return "" if price is None else f"{price.normalize():f}"


def _limit(limit: float) -> str:
    return "unlimited" if limit == quotas.UNLIMITED else f"{limit:g}"


def _name_of(quota: quotas.Quota) -> str:
    return quota.name
