"""Policy of `cloudgpu gc`: which resources tagged by cloudgpu may be removed."""

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
"""Verdict on a resource tagged by cloudgpu.

in use: an attempt in this store needs it
orphaned: its job or its owner tag is of this store, and no attempt needs it
alive: orphaned, but one of its nodes writes heartbeats, so a copy of this store may need it
another's: of another store
expired: of another store, and past the time after which anyone may remove it
"""


@dataclass(frozen=True, slots=True)
class JudgedLeftover:
    """A leftover resource with the verdict on it."""

    leftover: Leftover
    verdict: Verdict
    is_expired: bool

    def is_removable(self, *, others: bool, expired_only: bool, alive: bool) -> bool:
        """Return whether the resource may be removed. If an attempt needs it, it is kept even if it has expired.

        others: also remove expired resources of other stores
        expired_only: of this store, remove only expired resources
        alive: also remove resources whose nodes write heartbeats
        """
        if self.verdict == "orphaned" or (self.verdict == "alive" and alive):
            return self.is_expired or not expired_only
        return self.verdict == "expired" and others


def judge(
    leftover: Leftover, attempts: Sequence[Attempt], owner: str, now: float, is_alive: Callable[[], bool]
) -> JudgedLeftover:
    """Return the verdict on a leftover.

    attempts: the attempts of its job in this store, read after the leftover was found
    owner: the owner tag of this store
    now: start of the search. Resources of an attempt that ended after it are in use: the attempt removes them itself
    is_alive: whether one of its nodes writes heartbeats; called only if no attempt needs it
    """
    is_expired = leftover.expires is not None and leftover.expires <= now
    if leftover.owner != owner and not attempts:
        return JudgedLeftover(leftover, "expired" if is_expired else "another's", is_expired)
    needed = any(
        attempt.number == leftover.attempt
        and attempt.token == leftover.token
        and (attempt.state not in states.ATTEMPT_END or (attempt.ended or 0.0) >= now)
        for attempt in attempts
    )
    if needed:
        return JudgedLeftover(leftover, "in use", is_expired)
    return JudgedLeftover(leftover, "alive" if is_alive() else "orphaned", is_expired)


def _judge_by(store: Store, leftover: Leftover, now: float) -> JudgedLeftover:
    from .heartbeats import is_alive

    attempts = store.attempts(leftover.job_id)
    return judge(leftover, attempts, store.owner(), now, lambda: is_alive(store, leftover, time.time()))


@dataclass(frozen=True, slots=True)
class Search:
    """Return value of find(): resources tagged by cloudgpu, and the targets that were searched."""

    found: list[JudgedLeftover]
    searched: list[str]
    """Targets that answered at least in part."""
    missed: dict[str, str]
    """Target, or a region or resource type of one ("aws eu-west-3") -> why it could not be searched."""


def find(targets: Sequence[str], regions: Sequence[str], now: float) -> Search:
    """Search these targets for all resources tagged by cloudgpu. Raises StoreError."""
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
        missed |= {f"{target} {place}": why for place, why in here.failed.items()}
    # The store is read after the targets, so that it knows the resources created during the search.
    return Search([_judge_by(store, leftover, now) for leftover in found], searched, missed)


def remove(judged: JudgedLeftover, now: float, *, others: bool, expired_only: bool, alive: bool = False) -> bool:
    """Remove a leftover if a new check still allows it; return whether it did. Raises ProvisionError, StoreError."""
    from ..provisioners import tagged_resources
    from .store.store import open_store

    again = _judge_by(open_store(), judged.leftover, now)
    if not again.is_removable(others=others, expired_only=expired_only, alive=alive):
        return False
    tagged_resources.remove(judged.leftover)
    return True
