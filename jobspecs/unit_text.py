"""Text of shorthand values: patterns, and formatting of durations and sizes. Does not import Pydantic."""

from __future__ import annotations

DURATION_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}

# Patterns are kept as text: most runs use none of them, and `re` compiles and caches each on first use.
SIZE = r"(?ai)(\d{1,9}(?:\.\d{1,3})?) ?(MB|GB|TB)"
AMOUNT = r"(?a)(\d{1,9}(?:\.\d{1,4})?) ?USD"
RATE = r"(?a)(\d{1,7}(?:\.\d{1,5})?) ?USD/h"

MAX_DURATION_S = 366 * 86_400


def format_duration(seconds: float) -> str:
    """Return the shortest text that parse_duration() parses to these seconds, rounded to a whole number."""
    rest, parts = round(seconds), []
    for unit, size in DURATION_SECONDS.items():
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def format_size(gigabytes: float) -> str:
    """Return text such as `100GB`, `1.5GB` or `0.25MB`, which parse_size_gb() parses to the same number."""
    number, unit = (gigabytes, "GB") if round(gigabytes, 3) == gigabytes else (gigabytes * 1000, "MB")
    return f"{number:.3f}".rstrip("0").rstrip(".") + unit
