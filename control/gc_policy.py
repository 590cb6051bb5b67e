"""What may go of everything that carries our tags: the rule of `cloudgpu gc`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .store import states

if TYPE_CHECKING:
    from ..provisioners.tagged_resources import Leftover
    from .store.model import Attempt
    from .store.store import Store

Verdict = Literal["in use", "orphaned", "alive", "expired", "another's"]
"""in use: an attempt of this store needs it. orphaned: its job is this store's, or it carries this store's name, and no
attempt needs it. alive: likewise, but a node of it writes heartbeats: a copy of this store may need it. another's: of
another store; expired: likewise, and the time after which anybody may remove it has come."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A leftover, and what is to be thought of it."""

    leftover: Leftover
    verdict: Verdict
    is_expired: bool

    def may_go(self, *, others: bool, expired_only: bool, alive: bool) -> bool:
        """Return whether it may be removed. What an attempt needs stays, expired or not.

        others: what is expired of other stores goes as well
        alive: so does what writes heartbeats
        """
        if self.verdict == "orphaned" or (self.verdict == "alive" and alive):
            return self.is_expired or not expired_only
        return self.verdict == "expired" and others


def judge(
    leftover: Leftover, attempts: Sequence[Attempt], owner: str, now: float, is_alive: Callable[[], bool]
) -> Judged:
    """Return what may be done with a leftover.

    attempts: those of its job in this store, read after the leftover was found
    owner: this store's
    now: when looking began; what an attempt needed then, it has removed itself, or does: it is not left over
    is_alive: whether a node of it writes heartbeats; called where no attempt needs it
    """
    is_expired = leftover.expires is not None and leftover.expires <= now
    if leftover.owner != owner and not attempts:
        return Judged(leftover, "expired" if is_expired else "another's", is_expired)
    needed = any(
        attempt.number == leftover.attempt
        and attempt.token == leftover.token
        and (attempt.state not in states.ATTEMPT_END or (attempt.ended or 0.0) >= now)
        for attempt in attempts
    )
    if needed:
        return Judged(leftover, "in use", is_expired)
    return Judged(leftover, "alive" if is_alive() else "orphaned", is_expired)


def _judge_by(store: Store, leftover: Leftover, now: float) -> Judged:
    from .heartbeats import is_alive

    attempts = store.attempts(leftover.job_id)
    return judge(leftover, attempts, store.owner(), now, lambda: is_alive(store, leftover, time.time()))


@dataclass(frozen=True, slots=True)
class Search:
    """Return value of find(): what is tagged as ours, and which targets were searched for it."""

    found: list[Judged]
    searched: list[str]
    """Targets that answered, in whole or in part."""
    missed: dict[str, str]
    """Target, or a region or kind of thing of one ("aws eu-west-3") -> why it could not be searched."""


def find(targets: Sequence[str], regions: Sequence[str], now: float) -> Search:
    """Search these targets for everything that carries our tags. Raises StoreError."""
    from ..provisioners import ProvisionError, tagged_resources
    from ..provisioners.base import Owner
    from .store.store import open_store

    store = open_store()
    found: list[Leftover] = []
    searched: list[str] = []
    missed: dict[str, str] = {}
    for target in targets:
        try:
            here = tagged_resources.find(target, Owner(store.owner()), regions)
        except ProvisionError as error:
            missed[target] = str(error)
            continue
        searched.append(target)
        found += here.leftovers
        missed |= {f"{target} {place}": why for place, why in here.missed.items()}
    # The store is read after the targets: what was being made meanwhile is known by now.
    return Search([_judge_by(store, leftover, now) for leftover in found], searched, missed)


def remove(judged: Judged, now: float, *, others: bool, expired_only: bool, alive: bool = False) -> bool:
    """Remove it, after looking again whether it may go; whether it did. Raises ProvisionError, StoreError."""
    from ..provisioners import tagged_resources
    from .store.store import open_store

    again = _judge_by(open_store(), judged.leftover, now)
    if not again.may_go(others=others, expired_only=expired_only, alive=alive):
        return False
    tagged_resources.remove(judged.leftover)
    return True
