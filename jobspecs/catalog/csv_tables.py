"""Read the CSV tables of jobspecs/tables: functions that return rows of text, and that parse cells.

A refreshed table (see table_overrides.py) replaces the shipped one.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from operator import itemgetter
from pathlib import Path

from . import table_overrides

_TABLES = Path(__file__).parents[1] / "tables"


def rows(table: str, *columns: str) -> Iterator[tuple[str, ...]]:
    """Return the named columns of every row of `tables/<table>.csv`, as text, in the table's order.

    Raises TableError if a refreshed table is damaged. ValueError for an unknown column and FileNotFoundError for an
    unknown table are defects of this package, not mistakes of the user.
    """
    newer = table_overrides.find(table)
    return parse(shipped_text(table) if newer is None else newer.text, *columns)


def shipped() -> list[str]:
    """Return the names of the tables that come with cloudgpu."""
    return sorted(path.stem for path in _TABLES.glob("*.csv"))


def shipped_text(table: str) -> str:
    """Return the text of the shipped table; a refreshed one is ignored."""
    return (_TABLES / f"{table}.csv").read_text(encoding="utf-8")


def parse(text: str, *columns: str) -> Iterator[tuple[str, ...]]:
    """Return the named columns of a table's rows.

    The csv module is not used, because it is half as fast and cells never contain commas or quotes.
    """
    header, *lines = text.splitlines()
    names = header.split(",")
    first, *others = [names.index(column) for column in columns]
    if not others:
        return ((line.split(",")[first],) for line in lines)
    pick = itemgetter(first, *others)
    return (pick(line.split(",")) for line in lines)


@cache
def words(cell: str) -> tuple[str, ...]:
    """Split a cell that holds a list separated by blanks."""
    return tuple(cell.split())


@cache
def word_set(cell: str) -> frozenset[str]:
    return frozenset(cell.split())


@cache
def counts(cell: str) -> tuple[Fraction, ...]:
    """Parse GPU counts per machine, ascending: `1 2 4`, or a fraction of a GPU such as `1/8`."""
    return tuple(map(Fraction, cell.split()))


def integer(cell: str) -> int | None:
    return int(cell) if cell else None


def number(cell: str) -> float | None:
    return float(cell) if cell else None
