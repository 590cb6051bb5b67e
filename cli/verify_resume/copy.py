"""Copies of the working directory, one per run of a verification, so that the runs' files can be compared.

Large files and folders are symbolic links; so are the siblings of the directory and of its parents, so that paths such
as ../data still work.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..exit_codes import Exit
from ..shared.errors import CommandError

_LARGE = 16 << 20
"""Size in bytes above which a file is linked, not copied."""
_MANY = 2000
"""Number of entries from which a folder is linked, not copied."""
_TOTAL = 1 << 30
"""Maximum bytes to copy in total; later files are linked."""
_ENTRIES = 100_000
"""Maximum number of files and folders in total."""
_LINKED = frozenset((".git", ".hg", ".venv", "venv", "node_modules"))


class WorkingCopies:
    """Factory of copies of one directory. `left_out`: folder to skip, because the copies are made in it."""

    def __init__(self, directory: Path, left_out: Path) -> None:
        self._directory, self._left_out = directory, left_out.resolve()

    def make(self, root: Path) -> Path:
        """Make a copy below the new folder `root` and return its path. Raises CommandError."""
        above = [*reversed(self._directory.parents)]
        try:
            here = root
            for folder, below in zip(above, [*above, self._directory][1:], strict=True):
                here.mkdir()
                _link_siblings(folder, below.name, here)
                here /= below.name
            if not above:
                raise _TooLargeError
            _Copy(self._left_out).folder(self._directory, here)
        except _TooLargeError:
            raise CommandError(
                f"{self._directory} has more than {_ENTRIES} files, which is too many to copy for each run: start the "
                "command in a folder that holds the program and what it needs",
                exit_code=Exit.USAGE,
            ) from None
        except OSError as error:
            raise CommandError(
                f"the working directory cannot be copied for a run: {error.filename}: {error.strerror}; set TMPDIR to "
                "a folder with room, or start the command in a folder that holds the program alone",
                exit_code=Exit.UNAVAILABLE,
            ) from None
        return here


class _TooLargeError(Exception):
    """Raised if the directory has too many entries."""


def _link_siblings(folder: Path, below: str, target: Path) -> None:
    try:
        entries = [entry for entry in folder.iterdir() if entry.name != below]
    except PermissionError:  # the folder cannot be listed; its entries may still be usable
        return
    for entry in entries:
        (target / entry.name).symlink_to(entry)


class _Copy:
    """Copy in progress, with counts of the bytes and entries copied."""

    def __init__(self, left_out: Path) -> None:
        self._left_out, self._bytes, self._entries = left_out, 0, 0

    def folder(self, source: Path, target: Path) -> None:
        target.mkdir()
        shutil.copystat(source, target)
        target.chmod(target.stat().st_mode | 0o700)
        with os.scandir(source) as entries:
            for entry in entries:
                self._entry(entry, target / entry.name)

    def _entry(self, entry: os.DirEntry[str], target: Path) -> None:
        self._entries += 1
        if self._entries > _ENTRIES:
            raise _TooLargeError
        if entry.is_dir(follow_symlinks=False):
            if Path(entry.path).resolve() == self._left_out:
                return
            if entry.name in _LINKED or _has_many(entry.path):
                target.symlink_to(entry.path)
            else:
                self.folder(Path(entry.path), target)
        elif entry.is_symlink():  # kept as it is: a relative link leads to the copy of its target
            target.symlink_to(Path(entry.path).readlink())
        elif not entry.is_file() or (size := entry.stat().st_size) > _LARGE or self._bytes + size > _TOTAL:
            target.symlink_to(entry.path)
        else:
            self._bytes += size
            shutil.copy2(entry.path, target)


def _has_many(folder: str) -> bool:
    with os.scandir(folder) as entries:
        return any(number >= _MANY for number, _ in enumerate(entries))
