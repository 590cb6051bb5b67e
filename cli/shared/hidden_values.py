"""Values of environment variables of the command's job, which a crash report must not repeat."""

from __future__ import annotations

from collections.abc import Iterable

MASK = "…"
_values: set[str] = set()


def hide(values: Iterable[str]) -> None:
    """Keep these texts out of reports. Texts of one or two characters would only make a report unreadable."""
    _values.update(value for value in values if len(value) > 2)


def masked(text: str) -> str:
    """Return the text without the hidden values."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text
