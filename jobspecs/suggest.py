"""Suggestions for misspelt names ("did you mean"): the nearest known names, and look-alike characters.

These functions are called only for mistakes, so they do not slow down correct job files. The user's text is compared
character by character and never used as a regular expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MAX_TEXT = 64
"""Maximum length of a text, in characters, for which suggestions are computed; longer texts are no names."""
_EDIT = 2
"""Cost of a wrong, missing or additional character, and of two swapped characters."""
_SLIP = 1
"""Cost of confusing two similar characters (`H1OO`, `us_east_1`)."""
_SLIPS = frozenset(
    pair for group in ("0o", "1li", "5s", "8b", "-_ ./") for a in group for b in group if a != b for pair in [(a, b)]
)
# Letters of other scripts that most fonts draw like a Latin one.
_LOOK_ALIKES = str.maketrans(
    "АВЕЅІЈКМНОРСТХУаеѕіјорсхуԁһӏԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧοναι‐‑‒–—−",
    "ABESIJKMHOPCTXYaesijopcxydhlqwABEZHIKMNOPTYXovai------",
)


def closest(text: str, options: Iterable[str], n: int = 3) -> list[str]:
    """Return at most `n` options that are similar to `text`, the most similar first."""
    wanted = looks_like(text).strip().lower()
    if not wanted or len(wanted) > _MAX_TEXT:
        return []
    limit = max(_EDIT, _EDIT * len(wanted) // 3)
    ranked = []
    for option in dict.fromkeys(options):
        cost = _cost(wanted, option.lower(), limit)
        if cost is not None:
            ranked.append((cost, abs(len(option) - len(wanted)), option))
    return [option for _, _, option in sorted(ranked)[:n]]


def did_you_mean(text: str, options: Iterable[str], n: int = 3) -> str:
    """Return `did you mean a or b?`, or "" if no option is similar."""
    found = closest(text, options, n)
    return f"did you mean {one_of(found)}?" if found else ""


def one_of(options: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, (", ".join(options[:-1]), *options[-1:])))


def looks_like(text: str) -> str:
    """Return the text with look-alike letters replaced by Latin ones, and without invisible characters."""
    if text.isascii():
        return text
    import unicodedata

    plain = unicodedata.normalize("NFKC", text).translate(_LOOK_ALIKES)
    return "".join(char for char in plain if unicodedata.category(char) != "Cf")


def odd_character(text: str) -> str:
    """Return the name and position of the first non-ASCII character; "" if there is none.

    Example: `CYRILLIC SMALL LETTER A (U+0430) at character 2`.
    """
    import unicodedata

    for place, char in enumerate(text, start=1):
        if not char.isascii():
            return f"{unicodedata.name(char, 'a nameless character')} (U+{ord(char):04X}) at character {place}"
    return ""


def _cost(wanted: str, option: str, limit: int) -> int | None:
    """Return the edit cost from `wanted` to `option`; None if it exceeds `limit`.

    A missing end costs only one edit: `p4d`, `A100-80`.
    """
    if option == wanted:
        return 0
    if len(wanted) >= 3 and option.startswith(wanted):
        return min(_EDIT, limit)
    if abs(len(wanted) - len(option)) * _EDIT > limit:
        return None
    return _distance(wanted, option, limit)


def _distance(a: str, b: str, limit: int) -> int | None:
    """Return the Damerau-Levenshtein distance (optimal string alignment) with costs _EDIT and _SLIP.

    None if it exceeds `limit`.
    """
    before: list[int] = []
    row = [_EDIT * j for j in range(len(b) + 1)]
    for i, char in enumerate(a, start=1):
        older, before = before, row
        row = [_EDIT * i]
        for j, other in enumerate(b, start=1):
            swap = 0 if char == other else _SLIP if (char, other) in _SLIPS else _EDIT
            best = min(before[j - 1] + swap, before[j] + _EDIT, row[j - 1] + _EDIT)
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                best = min(best, older[j - 2] + _EDIT)
            row.append(best)
        if min(row) > limit:
            return None
    return row[-1] if row[-1] <= limit else None
