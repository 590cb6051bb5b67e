"""Reading the CSV tables of jobspecs/tables: rows of text, and the few kinds of cell they hold.

A table that was refreshed (see table_overrides.py) is read instead of the shipped one.
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
    """The named columns of every row of `tables/<table>.csv`, as text, in the table's order.

    Raises TableError if the table was refreshed and is damaged. ValueError for a column the table lacks and
    FileNotFoundError for an unknown table are faults of this package, never of its user.
    """
    newer = table_overrides.find(table)
    return parse(shipped_text(table) if newer is None else newer.text, *columns)


def shipped() -> list[str]:
    """Names of the tables that come with cloudgpu."""
    return sorted(path.stem for path in _TABLES.glob("*.csv"))


def shipped_text(table: str) -> str:
    """The table as it comes with cloudgpu, whatever was refreshed."""
    return (_TABLES / f"{table}.csv").read_text(encoding="utf-8")


def parse(text: str, *columns: str) -> Iterator[tuple[str, ...]]:
    """The named columns of a table's rows. No cell holds a comma or a quote, so csv (twice as slow) is not needed."""
    header, *lines = text.splitlines()
    names = header.split(",")
    first, *others = [names.index(column) for column in columns]
    if not others:
        return ((line.split(",")[first],) for line in lines)
    pick = itemgetter(first, *others)
    return (pick(line.split(",")) for line in lines)


@cache
def words(cell: str) -> tuple[str, ...]:
    """A list within a cell: its entries are separated by blanks."""
    return tuple(cell.split())


@cache
def word_set(cell: str) -> frozenset[str]:
    return frozenset(cell.split())


@cache
def counts(cell: str) -> tuple[Fraction, ...]:
    """GPUs per machine, ascending: `1 2 4`, or a part of one as `1/8`."""
    return tuple(map(Fraction, cell.split()))


def integer(cell: str) -> int | None:
    return int(cell) if cell else None


def number(cell: str) -> float | None:
    return float(cell) if cell else None
