"""When a cluster's machines end for good, for one that was forgotten bills for ever; and how that is said."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..shared.text import clock, duration, iso

if TYPE_CHECKING:
    from ...infra.preflight import Finding
    from ...infra.settings import FleetSettings

_FRESH = 0.1
"""An expiry is put off only once so much of it has passed: the same command again changes nothing."""


def renewed(wanted_s: int | None, before: float | None, now: float | None = None) -> float | None:
    """Epoch seconds at which a cluster that is brought up now expires; None: never. `before`: when it would have."""
    if wanted_s is None:
        return None
    now = time.time() if now is None else now
    if before is not None and now + wanted_s * (1 - _FRESH) <= before <= now + wanted_s:
        return before
    return float(round(now + wanted_s))


def expiry_json(expires: float | None) -> str:
    return iso(expires) or "never"


def expiry_text(settings: FleetSettings) -> str:
    """`expires: 2026-11-29 13:00:00, in 7d: …`."""
    name, expires = settings.fleet.name, settings.expires
    if expires is None:
        return f"expires: never; its machines bill until `cloudgpu cluster down {name}`"
    if is_over(expires):
        return f"expired: {moment(expires)}: `cloudgpu cluster extend {name} 7d` brings its machines back"
    return f"expires: {moment(expires)}: then its machines end; `cloudgpu cluster extend {name} 7d` puts that off"


def moment(expires: float) -> str:
    """`2026-11-29 13:00:00, in 7d`; `…, 2h 5m ago`."""
    left = expires - time.time()
    return f"{clock(expires)}, {f'in {_about(left)}' if left > 0 else f'{_about(-left)} ago'}"


def expiry_cell(expires: float | None) -> str:
    """`in 6d 20h`, `over`, `never`."""
    left = 0.0 if expires is None else expires - time.time()
    return "never" if expires is None else f"in {_about(left)}" if left > 0 else "over"


def _about(seconds: float) -> str:
    """To the nearest hour, from a day on, or minute: what was put off by 7d a moment ago is in 7d, not in 6d 23h."""
    unit = 3_600 if seconds >= 86_400 else 60 if seconds >= 3_600 else 1
    return duration(round(seconds / unit) * unit)


def is_over(expires: float | None) -> bool:
    return expires is not None and expires <= time.time()


def check_expiry(settings: FleetSettings) -> list[Finding]:
    """Machines that would be ended again as soon as they are there."""
    from ...infra.preflight import Finding

    name, expires = settings.fleet.name, settings.expires
    if not settings.fleet.size or expires is None or not is_over(expires):
        return []
    message = f"the cluster {name} has expired ({moment(expires)}): its machines would end again"
    return [Finding("expired", "refused", message, f"`cloudgpu cluster extend {name} 7d` brings them back")]
