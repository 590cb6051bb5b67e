"""Collect the rows of `cloudgpu catalog show`: the tables in use, their origin and the dates of their rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import NamedTuple

from ...jobspecs.catalog import csv_tables as catalog_read
from ...jobspecs.catalog import table_overrides
from ..exit_codes import Exit
from ..shared.errors import CommandError

_DATES = "table_dates"
"""Shipped table with the date of each table whose rows have no date column."""


class Entry(NamedTuple):
    """Metadata of one catalog table."""

    table: str
    origin: str
    """`shipped`, `refreshed`, or `none` (an unused refreshed table without a shipped counterpart)."""
    written: str
    """ISO time of the refresh; "" if the table was not refreshed."""
    oldest: str
    """Date of the oldest row (YYYY-MM-DD)."""
    newest: str
    rows: int
    regions: tuple[str, ...]
    """Regions that the last refresh queried."""
    remark: str
    """Why a refreshed table is not used; "" if there is no problem."""


def tables() -> list[Entry]:
    """Return the metadata of each table whose rows have dates. A damaged refreshed table gets a remark instead of
    raising."""
    shipped = set(catalog_read.shipped()) - {_DATES}
    names = {name for name in shipped if any(_days(name, catalog_read.shipped_text(name), None))}
    names |= {path.stem for path in table_overrides.folder().glob("*.csv")}
    return [_entry(name) for name in sorted(names)]


def _entry(name: str) -> Entry:
    remark = ""
    try:
        newer = table_overrides.load(table_overrides.path_of(name))
    except table_overrides.TableError as error:
        newer, remark = None, str(error)
    if newer is not None and table_overrides.find(name) is None:
        remark = f"the one refreshed {newer.written} is older than cloudgpu's own, and not used"
        newer = None
    if newer is None and name not in catalog_read.shipped():
        return Entry(name, "none", "", "", "", 0, (), remark)
    text = catalog_read.shipped_text(name) if newer is None else newer.text
    days = sorted(_days(name, text, newer)) or [""]
    origin, written, regions = ("shipped", "", ()) if newer is None else ("refreshed", newer.written, newer.regions)
    return Entry(name, origin, written, days[0], days[-1], text.count("\n") - 1, regions, remark)


def _days(name: str, text: str, newer: table_overrides.Refreshed | None) -> Iterator[str]:
    """Yield the date of each row; without a date column, the date of the refresh or of the shipped table.

    Rows of retired machine types are skipped: planning does not use them, and they no longer change.
    """
    columns = text.partition("\n")[0].split(",")
    if "date" in columns:
        status = "status" if "status" in columns else "date"
        yield from (day for day, state in catalog_read.parse(text, "date", status) if state != "retired")
        return
    dates = catalog_read.parse(catalog_read.shipped_text(_DATES), "table", "date")
    shipped = next((day for table, day in dates if table == name), None)
    if newer is not None:
        for (region,) in catalog_read.parse(text, "region"):
            yield newer.written[:10] if region in newer.regions or shipped is None else shipped
    elif shipped is not None:
        yield shipped


def rows(table: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the columns and rows of the table in use. Raises CommandError if it does not exist, TableError if it is
    damaged."""
    newer = table_overrides.find(table)
    if newer is None and table not in catalog_read.shipped():
        from ...jobspecs.suggest import did_you_mean

        known = [entry.table for entry in tables()]
        hint = did_you_mean(table, known) or "cloudgpu catalog show lists them"
        raise CommandError(f"there is no table {table!r}", hint=hint, exit_code=Exit.USAGE)
    text = catalog_read.shipped_text(table) if newer is None else newer.text
    columns = text.partition("\n")[0].split(",")
    return columns, list(catalog_read.parse(text, *columns))


def age(date: str, now: datetime.datetime) -> str:
    """Return the age of a date or time as text: `3 h`, `12 days`."""
    then = datetime.datetime.fromisoformat(date)
    hours = (now - (then if then.tzinfo else then.replace(tzinfo=datetime.UTC))) / datetime.timedelta(hours=1)
    return f"{max(0, hours):.0f} h" if hours < 36 else f"{hours / 24:.0f} days"
