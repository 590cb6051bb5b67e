"""What a compatibility rule is: a named check of what one role asks for of one cloud."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from .. import catalog
from ..diagnostics import Loc
from ..units import CountRange

if TYPE_CHECKING:
    from ..plan import Refusal


class Ask(NamedTuple):
    """What one role asks for of one cloud; None: left open by the user, or not looked at yet."""

    cloud: str
    today: str
    """YYYY-MM-DD: what ends on or before this day is gone."""
    accelerator: str | None = None
    """Canonical name, or what the user wrote."""
    gpus: CountRange | None = None
    """GPUs per machine; None without accelerator."""
    machine_type: str | None = None
    region: str | None = None
    zone: str | None = None
    market: str | None = None

    def __str__(self) -> str:
        """`gcp n1-standard-4 + V100-16GB:3 in us-central1-a, spot`."""
        gpus = f"{self.accelerator}:{self.gpus}" if self.accelerator else ""
        what = " + ".join(filter(None, (self.machine_type, gpus)))
        place = self.zone or self.region
        text = " ".join(filter(None, (self.cloud, what, f"in {place}" if place else "")))
        return f"{text}, {self.market}" if self.market else text


class Verdict(NamedTuple):
    """Why something cannot be, and what would be allowed ("": nothing is known that would)."""

    message: str
    allowed: str = ""
    key: Loc = ()
    """Path of the key that it is about, where that is another one than the rule's."""


class Rule(NamedTuple):
    """A check that applies to asks in which every field of `needs` is set; its docstring names its source."""

    name: str
    needs: tuple[str, ...]
    check: Callable[[Ask], Verdict | None]
    key: str = "accelerator"
    """The key of `resources`, or of a role, that it is about."""

    def refuse(self, ask: Ask) -> Refusal | None:
        """The refusal if the rule applies to the ask and forbids it."""
        if any(getattr(ask, field) is None for field in self.needs):
            return None
        verdict = self.check(ask)
        return None if verdict is None else refusal(self.name, ask.cloud, str(ask), verdict, ("resources", self.key))


def refusal(rule: str, cloud: str, subject: str, verdict: Verdict, key: Loc) -> Refusal:
    """The verdict of a rule as the plan shows it."""
    from ..plan import Refusal  # here, for `validate` mostly finds nothing to refuse, and starts sooner without it

    return Refusal(rule, cloud, subject, verdict.message, verdict.allowed, key=verdict.key or key)


def exactly(count: Fraction) -> CountRange:
    """A range of one count."""
    return CountRange(count, count)


def listing(names: list[str], most: int = 8) -> str:
    """`a, b or c`; a long list is cut: `a, b … (12 in all)`."""
    if len(names) > most:
        return ", ".join(names[:most]) + f" … ({len(names)} in all)"
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def refresh_command(cloud: str) -> str:
    """Return the command that asks the provider for what the shipped tables lack."""
    return f"`cloudgpu catalog refresh --cloud {catalog.host_cloud(cloud)}` asks the provider"
