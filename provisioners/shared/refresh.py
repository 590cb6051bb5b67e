"""What `cloudgpu catalog refresh` does for every cloud alike: judge what a provider answered, then publish it.

A cloud's own module (aws/catalog/refresh.py) asks and merges; here a table is compared with the shipped one and
replaces what was used before in one step, or is refused, and then nothing changes. Tables are independent of each
other: a place or price of a machine type that the other tables lack is just never looked up.
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
"""Requests answered, requests in all (more may be found on the way)."""

_EARLIEST = datetime.date(2015, 1, 1)
_LEAST_PART = 2
"""A provider that names fewer than the shipped facts by this factor has answered in part, or about something else."""


class OddTableError(ValueError):
    """A table looks wrong; the message says how."""


def refreshable() -> list[str]:
    """Return the clouds whose tables can be refreshed."""
    return [name for name in WITH_TABLES if (found := target_of(name)) is not None and found.tables]


def ask(cloud: str, regions: Sequence[str], on_progress: Progress) -> Iterator[Outcome]:
    """Ask a cloud about these regions (none: all that the account may use); what became of each table, one by one.

    Raises ProvisionError if the cloud cannot be asked at all, OSError if the state directory cannot be written.
    """
    found = target_of(cloud)
    if found is None or not found.tables:
        raise ProvisionError("invalid", f"the tables of {cloud} cannot be refreshed", scope="cloud")
    module = code_of(cloud, found.tables)
    with alone():
        yield from module.refresh(regions, on_progress)


@dataclass(frozen=True, slots=True)
class Update:
    """A table to publish."""

    table: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    """All: those of regions that were not asked as they were before."""
    regions: tuple[str, ...]
    """Those that were asked."""
    found: int
    """Facts that the provider told."""
    shipped: int = 0
    """Facts of the same regions in the shipped table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a table."""

    table: str
    state: Literal["refreshed", "kept"]
    facts: int = 0
    """That the provider told."""
    reason: str = ""
    """Why it was kept as it was; or what a refreshed one leaves out."""


def publish(update: Update, now: datetime.datetime) -> Outcome:
    """Put the table in use, or keep the one that is. Raises OSError if the state directory cannot be written."""
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
    """Raise OddTableError for a table that nobody should plan with."""
    if not update.found:
        raise OddTableError("the provider names nothing")
    if update.found * _LEAST_PART < update.shipped:
        raise OddTableError(f"{update.found} facts, where the shipped table has {update.shipped}")
    for row in update.rows:
        for column, cell in zip(update.columns, row, strict=True):
            if column == "date" and datetime.date.fromisoformat(cell) < _EARLIEST:
                raise OddTableError(f"a date of {cell}: {' '.join(row)}")
            if column.endswith("_usd_h") and cell and not _is_price(cell):
                raise OddTableError(f"a price of {cell} USD/h: {' '.join(row)}")


def _is_price(cell: str) -> bool:
    try:
        return Decimal("0.001") <= Decimal(cell) <= 1000  # no machine with a GPU is beyond either end, by far
    except InvalidOperation:
        return False


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One refresh or reset of the tables at a time. Raises ProvisionError(transient) while another runs, OSError."""
    folder = private(table_overrides.folder())
    held = try_lock(folder / "lock")
    if held is None:
        raise ProvisionError("transient", "another `cloudgpu catalog` command is changing the tables", scope="cloud")
    try:
        yield
    finally:
        os.close(held)


def reset() -> list[str]:
    """Go back to the shipped tables; returns the names of those that were removed. Raises as alone()."""
    if not table_overrides.folder().is_dir():
        return []
    with alone():
        found = sorted(table_overrides.folder().glob("*.csv"))
        for path in found:
            path.unlink()
    return [path.stem for path in found]
