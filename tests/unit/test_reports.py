"""Diagnostics as text for users, as JSON and as SARIF."""

from __future__ import annotations

import json

from cloudgpu.jobspecs.diagnostics import Diagnostic, quote
from cloudgpu.jobspecs.loading.reports import to_json, to_sarif, to_text

IN_FILE = Diagnostic(
    "jobs/a job.yaml", 3, 5, "unknown-key", "there is no key `x` here", "did you mean y?", source="    x: 1"
)
ON_LINE = Diagnostic("--set resources.nodes", 0, 0, "bad-value", "expected a number", severity="warning")


def test_text_is_as_compilers_write_it() -> None:
    assert to_text([IN_FILE, ON_LINE]) == (
        "jobs/a job.yaml:3:5: error: there is no key `x` here [unknown-key]\n"
        "     3 |     x: 1\n"
        "       |     ^\n"
        "    hint: did you mean y?\n"
        "--set resources.nodes: warning: expected a number [bad-value]"
    )
    assert to_text([]) == ""


def caret_of(source: str, column: int) -> tuple[str, int]:
    """Return the shown line and the position of the caret, where wide characters count twice."""
    _, line, caret = to_text([Diagnostic("f", 1, column, "c", "m", source=source)]).splitlines()
    return line.partition(" | ")[2], caret.partition("| ")[2].index("^")


def test_the_caret_points_at_the_character() -> None:
    assert caret_of("a: b", 4) == ("a: b", 3)
    assert caret_of("\ta: b", 3) == (" a: b", 2)
    assert caret_of("名前: x", 5) == ("名前: x", 6)
    assert caret_of("a: b", 5) == ("a: b", 4)


def test_long_lines_are_cut_around_the_place() -> None:
    line, caret = caret_of("x" * 5_000 + "!" + "y" * 5_000, 5_001)
    assert len(line) <= 102
    assert line[caret] == "!"
    assert line[0] == line[-1] == "…"


def test_nothing_a_terminal_would_obey_is_printed() -> None:
    shown = to_text([Diagnostic("a\nb\x1b[31m", 1, 1, "c", "m\x1b]0;x\x07", "h\x9b", source="\x1b[2J\u202ex")])
    assert shown.replace("\n", "").isprintable()
    assert len(shown.splitlines()) == 4
    assert quote("a\nb\x1b") == "`a\\nb\\x1b`"
    assert len(quote("x" * 10_000)) < 70


def test_colours_are_the_callers() -> None:
    painted = to_text([IN_FILE], lambda text, part: f"<{part}>{text}")
    assert "<error>error" in painted
    assert "<hint>hint" in painted


def test_json() -> None:
    first, second = json.loads(json.dumps(to_json([IN_FILE, ON_LINE])))
    assert first == {
        "file": "jobs/a job.yaml",
        "line": 3,
        "column": 5,
        "severity": "error",
        "code": "unknown-key",
        "message": "there is no key `x` here",
        "hint": "did you mean y?",
    }
    assert (second["line"], second["hint"], second["severity"]) == (None, None, "warning")


def test_sarif() -> None:
    """Check what the specification (OASIS SARIF 2.1.0) requires of each object used here."""
    log = json.loads(json.dumps(to_sarif([IN_FILE, ON_LINE, IN_FILE], "1.2.3")))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("cloudgpu", "1.2.3")
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(rules) == len(set(rules))
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
    assert run["results"][0]["message"]["text"] == "there is no key `x` here. Hint: did you mean y?"
    physical = run["results"][0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "jobs/a%20job.yaml"
    assert physical["region"] == {"startLine": 3, "startColumn": 5, "snippet": {"text": "    x: 1"}}
    assert "physicalLocation" not in run["results"][1]["locations"][0]


def test_sarif_names_absolute_files_by_url() -> None:
    found = Diagnostic("/a b/c.yaml", 1, 1, "c", "m")
    result = to_sarif([found], "1")["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///a%20b/c.yaml"
