"""SQLAlchemy databases: PostgreSQL and others with a driver. Also runs the migrations of SQLite stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from .. import paths
from ..errors import StoreError
from .database import Values
from .sqlite import BUSY_MS, PRAGMAS, make_file
from .tables import metadata


class Connection:
    """A SQLAlchemy connection; implements database.Connection."""

    def __init__(self, raw: sa.Connection) -> None:
        self._raw = raw

    def execute(self, statement: str, values: Values) -> int:
        return self._raw.execute(sa.text(statement), values).rowcount

    def rows(self, statement: str, values: Values) -> list[dict[str, Any]]:
        return [dict(row) for row in self._raw.execute(sa.text(statement), values).mappings()]


class EngineDatabase:
    """A SQLAlchemy engine; implements database.Database."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)

    def __str__(self) -> str:
        return repr(self._engine.url)  # without its password

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._named("failed"), self._engine.begin() as raw:
            yield Connection(raw)

    def rows(self, statement: str, values: Values | None = None) -> list[dict[str, Any]]:
        with self.transaction() as connection:
            return connection.rows(statement, values or {})

    def has_table(self, name: str) -> bool:
        with self._named("cannot be opened"):
            return sa.inspect(self._engine).has_table(name)

    def close(self) -> None:
        self._engine.dispose()

    def upgrade(self) -> None:
        """Upgrade the tables to the newest schema. Raises StoreError."""
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self._named("cannot be opened"), self._engine.connect() as connection:
            # One transaction, for one process at a time: a second process finds the tables upgraded. SQLite's driver
            # does not begin a transaction for CREATE TABLE by itself.
            begin = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7026380001)"}
            connection.exec_driver_sql(begin[self._engine.dialect.name])
            config.attributes.update(connection=connection, metadata=metadata)
            command.upgrade(config, "head")
            connection.commit()

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Convert errors of SQLAlchemy to StoreError."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreError(f"the store {self} {what}: {cause}") from error


def _engine(url: str) -> sa.Engine:
    try:
        parsed = _parse(url)
        if parsed.get_backend_name() != "sqlite":
            return sa.create_engine(parsed, pool_pre_ping=True)
        if parsed.database and parsed.database != ":memory:":
            make_file(Path(parsed.database))
        engine = sa.create_engine(parsed, connect_args={"timeout": BUSY_MS / 1000})
    except ModuleNotFoundError as error:
        raise StoreError(f"the store's database needs the Python module {error.name}: install it") from error
    except ArgumentError as error:
        raise StoreError(f"{paths.DATABASE_VARIABLE} is no database URL: {error}") from error
    sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _parse(url: str) -> sa.URL:
    """Parse a database URL. Raises ArgumentError, StoreError."""
    try:
        parsed = make_url(url)
    except ValueError as error:  # its text may contain part of a password with an @
        raise StoreError(f"{paths.DATABASE_VARIABLE} is no database URL: its port is no number") from error
    if "@" in (parsed.host or ""):  # part of a password with an @, which would be shown as the host
        raise StoreError(f"{paths.DATABASE_VARIABLE} is no database URL: write an @ in its password as %40")
    return parsed


def _prepare_sqlite(connection: Any, _record: object) -> None:  # raw driver connection
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
