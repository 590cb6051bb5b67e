"""List a local folder, also where names lie in it that no key can have: a line break, say, is in none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def folders(folder: Path) -> list[str]:
    """Return the names of the folders in a local one, but those that no key can have: a line break, say, is in none."""
    if not folder.is_dir():
        return []  # what lies where the folder was, such as a file, has none
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.isprintable() and _may_be_folder(entry))


def files(folder: Path) -> dict[str, int]:
    """Return the bytes of each file in a local folder, but of those that no key can have."""
    if not folder.is_dir():
        return {}
    sizes = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed since
                if entry.name.isprintable() and entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Return True, too, for what cannot be looked at: a reader of it finds the reason."""
    try:
        return entry.is_dir()
    except OSError:
        return True
