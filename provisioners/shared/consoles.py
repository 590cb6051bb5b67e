"""What a machine wrote on its console: of the end of it the lines that are worth telling."""

from __future__ import annotations

_LINES, _CHARACTERS = 15, 1_500


def end_of(text: str) -> str:
    """The last lines, without empty ones; "": there is nothing. What no terminal should be sent is left out."""
    lines = ["".join(letter for letter in line if letter.isprintable()).rstrip() for line in text.splitlines()]
    return "\n".join([line for line in lines if line][-_LINES:])[-_CHARACTERS:]
