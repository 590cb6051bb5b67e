"""Connecting to the store's database, and bringing its tables up to date."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from .. import paths
from ..errors import StoreError
from .tables import HEAD, REVISIONS, metadata

_BUSY_MS = 30_000
_READ_ONLY = (errno.EROFS, errno.EACCES)


def connect(url: str | None = None) -> Engine:
    """An engine on a database whose tables are those of tables.py. Raises StoreError."""
    given = url or paths.database_url()
    try:
        engine = _engine(given)
        if _revision(engine) != HEAD:
            _upgrade(engine)
    except ModuleNotFoundError as error:
        raise StoreError(f"the store's database needs the Python module {error.name}: install it") from error
    except ArgumentError as error:
        raise StoreError(f"{paths.DATABASE_VARIABLE} is no database URL: {error}") from error
    except (SQLAlchemyError, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreError(f"the store {make_url(given)!r} cannot be opened: {cause}") from error
    return engine


def _engine(url: str) -> Engine:
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True)
    if parsed.database and parsed.database != ":memory:":
        path = Path(parsed.database)
        if not path.is_absolute():  # it would be another one for each folder that a command is run in
            raise StoreError(f"{paths.DATABASE_VARIABLE}: expected an absolute path, as in sqlite:////home/me/jobs.db")
        paths.make_private(path.parent)
        # Command lines and paths are in it: for its owner's eyes only. SQLite gives -wal and -shm the same mode.
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            if error.errno not in _READ_ONLY or not path.is_file():
                raise
            # Nothing writes to it, not even SQLite's own index of what was not yet moved from the -wal file.
            return create_engine(f"sqlite:///file:{quote(str(path))}?immutable=1&uri=true")
    engine = create_engine(parsed, connect_args={"timeout": _BUSY_MS / 1000})
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _parse(url: str) -> URL:
    """Raises ArgumentError, StoreError."""
    try:
        parsed = make_url(url)
    except ValueError as error:  # its text may be a piece of a password that has an @ in it
        raise StoreError(f"{paths.DATABASE_VARIABLE} is no database URL: its port is no number") from error
    if "@" in (parsed.host or ""):  # the rest of a password, which would be shown as the host's name
        raise StoreError(f"{paths.DATABASE_VARIABLE} is no database URL: write an @ in its password as %40")
    return parsed


def _prepare_sqlite(connection: Any, _record: object) -> None:  # a raw driver connection
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={_BUSY_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _revision(engine: Engine) -> str | None:
    """The schema's revision as Alembic wrote it, read without importing Alembic (0.4 s); None: an empty database."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is not None and found not in REVISIONS:
        raise StoreError(
            f"the store {engine.url!r} was written by a newer cloudgpu (schema {found}; this one knows {HEAD}): "
            "upgrade cloudgpu, or use another CLOUDGPU_HOME"
        )
    return found


def _upgrade(engine: Engine) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.connect() as connection:
        # All or nothing, and one process at a time: the second finds the work done. SQLite's driver begins no
        # transaction for CREATE TABLE by itself.
        begin = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7026380001)"}
        connection.exec_driver_sql(begin[engine.dialect.name])
        config.attributes.update(connection=connection, metadata=metadata)
        command.upgrade(config, "head")
        connection.commit()
