"""Rules for the files to leave out of a code folder: `.gitignore` and `.cloudgpuignore`, with git's semantics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".cloudgpuignore")
"""In order of precedence, lowest first: `.cloudgpuignore` can re-include with `!` what `.gitignore` excludes."""
ALWAYS = ".git"


class IgnoreError(Exception):
    """An ignore file cannot be read or parsed; the message names it."""


class IgnoreRules:
    """Ignore rules that apply in one folder: from its ignore files and those of its parents; the nearest file wins."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    @classmethod
    def above(cls, folder: Path) -> IgnoreRules:
        """Return the rules of the parents of `folder`, up to the root of its git repository; none outside of one."""
        rules = cls()
        root = next((parent for parent in folder.parents if (parent / ALWAYS).exists()), None)
        if root is None or (folder / ALWAYS).exists():
            return rules
        for parent in reversed(folder.parents[: folder.parents.index(root) + 1]):
            rules = rules.within(parent)
            # Git ignores this folder, but the user has named it explicitly: the rules of its parents do not apply.
            if rules.ignores(str(folder), is_folder=True):
                return cls()
        return rules

    def within(self, folder: Path) -> IgnoreRules:
        """Return these rules with those of the folder's own ignore files added. Raises IgnoreError."""
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
        """Return whether a file or folder (absolute path) is left out."""
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
