"""Refresh of Azure's tables from its APIs: places, machine types, prices of both markets, quotas.

Read-only calls: the subscription's locations, Microsoft.Compute/skus and usages of every region; the Retail Prices API,
which needs no login. A table is published only if it is complete for the requested regions.

No API returns which accelerator a size has, and for sizes with a fraction of a GPU the API's GPU count is wrong (1 or
none). Known sizes therefore keep the tables' accelerators, and a new size is assumed to have those of its family.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

from ...base import ProvisionError
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
from ..clients import Clients, Json
from . import quotas
from .prices import MARKETS, PriceList
from .regions import check_regions, regions_of
from .sizes import size_of, skus_of

MORE_MARKETS = ("spot", "reservation")
"""Markets that only some sizes are sold in, in the tables' order."""
QUOTAS = ("region", "market", "code", "name", "vcpus", "source", "date")
_WORKERS = 8
_ARCHITECTURES = {"x64": "x86_64", "Arm64": "arm64"}
_MOST_NAMED = 8
"""Number of names in a remark before it is truncated."""


class Sku(NamedTuple):
    """A VM size as the API describes it in a region."""

    name: str
    family: str
    vcpus: int
    memory_gb: float
    gpus: int
    """The API's value, which may be wrong: see the module's docstring."""
    arch: str
    """Processor architecture; "": not in the API's response."""
    markets: frozenset[str]
    """Markets other than on-demand: a subset of MORE_MARKETS."""
    zones: tuple[str, ...]
    """The subscription's zone numbers; (): the region has no zones for it."""
    restricted: bool
    """True if Azure does not sell it to this subscription in this region."""


def refresh(regions: Sequence[str], on_progress: Progress, clients: Clients | None = None) -> Iterator[Outcome]:
    """Query these regions (none: all of the subscription), and publish and yield each table as soon as it is complete.

    Raises ProvisionError before any other query for an unknown region or missing permission; OSError.
    """
    clients = clients or Clients()
    there = regions_of(clients)
    check_regions(regions, there)
    asked = tuple(dict.fromkeys(regions)) or tuple(there)
    now = datetime.datetime.fromtimestamp(clients.clock.now(), datetime.UTC)
    with ThreadPoolExecutor(_WORKERS) as pool:
        asking = TableRefresh(clients, asked, now, ParallelQueries(pool, on_progress))
        try:
            yield from publish_all(asking.tables(), asking.use_published, now)
        finally:
            pool.shutdown(cancel_futures=True)


