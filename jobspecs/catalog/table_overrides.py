"""Tables that `cloudgpu catalog refresh` has written: they stand in for shipped ones of the same name and columns.

    <home>/catalog/<table>.csv
        # cloudgpu-table 1 2026-11-21T23:50:01Z 1a2b3c4d us-east-1 us-west-2
        sku,region,on_demand_usd_h,spot_usd_h,source,date
        ...

The first line holds the format, when the table was written, the CRC32 of all that follows, and the regions that were
asked. A table that is damaged, or of another format, is never used and never passed over in silence. One that is older
than the shipped tables (cloudgpu was updated) is not used either; `cloudgpu catalog show` says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..home import home

_MAGIC = "# cloudgpu-table 1 "
"""With the format's number: it changes when a table's columns do."""


SHIPPED = "2026-11-20"
"""The day on which the shipped tables were compiled; jobspecs/tables/SOURCES.md says so too."""


class TableError(ValueError):
    """A refreshed table cannot be used; the message says which, why, and what to do."""


class Refreshed(NamedTuple):
    """A table as it was written."""

    written: str
    """YYYY-MM-DDTHH:MM:SSZ."""
    regions: tuple[str, ...]
    """Those that the provider was asked about; rows of others are as they were before."""
    text: str
    """The table proper, header first."""


def folder() -> Path:
    """Where they are; it exists only if something was refreshed."""
    return home() / "catalog"


def path_of(table: str) -> Path:
    return folder() / f"{table}.csv"


@cache
def find(table: str) -> Refreshed | None:
    """The refreshed table of that name, if it is to be used. Read once a process. Raises TableError."""
    if not _any():
        return None
    found = load(path_of(table))
    if found is None or found.written[:10] < SHIPPED:
        return None
    _used[table] = found.written
    return found


_used: dict[str, str] = {}


def used() -> dict[str, str]:
    """Refreshed tables that this process has read -> when they were written."""
    return dict(_used)


def load(path: Path) -> Refreshed | None:
    """A refreshed table; None: there is no such file. Raises TableError."""
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
def _any() -> bool:
    """Whether anything was ever refreshed: the one look at the disk that everybody pays for."""
    return folder().is_dir()


def encode(columns: Sequence[str], rows: Iterable[Sequence[str]], written: str, regions: Iterable[str]) -> bytes:
    """The file of a table. Raises ValueError for a cell that a plain table cannot hold."""
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
