"""Formatting of times, durations and money."""

from __future__ import annotations

import datetime
import time
from decimal import ROUND_UP, Decimal

_CENT = Decimal("0.01")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def duration(seconds: float | None) -> str:
    """Return the two largest units: `45s`, `3m 20s`, `2h 5m`, `4d 1h`; under ten seconds with a decimal; None: `-`."""
    if seconds is None:
        return "-"
    seconds = max(seconds, 0)  # clocks of two machines may disagree
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        amount, rest = divmod(rest, size)
        if amount or parts:
            parts.append(f"{amount}{unit}" if amount else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))


def ago(moment: float | None, now: float | None = None) -> str:
    """Return the time since `moment` (epoch seconds): `3m 20s ago`; `-` for None."""
    return "-" if moment is None else f"{duration((time.time() if now is None else now) - moment)} ago"


def money(amount: Decimal | None) -> str:
    """Return `12.34 USD` or `unknown`; below a cent with four decimals, rounded up, so that a price never shows as
    0."""
    if amount is None:
        return "unknown"
    if 0 < amount < _CENT:
        return f"{amount.quantize(Decimal('0.0001'), ROUND_UP)} USD"
    return f"{amount.quantize(_CENT)} USD"


def clock(moment: float) -> str:
    """Return epoch seconds as local time: `14:03:07` today, `2026-05-01 14:03:07` on another day."""
    then = datetime.datetime.fromtimestamp(moment).astimezone()
    today = datetime.datetime.now().astimezone().date()
    return then.strftime("%H:%M:%S" if then.date() == today else "%Y-%m-%d %H:%M:%S")


def iso(moment: float | None) -> str | None:
    """Return epoch seconds as in JSON output: `2026-05-01T12:03:07.120Z`, always UTC."""
    if moment is None:
        return None
    then = datetime.datetime.fromtimestamp(moment, tz=datetime.UTC)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def amount(size: float) -> str:
    """Return a number of bytes: `0 B`, `1.2 kB`, `3.4 MB`, `56.7 GB`."""
    if size < 1_000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1_000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1_000:,.1f} TB"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `1,234 files`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
