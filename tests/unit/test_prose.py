"""The lint of docstrings, comments and documentation: what it finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tools import prose


def words(name: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.word) for finding in prose.check(name, text)]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", 'def f():\n    """Return what\n    nobody needs."""\n', [(3, "nobody")]),
        ("a.py", "x = 1  # The user is told so.\n", [(1, "told")]),
        ("a.py", 'class A:\n    x: int = 1\n    """Of its cluster."""\n', [(3, "Of")]),
        ("a.py", '"""Whether it runs."""\n', [(1, "Whether")]),
        ("a.md", "One.\n\nIt waits so\nlong; so long as it can.\n", [(4, "so long")]),
        ("a.sh", "#!/bin/sh\necho told # Whoever calls\n# is told in vain\n", [(3, "in vain"), (3, "told")]),
    ],
)
def test_words_that_are_hard_to_read_are_found(name: str, text: str, found: list[tuple[int, str]]) -> None:
    assert words(name, text) == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'told = "nobody"\ndef nobody(whoever):\n    return told\n'),
        ("a.py", '"""Translate `told` and "so many" into what the field says."""\n'),
        ("a.py", 'def f():\n    """Return what was found. As a default, 1."""\n'),
        ("a.py", "# Sort of useful in terms of use cases.\n"),
        ("a.md", "Run this:\n\n```console\n$ echo nobody\n```\n\n`whoever` is a variable.\n"),
        ("a.sh", "echo nobody\n"),
    ],
)
def test_code_and_quotations_are_left_alone(name: str, text: str) -> None:
    assert words(name, text) == []


def test_a_finding_names_the_place_and_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("All is well.\nNobody waits.\n")
    assert prose.main([str(page)]) == 1
    assert capsys.readouterr().out == f"{page}:2: nobody: {prose.WORDS['nobody|somebody|whoever']}\n"
    page.write_text("All is well.\n")
    assert prose.main([str(page)]) == 0