class TableRefresh:
    """Queries for the tables, and the merge of their results with the known rows."""

    def __init__(
        self, clients: Clients, regions: tuple[str, ...], now: datetime.datetime, calls: ParallelQueries
    ) -> None:
        self._clients = clients
        self._regions = regions
        self._today = now.date().isoformat()
        self._calls = calls
        self._types = known_rows("machine_types_azure", MACHINE_TYPES, 1)
        self._places = known_rows("places_azure", PLACES, 2)

    def tables(self) -> dict[str, Callable[[], tuple[Update, str]]]:
        """Return the tables' builders in order: machine types refer to places, which must be published first."""
        return {
            "places_azure": self.places,
            "machine_types_azure": self.machine_types,
            "prices_azure": self.prices,
            "quotas_azure": self.quotas,
        }

    def use_published(self, update: Update) -> None:
        """Use a published table: later tables refer to its places or machine types."""
        if update.columns is PLACES:
            self._places = {row[:2]: row for row in update.rows}
        elif update.columns is MACHINE_TYPES:
            self._types = {row[:1]: row for row in update.rows}

    # -- places

    def places(self) -> tuple[Update, str]:
        """Return places of each size: the zones can differ between sizes of one series.

        The shipped tables have places of series only. In regions that are not queried, each size gets the series'
        places; the series' rows are kept for a table of machine types that still refers to them.
        """
        skus = self._skus()
        series = {row["machine_type"]: row["offering"] for row in self._named_types() if row["offering"]}
        found = dict(self._handed_down(series))
        listed: set[Row] = set()
        for region, of_region in skus.items():
            for sku in of_region.values():
                listed.add((series.get(sku.name, sku.name), region))
                for offering in {series.get(sku.name, sku.name), sku.name} if not sku.restricted else ():
                    zones = {*found.get((offering, region), ("", "", ""))[2].split(), *sku.zones}
                    found[offering, region] = (offering, region, " ".join(sorted(zones)))
        shipped = {row for row in shipped_rows("places_azure", PLACES, 2) if row[1] in self._regions}
        update = Update("places_azure", PLACES, sorted_rows(found), self._regions, len(listed), len(shipped))
        return update, self._restrictions(skus)

    def _handed_down(self, series: Mapping[str, str]) -> Iterator[tuple[Row, Row]]:
        """Yield the known places of regions that are not queried, for each series and its sizes."""
        for (offering, region), row in self._places.items():
            if region not in self._regions:
                sizes = [name for name, known in series.items() if known == offering]
                yield from (((name, region), (name, region, row[2])) for name in {offering, *sizes})

    @staticmethod
    def _restrictions(skus: Mapping[str, Mapping[str, Sku]]) -> str:
        names = sorted(
            f"{sku.name} in {region}" for region, found in skus.items() for sku in found.values() if sku.restricted
        )
        if not names:
            return ""
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"not sold to this subscription: {', '.join(names[:_MOST_NAMED])}{more}; ask Azure's support for access"

    # -- machine types

    def machine_types(self) -> tuple[Update, str]:
        skus = self._skus()
        of_name = {sku.name: sku for of_region in skus.values() for sku in of_region.values()}
        rows, left_out = dict(self._types), []
        for name, sku in of_name.items():
            known = self._types.get((name,))
            row = self._added(sku, of_name) if known is None else self._renewed(sku, known, skus)
            if row is None:
                left_out.append(name)
            else:
                rows[name,] = row
        remark = f"left out, for the tables do not know what they carry: {', '.join(sorted(left_out))}"
        shipped = [row for row in shipped_rows("machine_types_azure", MACHINE_TYPES, 1).values() if self._is_sold(row)]
        found = sum((name,) in rows for name in of_name)
        update = Update("machine_types_azure", MACHINE_TYPES, sorted_rows(rows), self._regions, found, len(shipped))
        return update, remark if left_out else ""

    def _renewed(self, sku: Sku, row: Row, skus: Mapping[str, Mapping[str, Sku]]) -> Row:
        """Return an updated row. The accelerator stays as in the table; a retired size stays retired even if listed."""
        known = _named(MACHINE_TYPES, row)
        if known["status"] == "retired":
            return row
        everywhere = {region for name, region in self._places if name in (sku.name, known["offering"])}
        offered = {
            market for of_region in skus.values() if sku.name in of_region for market in of_region[sku.name].markets
        }
        before = known["markets"].split()
        elsewhere = set(before) if everywhere - skus.keys() else set()
        markets = [market for market in before if market not in MORE_MARKETS]
        markets += [market for market in MORE_MARKETS if market in offered | elsewhere]
        known |= {
            "vcpus": str(sku.vcpus),
            "memory_gb": f"{sku.memory_gb:g}",
            "arch": sku.arch or known["arch"],
            "markets": " ".join(markets),
            "offering": sku.name if self._has_places(sku.name) else known["offering"],
            "source": SOURCE,
            "date": self._today,
        }
        return tuple(known[column] for column in MACHINE_TYPES)

    def _added(self, sku: Sku, of_name: Mapping[str, Sku]) -> Row | None:
        """Return a row for a new size with its family's accelerator.

        None: the size has no GPU, or its family has several kinds of accelerators or fractions of a GPU."""
        alike = [
            row
            for row in self._named_types()
            if (other := of_name.get(row["machine_type"])) and quotas.key(other.family) == quotas.key(sku.family)
        ]
        kinds = {row["accelerator"] for row in alike}
        whole = all(Fraction(count).denominator == 1 for row in alike for count in row["counts"].split())
        if len(kinds) != 1 or not whole or not sku.gpus:
            return None
        row = alike[0] | {
            "machine_type": sku.name,
            "counts": str(sku.gpus),
            "vcpus": str(sku.vcpus),
            "memory_gb": f"{sku.memory_gb:g}",
            "arch": sku.arch or alike[0]["arch"],
            "markets": " ".join(("on-demand", *(market for market in MORE_MARKETS if market in sku.markets))),
            "status": "active",
            "ends": "",
            "offering": sku.name if self._has_places(sku.name) else "",
            "note": "",
            "source": SOURCE,
            "date": self._today,
        }
        return tuple(row[column] for column in MACHINE_TYPES)

    # -- prices

    def prices(self) -> tuple[Update, str]:
        """Query the prices of each size that the tables have as sold anywhere; one query returns all regions."""
        sold = {row["machine_type"]: row for row in self._named_types() if row["markets"] and row["offering"]}
        book = PriceList(self._clients.account, self._clients.clock)
        answers = self._calls.each("prices of", sold, book.of)
        priced: dict[Row, Row] = {}
        for name, prices in answers.items():
            for region in self._regions:
                amounts = [
                    _decimal(prices.amounts.get((region, market)) if market in sold[name]["markets"].split() else None)
                    for market in MARKETS
                ]
                if any(amounts):
                    priced[name, region] = (name, region, *amounts, SOURCE, self._today)
        # Rows without places are dropped: the API also returns prices of sizes not sold to the subscription. They still
        # count as answered.
        found = {key: row for key, row in priced.items() if (sold[key[0]]["offering"], key[1]) in self._places}
        kept = {key: row for key, row in known_rows("prices_azure", PRICES, 2).items() if key[1] not in self._regions}
        shipped = sum(region in self._regions for _, region in shipped_rows("prices_azure", PRICES, 2))
        update = Update("prices_azure", PRICES, sorted_rows(kept | found), self._regions, len(priced), shipped)
        odd = sorted(chain.from_iterable(prices.odd for prices in answers.values()))
        return update, f"prices that are not understood: {'; '.join(odd)}" if odd else ""

    # -- quotas

    def quotas(self) -> tuple[Update, str]:
        answers = self._calls.each("quotas of", self._regions, lambda region: quotas.usages(self._clients, region))
        wanted = {quotas.key(family): "on-demand" for family in (*quotas.families(), quotas.TOTAL)}
        wanted[quotas.key(quotas.SPOT)] = "spot"
        found: dict[Row, Row] = {
            (region, usage.code): (region, wanted[key], usage.code, usage.name, str(usage.limit), SOURCE, self._today)
            for region, usages in answers.items()
            for key, usage in usages.items()
            if key in wanted
        }
        before = {(row[0], row[2]): row for row in known_rows("quotas_azure", QUOTAS, 3).values()}
        kept = {key: row for key, row in before.items() if key[0] not in self._regions}
        return Update("quotas_azure", QUOTAS, sorted_rows(kept | found), self._regions, len(found)), ""

    # -- helpers

    def _skus(self) -> dict[str, dict[str, Sku]]:
        """Return region -> name -> size, for sizes with accelerators or in the tables. Queries the API only once."""
        known = {name for (name,) in self._types}
        return self._calls.once(
            "sizes",
            lambda: self._calls.each("sizes of", self._regions, lambda region: _ask_skus(self._clients, region, known)),
        )

    def _named_types(self) -> list[dict[str, str]]:
        return [_named(MACHINE_TYPES, row) for row in self._types.values()]

    def _has_places(self, offering: str) -> bool:
        return any(name == offering for name, _ in self._places)

    def _is_sold(self, row: Row) -> bool:
        """Return True if the shipped tables have the size in a queried region."""
        shipped = shipped_rows("places_azure", PLACES, 2)
        return row[7] != "retired" and any((row[9], region) in shipped for region in self._regions)


