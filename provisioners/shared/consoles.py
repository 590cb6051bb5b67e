"""Excerpt of a machine's console output."""

from __future__ import annotations

_LINES, _CHARACTERS = 15, 1_500


def last_lines(text: str) -> str:
    """Return the last lines that are not empty (up to 15, and 1500 characters), without unprintable characters.

    "": there are none."""
    lines = ["".join(letter for letter in line if letter.isprintable()).rstrip() for line in text.splitlines()]
    return "\n".join([line for line in lines if line][-_LINES:])[-_CHARACTERS:]
