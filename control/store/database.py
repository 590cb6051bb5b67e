"""Interface between the store and a database: queries with parameters as :name, and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

Values = Mapping[str, Any]
"""Name of a parameter -> its value."""


class Connection(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Values) -> int:
        """Run a statement; return the number of changed rows."""

    def rows(self, statement: str, values: Values) -> list[dict[str, Any]]:
        """Run a query; return its rows as column name -> value."""


class Database(Protocol):
    """An open, thread-safe database. str() returns its URL without a password. Every method raises StoreError."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Return a context manager for a write transaction; it commits, or rolls back after an exception."""

    def rows(self, statement: str, values: Values | None = None) -> list[dict[str, Any]]:
        """Run one query outside a transaction."""

    def has_table(self, name: str) -> bool:
        """Return whether a table exists."""

    def close(self) -> None:
        """Close the idle connections."""