# --- API responses
# --------------------------------------------------------------------------------------------------------


def _ask_skus(clients: Clients, region: str, known: Iterable[str]) -> dict[str, Sku]:
    """Return the sizes in a region that have accelerators or are known. Raises ProvisionError."""
    doing, names = f"ask for the sizes of {region}", set(known)
    try:
        found = (
            _sku(item, region)
            for item in skus_of(clients, region, doing)
            if item["name"] in names or _gpus(_capabilities(item))
        )
        return {sku.name: sku for sku in found}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{doing}: an unexpected answer ({type(error).__name__}: {error})"
        raise ProvisionError("transient", message, scope="region") from error


def _sku(item: Json, region: str) -> Sku:
    capabilities, size = _capabilities(item), size_of(item, region)
    return Sku(
        name=item["name"],
        family=size.family,
        vcpus=int(capabilities["vCPUs"]),
        memory_gb=float(capabilities["MemoryGB"]),
        gpus=_gpus(capabilities),
        arch=_ARCHITECTURES.get(capabilities.get("CpuArchitectureType", ""), ""),
        markets=frozenset(
            market for market, sold in zip(MORE_MARKETS, (size.spot, _is_reservable(capabilities)), strict=True) if sold
        ),
        zones=size.zones,
        restricted=bool(size.reason),
    )


def _is_reservable(capabilities: Mapping[str, str]) -> bool:
    """Return True if capacity reservations of any type support the size."""
    return capabilities.get("CapacityReservationSupported") == "True"


def _capabilities(item: Mapping[str, Any]) -> dict[str, str]:
    """Return a size's capabilities, by name."""
    return {one["name"]: str(one["value"]) for one in item.get("capabilities") or ()}


def _gpus(capabilities: Mapping[str, str]) -> int:
    return int(float(capabilities.get("GPUs", "0")))


# --- rows -------------------------------------------------------------------------------------------------------------


def _named(columns: Sequence[str], row: Row) -> dict[str, str]:
    return dict(zip(columns, row, strict=True))


def _decimal(amount: Decimal | None) -> str:
    """Format an amount without an exponent; "" for None."""
    return "" if amount is None else f"{amount:f}"
