"""Define what the store needs of a database: queries with parameters as :name, and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

Values = Mapping[str, Any]
"""Name of a parameter -> its value."""


class Connection(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Values) -> int:
        """Run a statement; return the number of rows that it changed."""

    def rows(self, statement: str, values: Values) -> list[dict[str, Any]]:
        """Run a query; return its rows, by name of the column."""


class Database(Protocol):
    """An open database, which threads may share; as text it is its URL, without a password. Every method raises
    StoreError."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Begin a transaction for writing; it is committed at the end, and rolled back after an exception."""

    def rows(self, statement: str, values: Values | None = None) -> list[dict[str, Any]]:
        """Run one query outside a transaction."""

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of that name."""

    def close(self) -> None:
        """Close the idle connections."""
