"""Output of commands: text that fits the terminal, tables, JSON, and a progress line.

Results go to stdout; progress, questions and remarks go to stderr, so that a pipe gets results only.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

if TYPE_CHECKING:
    from types import TracebackType

    from ...jobspecs.loading.reports import Part

MAX_COLUMNS = 100
MIN_COLUMNS = 40
_ELLIPSIS = "…"
_GAP = 2  # between two columns of a table

Tone = Literal["good", "bad", "warn", "note", "title", "faint"]
_TONES: dict[Tone, dict[str, Any]] = {
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "note": {"fg": "cyan"},
    "title": {"bold": True},
    "faint": {"dim": True},
}


def is_terminal(*, err: bool = False) -> bool:
    """Return whether stdout (or stderr) is a terminal."""
    stream = sys.stderr if err else sys.stdout
    return stream is not None and not stream.closed and stream.isatty()


def can_ask() -> bool:
    """Return whether the user can be asked: stdin and stderr are terminals."""
    return is_terminal(err=True) and sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def columns() -> int:
    """Return the width of the output in columns: the terminal's, but 40 to 100; 100 without a terminal."""
    try:
        wide = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        wide = _terminal_columns()
    return min(max(wide, MIN_COLUMNS), MAX_COLUMNS) if wide > 0 else MAX_COLUMNS


def _terminal_columns() -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            return os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):  # no terminal; a closed stream; None or a test's buffer
            continue
    return 0


def style(text: str, tone: Tone, *, err: bool = False) -> str:
    """Return the text in a tone's colour, if stdout (or stderr) is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(err=err):
        return text
    return click.style(text, **_TONES[tone])


_DIAGNOSTIC_TONES: dict[Part, Tone] = {
    "error": "bad",
    "warning": "warn",
    "hint": "note",
    "caret": "bad",
    "source": "faint",
}


def paint_diagnostic(text: str, part: Part, *, err: bool = False) -> str:
    """Apply colours for jobspecs.loading.reports.to_text() on stdout (or stderr)."""
    return style(text, _DIAGNOSTIC_TONES[part], err=err)


def clean(text: str) -> str:
    """Escape control characters except tab and newline, so that untrusted text is safe for a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c in "\t\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"} else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def text_width(text: str) -> int:
    """Return the columns that a terminal uses for the text: East Asian wide characters take two, combining marks
    none."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Return the text cut to `width` columns, with an ellipsis if it was cut."""
    if text_width(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _character_width(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + _ELLIPSIS if width > 0 else ""


class Column(NamedTuple):
    """Column of a table."""

    title: str
    right: bool = False
    """True to align the column right, for numbers."""
    least: int | None = None
    """Minimum width to which the column may be cut if the table is too wide; None: the column is never cut."""
    spare: int = 0
    """Rank for dropping the column if cutting is not enough, highest first; 0: the column is never dropped."""


def table(heads: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None = None, indent: int = 0) -> str:
    """Return a table that fits the width; columns that may be cut are cut first, the widest one first."""
    room = (width or columns()) - indent
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    heads, cells = _without_spare(heads, cells, room)
    widths = _widths(heads, cells)
    _fit(widths, heads, room - _GAP * (len(heads) - 1))
    lines = [_line([head.title for head in heads], heads, widths, indent, title=True)]
    lines += [_line(row, heads, widths, indent) for row in cells]
    return "\n".join(lines)


def _widths(heads: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max([text_width(head.title), *(text_width(row[i]) for row in cells)]) for i, head in enumerate(heads)]


def _without_spare(
    heads: Sequence[Column], cells: list[list[str]], room: int
) -> tuple[Sequence[Column], list[list[str]]]:
    """Return the table without the spare columns that do not fit."""
    kept = list(range(len(heads)))
    least = [min(width, head.least or width) for head, width in zip(heads, _widths(heads, cells), strict=True)]
    while sum(least[i] + _GAP for i in kept) - _GAP > room:
        spare = [i for i in kept if heads[i].spare]
        if not spare:
            break
        kept.remove(max(spare, key=lambda i: heads[i].spare))
    return [heads[i] for i in kept], [[row[i] for i in kept] for row in cells]


def _fit(widths: list[int], heads: Sequence[Column], room: int) -> None:
    excess = sum(widths) - room
    while excess > 0:
        able = [i for i, head in enumerate(heads) if head.least is not None and widths[i] > head.least]
        if not able:
            return
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1


def _line(row: Sequence[str], heads: Sequence[Column], widths: list[int], indent: int, *, title: bool = False) -> str:
    parts = []
    for cell, head, width in zip(row, heads, widths, strict=True):
        text = shorten(cell, width)
        space = " " * (width - text_width(text))
        shown = style(text, "title") if title else _state_style(text)
        parts.append(space + shown if head.right else shown + space)
    return (" " * indent + (" " * _GAP).join(parts)).rstrip()


def _state_style(text: str) -> str:
    tone = STATE_TONES.get(text)
    return style(text, tone) if tone else text


STATE_TONES: dict[str, Tone] = {
    "succeeded": "good",
    "running": "note",
    "failed": "bad",
    "error": "bad",
    "lost": "bad",
    "preempted": "warn",
    "stopped": "warn",
    "cancelled": "warn",
}
"""Colours of table cells that consist of one of these words."""


def echo_table(heads: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    click.echo(table(heads, rows, indent=indent))


def echo_json(value: object) -> None:
    """Print a JSON document for scripts: indented, one per command."""
    click.echo(json_text(value, indent=2))


def echo_json_line(value: object) -> None:
    """Print one line of a JSON stream (`events --json -f`)."""
    click.echo(json_text(value))


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON; control characters and lone surrogates in its strings are escaped."""
    import json

    text = json.dumps(value, indent=indent, ensure_ascii=False, separators=None if indent else (",", ":"), default=str)
    return text if text.isascii() else _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_UNSAFE = re.compile("[\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that JSON leaves unescaped, text direction marks, and lone surrogates."""


def remark(text: str) -> None:
    """Print an informational message on stderr."""
    click.echo(clean(text), err=True)


def warning(text: str) -> None:
    click.echo(f"{style('warning', 'warn', err=True)}: {clean(text)}", err=True)


class ProgressLine:
    """One line on the terminal's stderr, rewritten in place; without a terminal nothing is printed.

    with ProgressLine() as progress:
        progress("packing code: 3,210 files")
    """

    def __init__(self) -> None:
        self._shown = ""
        self._active = is_terminal(err=True) and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, text: str) -> None:
        if not self._active or text == self._shown:
            return
        self._shown = text
        # \r: return to the line's start; \x1b[K: erase the rest of it.
        click.echo(f"\r{shorten(clean(text), columns() - 1)}\x1b[K", nl=False, err=True, color=True)

    def clear(self) -> None:
        """Erase the line, so that other text can be printed."""
        if self._shown:
            self._shown = ""
            click.echo("\r\x1b[K", nl=False, err=True, color=True)
