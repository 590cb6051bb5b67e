"""Cloud-independent part of `cloudgpu catalog refresh`: validate a refreshed table, then publish it.

A cloud's module (e.g. aws/catalog/refresh.py) queries the provider and merges the answers. Here the table is compared
with the shipped one and atomically replaces the current one, or is rejected without any change. Tables are independent
of each other: rows for machine types that other tables lack are never looked up.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

from ...jobspecs.catalog import table_overrides
from ...jobspecs.home import private
from ...jobspecs.targets import WITH_TABLES
from ...storage import durable
from ..base import ProvisionError
from ..target import code_of, target_of
from .locks import try_lock

Progress = Callable[[int, int], None]
"""Callback: (requests answered, total requests); the total may grow."""

_EARLIEST = datetime.date(2015, 1, 1)
_MIN_FRACTION = 2
"""A table with fewer facts than the shipped one divided by this factor is rejected as incomplete."""


class ImplausibleTableError(ValueError):
    """A table is implausible; the message says why."""


def refreshable() -> list[str]:
    """Return the clouds whose tables can be refreshed."""
    return [name for name in WITH_TABLES if (found := target_of(name)) is not None and found.tables]


def ask(cloud: str, regions: Sequence[str], on_progress: Progress) -> Iterator[Outcome]:
    """Refresh a cloud's tables for these regions (none: all that the account may use); yield each table's outcome.

    Raises ProvisionError if the cloud cannot be queried at all, OSError if the state directory cannot be written.
    """
    found = target_of(cloud)
    if found is None or not found.tables:
        raise ProvisionError("invalid", f"the tables of {cloud} cannot be refreshed", scope="cloud")
    module = code_of(cloud, found.tables)
    with table_lock():
        yield from module.refresh(regions, on_progress)


@dataclass(frozen=True, slots=True)
class Update:
    """A table to publish."""

    table: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    """All rows of the table; rows of regions that were not queried are unchanged."""
    regions: tuple[str, ...]
    """Regions that were queried."""
    found: int
    """Number of facts in the provider's answers."""
    shipped: int = 0
    """Number of facts about the same regions in the shipped table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of refreshing one table."""

    table: str
    state: Literal["refreshed", "kept"]
    facts: int = 0
    """Number of facts in the provider's answers."""
    reason: str = ""
    """Reason for which the table was kept, or a remark on what the refreshed table lacks."""


def publish(update: Update, now: datetime.datetime) -> Outcome:
    """Publish the table if it is plausible, else keep the current one. Raises OSError if it cannot be written."""
    try:
        check(update)
        content = table_overrides.encode(
            update.columns, update.rows, now.strftime("%Y-%m-%dT%H:%M:%SZ"), update.regions
        )
    except ValueError as error:
        return Outcome(update.table, "kept", reason=f"the answer looks wrong: {error}")
    durable.create(table_overrides.path_of(update.table), content, replace=True)
    return Outcome(update.table, "refreshed", update.found)


def check(update: Update) -> None:
    """Raise ImplausibleTableError if the table is implausible: too few facts, impossible dates or prices."""
    if not update.found:
        raise ImplausibleTableError("the provider names nothing")
    if update.found * _MIN_FRACTION < update.shipped:
        raise ImplausibleTableError(f"{update.found} facts, where the shipped table has {update.shipped}")
    for row in update.rows:
        for column, cell in zip(update.columns, row, strict=True):
            if column == "date" and datetime.date.fromisoformat(cell) < _EARLIEST:
                raise ImplausibleTableError(f"a date of {cell}: {' '.join(row)}")
            if column.endswith("_usd_h") and cell and not _is_price(cell):
                raise ImplausibleTableError(f"a price of {cell} USD/h: {' '.join(row)}")


def _is_price(cell: str) -> bool:
    try:
        return Decimal("0.001") <= Decimal(cell) <= 1000  # all machines with GPUs are well within these bounds
    except InvalidOperation:
        return False


@contextlib.contextmanager
def table_lock() -> Iterator[None]:
    """Context manager: hold the lock on the tables. Raises ProvisionError(transient) if another process holds it,
    OSError."""
    folder = private(table_overrides.folder())
    held = try_lock(folder / "lock")
    if held is None:
        raise ProvisionError("transient", "another `cloudgpu catalog` command is changing the tables", scope="cloud")
    try:
        yield
    finally:
        os.close(held)


def reset() -> list[str]:
    """Delete all refreshed tables, so that the shipped ones apply; return their names. Raises as table_lock() does."""
    if not table_overrides.folder().is_dir():
        return []
    with table_lock():
        found = sorted(table_overrides.folder().glob("*.csv"))
        for path in found:
            path.unlink()
    return [path.stem for path in found]
