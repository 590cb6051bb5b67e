"""Building blocks of compatibility rules: Request (of one role on one cloud), Rule and Verdict."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from .. import catalog
from ..diagnostics import Loc
from ..units import CountRange

if TYPE_CHECKING:
    from ..plan import Refusal


class Request(NamedTuple):
    """Request of one role to one cloud. A field is None if the user left it open, or if it is not decided yet."""

    cloud: str
    today: str
    """Date, YYYY-MM-DD; hardware whose end date is this day or earlier is not available."""
    accelerator: str | None = None
    """Canonical name, or the user's text."""
    gpus: CountRange | None = None
    """GPUs per machine; None without accelerator."""
    machine_type: str | None = None
    region: str | None = None
    zone: str | None = None
    market: str | None = None

    def __str__(self) -> str:
        """Return text such as `gcp n1-standard-4 + V100-16GB:3 in us-central1-a, spot`."""
        gpus = f"{self.accelerator}:{self.gpus}" if self.accelerator else ""
        what = " + ".join(filter(None, (self.machine_type, gpus)))
        place = self.zone or self.region
        text = " ".join(filter(None, (self.cloud, what, f"in {place}" if place else "")))
        return f"{text}, {self.market}" if self.market else text


class Verdict(NamedTuple):
    """Reason why a request is impossible, and an allowed alternative ("" if none is known)."""

    message: str
    allowed: str = ""
    key: Loc = ()
    """Path of the job file's key that causes the refusal; (): the rule's key."""


class Rule(NamedTuple):
    """Check of requests in which every field of `needs` is set; the check's docstring names its source."""

    name: str
    needs: tuple[str, ...]
    check: Callable[[Request], Verdict | None]
    key: str = "accelerator"
    """Key of `resources`, or of a role, that the rule concerns."""

    def refuse(self, ask: Request) -> Refusal | None:
        """Return the refusal if the rule applies to the request and forbids it, else None."""
        if any(getattr(ask, field) is None for field in self.needs):
            return None
        verdict = self.check(ask)
        return None if verdict is None else refusal(self.name, ask.cloud, str(ask), verdict, ("resources", self.key))


def refusal(rule: str, cloud: str, subject: str, verdict: Verdict, key: Loc) -> Refusal:
    """Return a rule's verdict as a Refusal."""
    from ..plan import Refusal  # imported late: `validate` rarely has refusals, and starts faster without it

    return Refusal(rule, cloud, subject, verdict.message, verdict.allowed, key=verdict.key or key)


def exactly(count: Fraction) -> CountRange:
    """Return a range of one count."""
    return CountRange(count, count)


def listing(names: list[str], most: int = 8) -> str:
    """Return `a, b or c`; a long list is shortened: `a, b … (12 in all)`."""
    if len(names) > most:
        return ", ".join(names[:most]) + f" … ({len(names)} in all)"
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def refresh_command(cloud: str) -> str:
    """Return the part of a hint that names the command that queries the provider for new table rows."""
    return f"`cloudgpu catalog refresh --cloud {catalog.host_cloud(cloud)}` asks the provider"
