"""SQLite databases with the standard library's driver, as importing SQLAlchemy takes 0.15 s."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import paths
from ..errors import StoreError
from .database import Values

BUSY_MS = 30_000
"""Milliseconds to wait for another process's write."""
PRAGMAS = (f"busy_timeout={BUSY_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
"""Settings of every connection."""
_READ_ONLY = (errno.EROFS, errno.EACCES)
_SCHEMES = ("sqlite:///", "sqlite+pysqlite:///")


def file_of(url: str) -> Path | None:
    """Return the file that a URL names; None: another database, or a URL with further parameters."""
    name = next((url.removeprefix(scheme) for scheme in _SCHEMES if url.startswith(scheme)), "")
    return Path(name) if name not in ("", ":memory:") and "?" not in name else None


def make_file(path: Path) -> bool:
    """Create the file, readable only by its owner because it contains command lines and paths. SQLite gives -wal and
    -shm the same mode. Return whether the file is writable. Raises StoreError."""
    if not path.is_absolute():  # a relative path would depend on the working directory
        raise StoreError(f"{paths.DATABASE_VARIABLE}: expected an absolute path, as in sqlite:////home/me/jobs.db")
    paths.make_private(path.parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        if error.errno not in _READ_ONLY or not path.is_file():
            raise StoreError(f"the store {path} cannot be opened: {error}") from error
        return False
    return True


class Connection:
    """A connection of the driver; implements database.Connection."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    def execute(self, statement: str, values: Values) -> int:
        with closing(self._raw.execute(statement, values)) as cursor:
            return cursor.rowcount

    def rows(self, statement: str, values: Values) -> list[dict[str, Any]]:
        with closing(self._raw.execute(statement, values)) as cursor:
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]


class SqliteDatabase:
    """A SQLite file; implements database.Database. Pools its connections, each used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._writable = make_file(path)

    def __str__(self) -> str:
        return f"{_SCHEMES[0]}{self._path}"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._connection() as raw:
            raw.execute("BEGIN IMMEDIATE")
            yield Connection(raw)
            raw.execute("COMMIT")

    def rows(self, statement: str, values: Values | None = None) -> list[dict[str, Any]]:
        with self._connection() as raw:
            return Connection(raw).rows(statement, values or {})

    def has_table(self, name: str) -> bool:
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name", {"name": name}))

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for exclusive use. After an exception it is closed, which rolls back."""
        try:
            raw = self._idle.pop() if self._idle else self._connect()
            try:
                yield raw
            except BaseException:
                raw.close()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"the store {self} failed: {error}") from error
        self._idle.append(raw)

    def _connect(self) -> sqlite3.Connection:
        name = str(self._path)
        if not self._writable:  # read-only: SQLite cannot even write the -shm index of the -wal file
            return sqlite3.connect(f"file:{quote(name)}?immutable=1", uri=True, check_same_thread=False)
        raw = sqlite3.connect(name, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        for pragma in PRAGMAS:
            raw.execute(f"PRAGMA {pragma}")
        return raw
