"""What may go of everything that carries our tags: the rule of `cloudgpu gc`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from . import states

if TYPE_CHECKING:
    from ..provisioners.leftovers import Leftover
    from .model import Attempt

Verdict = Literal["in use", "orphaned", "expired", "another's"]
"""in use: an attempt of this store needs it. orphaned: it is this store's, and no attempt does. another's: of another
store; expired: likewise, and the time after which anybody may remove it has come."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A leftover, and what is to be thought of it."""

    leftover: Leftover
    verdict: Verdict
    is_expired: bool

    def may_go(self, *, others: bool, expired_only: bool) -> bool:
        """`others`: what is expired of other stores as well. What an attempt needs stays, expired or not."""
        if self.verdict == "orphaned":
            return self.is_expired or not expired_only
        return self.verdict == "expired" and others


def judge(leftover: Leftover, attempts: Iterable[Attempt], owner: str, now: float) -> Judged:
    """`attempts`: those of its job in this store, read after the leftover was found; `owner`: this store's; `now`: when
    looking began. What an attempt needed then, it has removed itself, or does: it is not left over."""
    is_expired = leftover.expires is not None and leftover.expires <= now
    if leftover.owner != owner:
        return Judged(leftover, "expired" if is_expired else "another's", is_expired)
    needed = any(
        attempt.number == leftover.attempt
        and attempt.token == leftover.token
        and (attempt.state not in states.ATTEMPT_END or (attempt.ended or 0.0) >= now)
        for attempt in attempts
    )
    return Judged(leftover, "in use" if needed else "orphaned", is_expired)


def find(targets: Sequence[str], regions: Sequence[str], now: float) -> tuple[list[Judged], dict[str, str]]:
    """Everything tagged on these targets; and where nobody could look -> why. Raises StoreError."""
    from ..provisioners import ProvisionError, leftovers
    from ..provisioners.base import Owner
    from .jobs import open_store
    from .submission import owner_name

    store, owner = open_store(), owner_name()
    found: list[Leftover] = []
    missed: dict[str, str] = {}
    for target in targets:
        try:
            here = leftovers.find(target, Owner(owner), regions)
        except ProvisionError as error:
            missed[target] = str(error)
            continue
        found += here.leftovers
        missed |= {f"{target} {place}": why for place, why in here.missed.items()}
    # The store is read after the targets: what was being made meanwhile is known by now.
    return [judge(leftover, store.attempts(leftover.job_id), owner, now) for leftover in found], missed


def remove(judged: Judged, now: float, *, others: bool, expired_only: bool) -> bool:
    """Remove it, after looking again whether it may go; whether it did. Raises ProvisionError, StoreError."""
    from ..provisioners import leftovers
    from .jobs import open_store
    from .submission import owner_name

    attempts = open_store().attempts(judged.leftover.job_id)
    if not judge(judged.leftover, attempts, owner_name(), now).may_go(others=others, expired_only=expired_only):
        return False
    leftovers.remove(judged.leftover)
    return True
