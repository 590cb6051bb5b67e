"""Mistakes in job files: where they are, what is wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Loc = tuple[str | int, ...]
"""Path of a value inside a document: ("resources", "accelerator", 0)."""

Severity = Literal["error", "warning"]


MAX_PROBLEMS = 100
"""Nobody reads more of one file, and looking for what was meant takes time."""


class Problem(NamedTuple):
    """A mistake at a place in a document; the loader knows which line and column that is."""

    loc: Loc
    code: str
    """Stable kebab-case name, e.g. "unknown-accelerator"; scripts and SARIF match on it."""
    message: str
    """What is wrong."""
    hint: str = ""
    """What to write instead."""
    severity: Severity = "error"
    in_key: bool = False
    """The key itself is wrong, not its value."""


class Diagnostic(NamedTuple):
    """A Problem with its position in a file; lines and columns count from 1."""

    file: str
    """As the user named it; `--set resources.region` for a value from the command line."""
    line: int
    """0: the mistake is in no file."""
    column: int
    code: str
    message: str
    hint: str = ""
    severity: Severity = "error"
    source: str = ""
    """The text of the line, as it may be shown."""
    masked: bool = False
    """`source` is not what the file says: values of environment variables were left out."""

    @property
    def place(self) -> str:
        """`job.yaml:3:5`, as compilers write it, so that editors and terminals can jump there."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class SpecError(Exception):
    """A job file cannot be used; `diagnostics` holds every mistake in it."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(f"{d.place}: {d.message}" for d in diagnostics))
        self.diagnostics = list(diagnostics)


class MistakesError(ValueError):
    """Raised by a model's validator: what is wrong inside the value it looked at, `loc` counting from that value."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


def mistake(code: str, message: str, hint: str = "") -> MistakesError:
    """The error for the whole value a validator looks at."""
    return MistakesError(Problem((), code, message, hint))


def quote(text: object, limit: int = 60) -> str:
    """A user's text for a message: on one line, without control characters, of bounded length, in backticks."""
    return f"`{shorten(str(text), limit)}`"


def shorten(text: str, limit: int = 60) -> str:
    """Return the text on one line, without control characters, of bounded length."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown)
