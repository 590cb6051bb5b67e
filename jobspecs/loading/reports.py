"""Format diagnostics as text for people, as JSON, and as SARIF 2.1.0 for code scanning in CI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Literal
from urllib.parse import quote as url_quote

from ..diagnostics import Diagnostic

Part = Literal["error", "warning", "hint", "caret", "source"]
"""Kind of a piece of the text report, for colours."""

_WIDTH = 100
_TAB = "\t"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_text(diagnostics: Sequence[Diagnostic], paint: Callable[[str, Part], str] = lambda text, _: text) -> str:
    """Return text in the format of compilers: place, severity, message, code; the source line; the hint.

    paint  returns a piece of the text with colour codes
    """
    return "\n".join(line for diagnostic in diagnostics for line in _lines(diagnostic, paint))


def _lines(found: Diagnostic, paint: Callable[[str, Part], str]) -> list[str]:
    severity = paint(found.severity, found.severity)
    lines = [f"{_visible(found.place)}: {severity}: {_visible(found.message)} [{found.code}]"]
    if found.source.strip():
        text, column = _window(found.source, found.column)
        gutter = f"{found.line:>6} | "
        lines.append(paint(gutter + text, "source"))
        lines.append(paint(" " * (len(gutter) - 2) + "| ", "source") + " " * column + paint("^", "caret"))
    if found.hint:
        lines.append(f"    {paint('hint', 'hint')}: {_visible(found.hint)}")
    return lines


def _window(source: str, column: int) -> tuple[str, int]:
    """Return the part of a line around a column (from 1), about _WIDTH characters, and the column's index in it (from
    0)."""
    start = max(0, column - 1 - _WIDTH * 2 // 3) if len(source) > _WIDTH else 0
    before, after = source[start : column - 1], source[column - 1 : start + _WIDTH]
    lead, tail = "…" if start else "", "…" if start + _WIDTH < len(source) else ""
    before = lead + _visible(before)
    return before + _visible(after) + tail, _columns(before)


def _columns(text: str) -> int:
    """Return the columns that a terminal uses: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _visible(text: str) -> str:
    """Escape characters that a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(" " if char == _TAB else char if char.isprintable() else ascii(char)[1:-1] for char in text)


def to_json(diagnostics: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    """Return JSON values; line and column are null for mistakes on the command line."""
    return [
        {
            "file": found.file,
            "line": found.line or None,
            "column": found.column or None,
            "severity": found.severity,
            "code": found.code,
            "message": found.message,
            "hint": found.hint or None,
        }
        for found in diagnostics
    ]


def to_sarif(diagnostics: Sequence[Diagnostic], version: str) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log with one run; `version` is cloudgpu's."""
    codes = sorted({found.code for found in diagnostics})
    driver = {
        "name": "cloudgpu",
        "version": version,
        "rules": [{"id": code, "shortDescription": {"text": code.replace("-", " ")}} for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        # Columns count Unicode characters, as in Python and YAML; SARIF's default is UTF-16 units.
        "columnKind": "unicodeCodePoints",
        "results": [_result(found, codes.index(found.code)) for found in diagnostics],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(found: Diagnostic, rule: int) -> dict[str, Any]:
    text = f"{found.message}. Hint: {found.hint}" if found.hint else found.message  # no capital: may begin with a key
    result: dict[str, Any] = {
        "ruleId": found.code,
        "ruleIndex": rule,
        "level": found.severity,
        "message": {"text": text},
    }
    if found.line:
        region: dict[str, Any] = {"startLine": found.line, "startColumn": found.column}
        if found.source and not found.masked:
            region["snippet"] = {"text": found.source}
        place = {"artifactLocation": {"uri": _uri(found.file)}, "region": region}
        result["locations"] = [{"physicalLocation": place}]
    else:
        result["locations"] = [{"logicalLocations": [{"fullyQualifiedName": found.file}]}]
    return result


def _uri(file: str) -> str:
    """Return a file URI; relative paths stay relative, because code scanning compares them with the repository."""
    path = PurePath(file)
    return path.as_uri() if path.is_absolute() else url_quote(path.as_posix(), errors="surrogateescape")
