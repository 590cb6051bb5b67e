"""Mistakes in job files: where they are, what is wrong, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Loc = tuple[str | int, ...]
"""Path of a value inside a document: ("resources", "accelerator", 0)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake at a place in a document; the loader knows which line and column that is."""

    loc: Loc
    code: str
    """Stable kebab-case name, e.g. "unknown-accelerator"; scripts and SARIF match on it."""
    message: str
    """What is wrong."""
    hint: str = ""
    """What to write instead."""
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A Problem with its position in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"


class SpecError(Exception):
    """A job file cannot be used; `diagnostics` holds every mistake in it."""

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        super().__init__("\n".join(f"{d.file}:{d.line}:{d.column}: {d.message}" for d in diagnostics))
        self.diagnostics = diagnostics
