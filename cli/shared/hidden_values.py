"""Registry of environment variable values of the command's job, masked in crash reports."""

from __future__ import annotations

from collections.abc import Iterable

MASK = "…"
_values: set[str] = set()


def hide(values: Iterable[str]) -> None:
    """Mask these texts in crash reports from now on. Texts of one or two characters are not masked, because they occur
    everywhere in a report."""
    _values.update(value for value in values if len(value) > 2)


def masked(text: str) -> str:
    """Return the text with the hidden values masked."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text
