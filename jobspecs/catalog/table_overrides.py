"""Tables written by `cloudgpu catalog refresh`, which override shipped tables with the same name.

    <home>/catalog/<table>.csv
        # cloudgpu-table 1 2026-11-21T23:50:01Z 1a2b3c4d us-east-1 us-west-2
        sku,region,on_demand_usd_h,spot_usd_h,source,date
        ...

The first line holds the format version, the time of writing, the CRC32 of the rest, and the queried regions. TableError
is raised for a table that is damaged or has another format. A table older than the shipped tables is ignored, since
cloudgpu was updated after the refresh; `cloudgpu catalog show` reports that.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..home import home

_MAGIC = "# cloudgpu-table 1 "
"""Begin of a refreshed table. The number is the format version, which changes with the columns of a table."""


SHIPPED = "2026-11-20"
"""Day on which the shipped tables were compiled; also in jobspecs/tables/SOURCES.md."""


class TableError(ValueError):
    """Error for an unusable refreshed table; the message says which one, why, and what to do."""


class Refreshed(NamedTuple):
    """Refreshed table."""

    written: str
    """Time of writing: YYYY-MM-DDTHH:MM:SSZ."""
    regions: tuple[str, ...]
    """Regions that were queried; rows of other regions are older."""
    text: str
    """CSV text of the table, header first."""


def folder() -> Path:
    """Return the folder of refreshed tables; it exists only after a refresh."""
    return home() / "catalog"


def path_of(table: str) -> Path:
    return folder() / f"{table}.csv"


@cache
def find(table: str) -> Refreshed | None:
    """Return the refreshed table with a name; None if there is none, or if it is older than the shipped one.

    Cached per process. Raises TableError if the table is damaged.
    """
    if not _has_overrides():
        return None
    found = load(path_of(table))
    if found is None or found.written[:10] < SHIPPED:
        return None
    _used[table] = found.written
    return found


_used: dict[str, str] = {}


def used() -> dict[str, str]:
    """Return the time of writing of each refreshed table that this process has used, by name."""
    return dict(_used)


def load(path: Path) -> Refreshed | None:
    """Return the refreshed table in a file; None if the file does not exist. Raises TableError if it is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    first, _, rest = text.partition("\n")
    if not first.startswith(_MAGIC):
        raise _unusable(path, "it was written by another version of cloudgpu, or by hand")
    written, checksum, *regions = first.removeprefix(_MAGIC).split(" ")
    if checksum != _checksum(rest):
        raise _unusable(path, "it is damaged: its checksum does not fit")
    return Refreshed(written, tuple(regions), rest)


@cache
def _has_overrides() -> bool:
    """Return whether there is a folder of refreshed tables. Without one, this is the only disk access."""
    return folder().is_dir()


def encode(columns: Sequence[str], rows: Iterable[Sequence[str]], written: str, regions: Iterable[str]) -> bytes:
    """Serialize a table. Raises ValueError for a cell with a comma, a quote or a line break."""
    lines = []
    for row in (columns, *rows):
        if any(character in cell for cell in row for character in ',"\n\r'):
            raise ValueError(f"a cell of this row has a comma, a quote or a line break: {row}")
        lines.append(",".join(row))
    text = "\n".join(lines) + "\n"
    return f"{_MAGIC}{' '.join([written, _checksum(text), *regions])}\n{text}".encode()


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _unusable(path: Path, why: str) -> TableError:
    return TableError(f"{path} cannot be used: {why}; `cloudgpu catalog reset` removes it")
