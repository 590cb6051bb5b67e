"""What the refresh of every cloud's tables shares: many questions at once, and what is known besides the answers.

A table is complete for the regions that were asked, or it is not made. catalog/refresh.py of aws and of gcp
say what is asked, and how the answers become rows; refresh.py judges and publishes the tables.
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
"""Id in jobspecs/tables/SOURCES.md."""

# Columns of the tables that shipped ones are of too (docs/reference/tables.md).
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
    """A provider's answer cannot be true; the message quotes it."""


class IncompleteError(Exception):
    """Some of the calls that a table needs have failed; the message says which."""


class Calls:
    """The same question about many things at once; an answer is had for all of them, or for none."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        on_progress: Progress,
        tell: Callable[[str], AbstractContextManager[None]] = lambda _doing: nullcontext(),
    ) -> None:
        """`tell`: given what is being done, raises ProvisionError in the place of an SDK's errors."""
        self._pool = pool
        self._on_progress = on_progress
        self._tell = tell
        self._lock = Lock()
        self._done = self._all = 0
        self._had: dict[str, object] = {}

    def once(self, name: str, ask: Callable[[], _Result]) -> _Result:
        """An answer that several tables are made of: had once, or missed once, under this name. Raises
        IncompleteError."""
        if name not in self._had:
            try:
                self._had[name] = ask()
            except IncompleteError as error:
                self._had[name] = error
        found = self._had[name]
        if isinstance(found, IncompleteError):
            raise found
        return cast("_Result", found)  # what was put there under this name

    def each(
        self,
        what: str,
        items: Iterable[_Item],
        ask: Callable[[_Item], _Result],
        words: Callable[[_Item], str] = str,
    ) -> dict[_Item, _Result]:
        """item -> answer. Raises IncompleteError."""

        def asked(item: _Item) -> _Result:
            with self._tell(f"ask for {what} {words(item)}"):
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


def published(
    tables: Mapping[str, Callable[[], tuple[Update, str]]], settle: Callable[[Update], None], now: datetime.datetime
) -> Iterator[Outcome]:
    """Make each table (name -> its rows, and a remark on what they leave out), and publish it if it is complete.

    `settle` is told of every table that is now in use, before the next one is made. Raises OSError.
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
    """What is used now, by the first so many columns; of machine types also what only the shipped table has."""
    newer = table_overrides.find(table)
    used = {} if newer is None else {row[:keys]: row for row in csv_tables.parse(newer.text, *columns)}
    return shipped_rows(table, columns, keys) | used if newer is None or table.startswith("machine") else used


def shipped_rows(table: str, columns: Sequence[str], keys: int) -> dict[Row, Row]:
    """Of the table that comes with cloudgpu, by the first so many columns; of none, nothing."""
    try:
        text = csv_tables.shipped_text(table)
    except FileNotFoundError:  # Spot prices and quotas are in no shipped table
        return {}
    return {row[:keys]: row for row in csv_tables.parse(text, *columns)}


def in_order(rows: Mapping[Row, Row]) -> list[Row]:
    """By their keys, as a table has them."""
    return [rows[key] for key in sorted(rows)]
