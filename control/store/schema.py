"""Open the store's database and upgrade its schema to the newest revision."""

from __future__ import annotations

from .. import paths
from ..errors import StoreError
from .database import Database
from .sqlite import SqliteDatabase, file_of

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Every schema that this version can upgrade, oldest first."""
HEAD = REVISIONS[-1]


def connect(url: str | None = None) -> Database:
    """Open a database, creating or upgrading its tables if necessary. Raises StoreError."""
    given = url or paths.database_url()
    database = _open(given)
    if _revision(database) != HEAD:
        from .engine import EngineDatabase

        upgraded = EngineDatabase(given)
        upgraded.upgrade()
        upgraded.close()
    return database


def _open(url: str) -> Database:
    file = file_of(url)
    if file is not None:
        return SqliteDatabase(file)
    from .engine import EngineDatabase

    return EngineDatabase(url)


def _revision(database: Database) -> str | None:
    """Return the schema's revision, read without importing Alembic (0.4 s); None: an empty database."""
    if not database.has_table("alembic_version"):
        return None
    found = [row["version_num"] for row in database.rows("SELECT version_num FROM alembic_version")]
    if not found:
        return None
    if found[0] not in REVISIONS:
        raise StoreError(
            f"the store {database} was written by a newer cloudgpu (schema {found[0]}; this one knows {HEAD}): "
            "upgrade cloudgpu, or use another CLOUDGPU_HOME"
        )
    return str(found[0])
