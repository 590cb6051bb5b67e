"""What `cloudgpu catalog show` tells of the tables: which are used, of what day, and from where."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from ..jobspecs import catalog_read, refreshed
from .errors import CommandError
from .exits import Exit


class Entry(NamedTuple):
    """A table."""

    table: str
    origin: str
    """`shipped`, or `refreshed`."""
    date: str
    """Of the whole table: the day it was compiled or refreshed; rows have dates of their own."""
    rows: int
    regions: tuple[str, ...]
    """Those that the provider was asked about."""
    remark: str
    """What is wrong with a refreshed table that is not used; ""."""


def tables() -> list[Entry]:
    """Those that differ from provider to provider; machines, places, prices. A damaged one is told, not raised."""
    names = {name for name in catalog_read.shipped() if name.endswith(_CLOUDS)}
    names |= {path.stem for path in refreshed.folder().glob("*.csv")}
    return [_entry(name) for name in sorted(names)]


_CLOUDS = ("_aws", "_gcp", "_vertex", "_azure")


def _entry(name: str) -> Entry:
    remark = ""
    try:
        newer = refreshed.load(refreshed.path_of(name))
    except refreshed.TableError as error:
        newer, remark = None, str(error)
    if newer is not None and refreshed.find(name) is not None:
        return Entry(name, "refreshed", newer.written, newer.text.count("\n") - 1, newer.regions, "")
    if newer is not None:
        remark = f"the one refreshed {newer.written} is older than cloudgpu's own, and not used"
    count = catalog_read.shipped_text(name).count("\n") - 1 if name in catalog_read.shipped() else 0
    return Entry(name, "shipped" if count else "none", refreshed.SHIPPED, count, (), remark)


def rows(table: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and rows of the table in use. Raises CommandError for one that there is not, TableError."""
    newer = refreshed.find(table)
    if newer is None and table not in catalog_read.shipped():
        from ..jobspecs.suggest import did_you_mean

        known = [entry.table for entry in tables()]
        hint = did_you_mean(table, known) or "cloudgpu catalog show lists them"
        raise CommandError(f"there is no table {table!r}", hint=hint, exit_code=Exit.USAGE)
    text = catalog_read.shipped_text(table) if newer is None else newer.text
    columns = text.partition("\n")[0].split(",")
    return columns, list(catalog_read.parse(text, *columns))


def age(date: str, now: datetime.datetime) -> str:
    """`3 h`, `12 days`, of a day or a moment."""
    then = datetime.datetime.fromisoformat(date)
    hours = (now - (then if then.tzinfo else then.replace(tzinfo=datetime.UTC))) / datetime.timedelta(hours=1)
    return f"{max(0, hours):.0f} h" if hours < 36 else f"{hours / 24:.0f} days"
