"""Expiry of clusters: compute, show and check the time at which the machines are terminated. A forgotten cluster would
otherwise bill forever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..shared.text import clock, duration, iso

if TYPE_CHECKING:
    from ...infra.preflight import Finding
    from ...infra.settings import FleetSettings

_RENEW_AFTER = 0.1
"""Fraction of the lifetime that must pass before a repeated `up` renews the expiry; below it the command is a no-op."""


def next_expiry(wanted_s: int | None, before: float | None, now: float | None = None) -> float | None:
    """Return the epoch seconds at which a cluster brought up now expires; None: never.

    wanted_s: lifetime in seconds; None: unlimited
    before: current expiry, which is kept if it is only a little earlier
    """
    if wanted_s is None:
        return None
    now = time.time() if now is None else now
    if before is not None and now + wanted_s * (1 - _RENEW_AFTER) <= before <= now + wanted_s:
        return before
    return float(round(now + wanted_s))


def expiry_json(expires: float | None) -> str:
    return iso(expires) or "never"


def expiry_text(settings: FleetSettings) -> str:
    """Return the line on the expiry: `expires: 2026-11-29 13:00:00, in 7d: …`."""
    name, expires = settings.fleet.name, settings.expires
    if expires is None:
        return f"expires: never; its machines bill until `cloudgpu cluster down {name}`"
    if is_over(expires):
        return f"expired: {moment(expires)}: `cloudgpu cluster extend {name} 7d` brings its machines back"
    return f"expires: {moment(expires)}: then its machines end; `cloudgpu cluster extend {name} 7d` puts that off"


def moment(expires: float) -> str:
    """Return a time with its distance from now: `2026-11-29 13:00:00, in 7d`; `…, 2h 5m ago`."""
    left = expires - time.time()
    return f"{clock(expires)}, {f'in {_about(left)}' if left > 0 else f'{_about(-left)} ago'}"


def expiry_cell(expires: float | None) -> str:
    """Return the expiry for a table: `in 6d 20h`, `over`, `never`."""
    left = 0.0 if expires is None else expires - time.time()
    return "never" if expires is None else f"in {_about(left)}" if left > 0 else "over"


def _about(seconds: float) -> str:
    """Return a duration rounded to hours (from a day on), minutes (from an hour on) or seconds, so that a fresh 7d
    shows as 7d and not as 6d 23h."""
    unit = 3_600 if seconds >= 86_400 else 60 if seconds >= 3_600 else 1
    return duration(round(seconds / unit) * unit)


def is_over(expires: float | None) -> bool:
    return expires is not None and expires <= time.time()


def check_expiry(settings: FleetSettings) -> list[Finding]:
    """Return a refusal if the cluster has expired but has machines: they would be terminated at once."""
    from ...infra.preflight import Finding

    name, expires = settings.fleet.name, settings.expires
    if not settings.fleet.size or expires is None or not is_over(expires):
        return []
    message = f"the cluster {name} has expired ({moment(expires)}): its machines would end again"
    return [Finding("expired", "refused", message, f"`cloudgpu cluster extend {name} 7d` brings them back")]
