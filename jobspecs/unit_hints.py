"""Hints for invalid shorthand values: `12 hours`, `24GiB..`, `$5/h`.

This module is imported only for mistakes. A hint contains valid text; it is "" if the meaning is uncertain.
"""

from __future__ import annotations

import re
from decimal import Decimal

from .unit_text import AMOUNT, MAX_DURATION_S, RATE, SIZE, format_duration

_MAX_TEXT = 64
"""Maximum characters of a text for which a hint is computed."""
_SECONDS = {
    word: seconds
    for seconds, words in (
        (7 * 86_400, "w week weeks"),
        (86_400, "d day days"),
        (3_600, "h hr hrs hour hours"),
        (60, "m min mins minute minutes"),
        (1, "s sec secs second seconds"),
    )
    for word in words.split()
}
_PART = r"(?a)(\d{1,9}(?:\.\d{1,4})?) *([a-z]+)[ ,]*"
_DOLLARS = r"(?:usd|us\$|\$|dollars?)?"
_LOOSE_AMOUNT = rf"(?a){_DOLLARS} *(\d{{1,3}}(?:,\d{{3}})+|\d+)(\.\d+)? *{_DOLLARS}( *(?:/|per) *(?:h|hr|hour))?"
_OTHER_MONEY = r"[€£¥₹]|\b(?:eur|gbp|chf|jpy|cny|inr|cad|aud|euros?)\b"


def duration_hint(text: str) -> str:
    """Return the hint for `12`, `12 hours`, `1h 30m`, `1.5h` or `2w`."""
    if len(text) > _MAX_TEXT:
        return ""
    if text.isascii() and text.isdecimal() and text.strip("0"):
        return f"write {', '.join(text + unit for unit in 'hm')} or {text}s"
    parts = re.findall(_PART, text.lower())
    known = all(unit in _SECONDS for _, unit in parts) and not re.sub(_PART, "", text.lower())
    seconds = sum(Decimal(number) * _SECONDS[unit] for number, unit in parts) if known else Decimal(0)
    return f"write {format_duration(float(seconds))}" if 1 <= seconds <= MAX_DURATION_S and seconds % 1 == 0 else ""


def size_hint(text: str) -> str:
    """Return the hint for a size without its unit, or with `Gi`, `GiB` or `G`."""
    meant = _meant_size(text)
    return f"write {meant}" if meant else ""


def range_hint(low: str, high: str) -> str:
    """Return the hint for a range of sizes such as `24GiB..` or `24..80`."""
    ends = [_meant_size(end) if end else "" for end in (low, high)]
    return f"write {'..'.join(ends)}" if ends != ["", ""] and all(map(bool, ends)) == bool(low and high) else ""


def amount_hint(text: str, example: str) -> str:
    """Return the hint for an amount such as `5`, `$5/h` or `1,000 USD`, for a missing `/h`, or another currency.

    example  valid text, from which the expected unit is taken: `50 USD` or `5 USD/h`
    """
    if len(text) > _MAX_TEXT:
        return ""
    meant = re.fullmatch(_LOOSE_AMOUNT, text.lower())
    if meant is None:
        return f"convert it to US dollars, as in {example}" if re.search(_OTHER_MONEY, text.lower()) else ""
    is_rate = example.endswith("/h")
    written = meant[1].replace(",", "") + (meant[2] or "") + example.lstrip("0123456789")
    if not re.fullmatch(RATE if is_rate else AMOUNT, written):
        return ""
    return f"write {written}" + ("; a limit per hour is limits.price" if meant[3] and not is_rate else "")


def _meant_size(text: str) -> str:
    number = text.rstrip("KMGTkmgtiBb ")
    unit = text[len(number) :].strip().upper()[:1] or "G"
    meant = text if re.fullmatch(SIZE, text) else f"{number}{unit}B"
    return meant if re.fullmatch(SIZE, meant) else ""
