"""Find words in docstrings, comments and documentation that make them hard to read; `make lint` runs it.

    python -m tools.prose               # every file that git tracks
    python -m tools.prose FILE...

Prints `file:line: word: what to write instead` and exits with 1 if there are any. Code in backticks and quotations in
double quotes are not checked.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

WORDS = {
    r"told|tells": "say who sends what: is passed, receives, reports, returns, prints",
    r"nobody|somebody|whoever": "name the actor: the user, another process, the caller, no process",
    r"so (?:many|much|long|often)": "give the number, the time or the limit",
    r"in vain": "without success; or say what was refused",
    r"lest": "so that ... not; or to avoid",
    r"of use(?! cases?\b)": "useful, needed",
    r"last words": "the last lines of the log, the end of the console output",
}
FRAGMENTS = r"Of|So|As|Likewise|Who|Whom|Whose|What|Whether"
"""First words of docstrings that begin with a fragment instead of a verb and its object, or a noun phrase."""

_WORD = re.compile("|".join(rf"\b(?P<w{number}>{words})\b" for number, words in enumerate(WORDS)), re.IGNORECASE)
_FRAGMENT = re.compile(rf"\s*({FRAGMENTS})\b(?!-)")
_QUOTED = re.compile(r'``.*?``|`[^`]*`|"[^"]*"|“[^”]*”', re.DOTALL)
_FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_HASH = re.compile(r"^\s*#(?!!)(.*)$", re.MULTILINE)


class Piece(NamedTuple):
    """One docstring, comment or page."""

    line: int
    text: str
    is_docstring: bool = False


class Finding(NamedTuple):
    line: int
    word: str
    advice: str


def check(name: str, text: str) -> list[Finding]:
    """Return the findings in a file's text, sorted by line. The ending of `name` decides which parts are checked."""
    return sorted(finding for piece in _pieces(name, text) for finding in _findings(piece))


def main(names: Sequence[str]) -> int:
    paths = [Path(name) for name in names or _tracked()]
    count = 0
    for path in paths:
        for finding in check(path.name, path.read_text(encoding="utf-8")):
            print(f"{path}:{finding.line}: {finding.word}: {finding.advice}")
            count += 1
    return int(count > 0)


def _tracked() -> list[str]:
    kinds = ["*.py", "*.md", "*.sh", "*.toml", "*.yaml", "*.yml", "Makefile", "*/Containerfile"]
    listed = subprocess.run(["git", "ls-files", "-z", *kinds], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name]


def _pieces(name: str, text: str) -> Iterator[Piece]:
    if name.endswith(".py"):
        yield from _docstrings(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield Piece(token.start[0], token.string)
    elif name.endswith(".md"):
        yield Piece(1, _FENCED.sub(_blank, text))
    else:
        for comment in _HASH.finditer(text):
            yield Piece(text.count("\n", 0, comment.start(1)) + 1, comment[1])


def _docstrings(text: str) -> Iterator[Piece]:
    """Yield the strings that are statements: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Piece(node.lineno, node.value.value, is_docstring=True)


def _findings(piece: Piece) -> Iterator[Finding]:
    if piece.is_docstring and (fragment := _FRAGMENT.match(piece.text)):
        yield Finding(piece.line, fragment[1], "begin with a verb and its object, or with a noun")
    prose = _QUOTED.sub(_blank, piece.text)
    for found in _WORD.finditer(prose):
        advice = list(WORDS.values())[int((found.lastgroup or "w0")[1:])]
        yield Finding(piece.line + prose.count("\n", 0, found.start()), found[0].lower(), advice)


def _blank(found: re.Match[str]) -> str:
    """Return the line breaks of a match, so that the text after it keeps its line numbers."""
    return "\n" * found[0].count("\n") or " "


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
