"""Mistakes in job files: position, message and hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Loc = tuple[str | int, ...]
"""Path of a value in a document: ("resources", "accelerator", 0)."""

Severity = Literal["error", "warning"]


MAX_PROBLEMS = 100
"""Maximum number of problems reported per file: a user would not read more, and hints take time to compute."""


class Problem(NamedTuple):
    """Mistake at a place in a document; the loader adds line and column."""

    loc: Loc
    code: str
    """Stable kebab-case name, e.g. "unknown-accelerator", for scripts and SARIF."""
    message: str
    """Sentence that says what is wrong."""
    hint: str = ""
    """Sentence that says what to write instead."""
    severity: Severity = "error"
    in_key: bool = False
    """True if the key itself is wrong, not its value."""


class Diagnostic(NamedTuple):
    """Problem with its position in a file; lines and columns count from 1."""

    file: str
    """Name as given by the user; `--set resources.region` for a value from the command line."""
    line: int
    """Line number; 0 if the mistake is not in a file."""
    column: int
    code: str
    message: str
    hint: str = ""
    severity: Severity = "error"
    source: str = ""
    """Text of the line, safe to show."""
    masked: bool = False
    """True if values of environment variables were removed from `source`."""

    @property
    def place(self) -> str:
        """Position in the format of compilers, `job.yaml:3:5`, which editors and terminals can open."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class SpecError(Exception):
    """Error for an invalid job file; `diagnostics` holds every mistake in it."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(f"{d.place}: {d.message}" for d in diagnostics))
        self.diagnostics = list(diagnostics)


class MistakesError(ValueError):
    """Mistakes found by a model's validator; each `loc` is relative to the validated value."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


def mistake(code: str, message: str, hint: str = "") -> MistakesError:
    """Return the error for a mistake that concerns the whole value of a validator."""
    return MistakesError(Problem((), code, message, hint))


def quote(text: object, limit: int = 60) -> str:
    """Return a user's text in backticks for a message: one line, no control characters, at most `limit` characters."""
    return f"`{shorten(str(text), limit)}`"


def shorten(text: str, limit: int = 60) -> str:
    """Return the text in one line, with control characters escaped, cut to `limit` characters before the escaping."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown)
