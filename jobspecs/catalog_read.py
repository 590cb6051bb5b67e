"""Reading the CSV tables of jobspecs/tables: rows of text, and the few kinds of cell they hold."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

_TABLES = Path(__file__).with_name("tables")


def rows(table: str, *columns: str) -> Iterator[tuple[str, ...]]:
    """The named columns of every row of `tables/<table>.csv`, as text, in the table's order.

    Raises ValueError for a column the table lacks and FileNotFoundError for an unknown table: both are faults of
    this package, never of its user.
    """
    with (_TABLES / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        places = [header.index(column) for column in columns]
        for row in reader:
            yield tuple([row[place] for place in places])


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
