"""Helpers of a catalog refresh: parallel queries, and the rows of the current and shipped tables.

A table is made only if all queries for its regions succeeded. catalog/refresh.py of each cloud defines the queries and
turns the answers into rows; refresh.py validates and publishes the tables.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import TypeVar, cast

from ...jobspecs.catalog import csv_tables, table_overrides
from ..base import ProvisionError
from .refresh import Outcome, Progress, Update, publish

SOURCE = "refresh"
"""Value of the column `source` of refreshed rows: an id in jobspecs/tables/SOURCES.md."""

# Columns of refreshed tables that are also shipped (docs/reference/tables.md).
MACHINE_TYPES = (
    *("machine_type", "accelerator", "counts", "vcpus", "memory_gb", "arch", "markets", "status", "ends"),
    *("offering", "provider_accelerator", "note", "source", "date"),
)
PLACES = ("offering", "region", "zones")
PRICES = ("sku", "region", "on_demand_usd_h", "spot_usd_h", "source", "date")

Row = tuple[str, ...]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class OddAnswerError(ValueError):
    """A provider's answer is implausible; the message quotes it."""


class IncompleteError(Exception):
    """Some of the calls that a table needs failed; the message says which."""


class ParallelQueries:
    """Runner of parallel queries that counts progress; a set of queries succeeds as a whole or not at all."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        on_progress: Progress,
        translate: Callable[[str], AbstractContextManager[None]] = lambda _doing: nullcontext(),
    ) -> None:
        """`translate`: function that takes a description of the call and returns a context manager that translates an
        SDK's exceptions to ProvisionError."""
        self._pool = pool
        self._on_progress = on_progress
        self._translate = translate
        self._lock = Lock()
        self._done = self._all = 0
        self._had: dict[str, object] = {}

    def once(self, name: str, ask: Callable[[], _Result]) -> _Result:
        """Return the result of `ask`, cached under `name` because several tables use it; an IncompleteError is cached
        too."""
        if name not in self._had:
            try:
                self._had[name] = ask()
            except IncompleteError as error:
                self._had[name] = error
        found = self._had[name]
        if isinstance(found, IncompleteError):
            raise found
        return cast("_Result", found)  # a name always has the same type of result

    def each(
        self,
        what: str,
        items: Iterable[_Item],
        ask: Callable[[_Item], _Result],
        words: Callable[[_Item], str] = str,
    ) -> dict[_Item, _Result]:
        """Call `ask` for each item in parallel; return item -> answer. Raises IncompleteError if any call fails."""

        def asked(item: _Item) -> _Result:
            with self._translate(f"ask for {what} {words(item)}"):
                return ask(item)

        futures: dict[Future[_Result], _Item] = {self._pool.submit(asked, item): item for item in items}
        self._count(0, len(futures))
        found: dict[_Item, _Result] = {}
        failed: list[str] = []
        for future in as_completed(futures):
            try:
                found[futures[future]] = future.result()
            except (ProvisionError, OddAnswerError) as error:
                failed.append(str(error))
            self._count(1, 0)
        if failed:
            others = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
            raise IncompleteError(min(failed) + others)
        return found

    def _count(self, done: int, more: int) -> None:
        with self._lock:
            self._done, self._all = self._done + done, self._all + more
            self._on_progress(self._done, self._all)


def publish_all(
    tables: Mapping[str, Callable[[], tuple[Update, str]]], settle: Callable[[Update], None], now: datetime.datetime
) -> Iterator[Outcome]:
    """Make and publish each table; yield its outcome. An incomplete or implausible table is kept as it was.

    `tables`: name -> function that returns the update and a remark on what it lacks. `settle` is called with each
    published update before the next table is made. Raises OSError.
    """
    for table, made in tables.items():
        try:
            update, remark = made()
        except IncompleteError as error:
            yield Outcome(table, "kept", reason=str(error))
            continue
        outcome = publish(update, now)
        if outcome.state == "kept":
            yield outcome
            continue
        settle(update)
        yield Outcome(outcome.table, outcome.state, outcome.facts, remark)


def known_rows(table: str, columns: Sequence[str], keys: int) -> dict[Row, Row]:
    """Return the current rows, keyed by their first `keys` columns; for machine types merged with the shipped rows."""
    newer = table_overrides.find(table)
    used = {} if newer is None else {row[:keys]: row for row in csv_tables.parse(newer.text, *columns)}
    return shipped_rows(table, columns, keys) | used if newer is None or table.startswith("machine") else used


def shipped_rows(table: str, columns: Sequence[str], keys: int) -> dict[Row, Row]:
    """Return the rows of the shipped table, keyed by their first `keys` columns; {} if no such table is shipped."""
    try:
        text = csv_tables.shipped_text(table)
    except FileNotFoundError:  # Spot prices and quotas are in no shipped table
        return {}
    return {row[:keys]: row for row in csv_tables.parse(text, *columns)}


def sorted_rows(rows: Mapping[Row, Row]) -> list[Row]:
    """Return the rows sorted by their keys."""
    return [rows[key] for key in sorted(rows)]
