"""What is left out of a code folder: `.gitignore` and `.cloudgpuignore` at every level, as git reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".cloudgpuignore")
"""The later one wins: `.cloudgpuignore` may bring back with `!` what git leaves out."""
ALWAYS = ".git"


class IgnoreError(Exception):
    """An ignore file cannot be read or understood; the message names it."""


class IgnoreRules:
    """The rules that hold in one folder: its own and those of the folders above, the nearest first."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    @classmethod
    def above(cls, folder: Path) -> IgnoreRules:
        """What the folders above `folder` say, as far up as the git repository it lies in; nothing outside of one."""
        rules = cls()
        root = next((parent for parent in folder.parents if (parent / ALWAYS).exists()), None)
        if root is None or (folder / ALWAYS).exists():
            return rules
        for parent in reversed(folder.parents[: folder.parents.index(root) + 1]):
            rules = rules.within(parent)
            # A folder which git leaves out, but which the user has named: the rules above do not hold in it.
            if rules.ignores(str(folder), is_folder=True):
                return cls()
        return rules

    def within(self, folder: Path) -> IgnoreRules:
        """The rules in a folder: these, and those of its own ignore files."""
        lines = [line for name in IGNORE_FILES for line in _lines(folder / name)]
        if not lines:
            return self
        from pathspec import GitIgnoreSpec

        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except ValueError as error:
            raise IgnoreError(f"{folder}: a pattern in {' or '.join(IGNORE_FILES)} is invalid: {error}") from error
        return IgnoreRules(((str(folder), spec), *self._specs))

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether a file or folder (absolute path) is left out."""
        if os.path.basename(path) == ALWAYS:  # noqa: PTH119 - called for every file: a Path would double the time
            return True
        for base, spec in self._specs:
            relative = path[len(base) :].lstrip("/") + ("/" if is_folder else "")
            decision = spec.check_file(relative).include
            if decision is not None:
                return decision
        return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return []
    except OSError as error:
        raise IgnoreError(f"{path} cannot be read: {error.strerror}") from error
