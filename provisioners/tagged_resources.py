"""Everything of ours that a target has, found by its tags alone: for `cloudgpu gc`, which may know of no job.

A launch leaves more than machines: disks, interfaces, security groups, roles ... What belongs to one launch is one
Leftover. Whether it may go is not decided here (control/gc_policy.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, cast

from . import get_provisioner
from .base import Allocation, Owner
from .shared import tags
from .target import code_of, target_of

log = logging.getLogger("cloudgpu.provisioners")

_OF_A_STACK = "%s: what bills and is left to its stack %s: %s (`cloudgpu cluster down`, `pulumi destroy`)"


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing that exists."""

    kind: str
    """e.g. "instance", "volume", "role"."""
    id: str
    region: str
    """"": it belongs to no region."""
    detail: str = ""
    """e.g. "g4dn.xlarge spot, running"."""
    price: Decimal | None = Decimal(0)
    """US dollars an hour by the tables; None: unknown."""
    created: float | None = None
    """Epoch seconds; None: the target does not tell."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "id": self.id,
            "region": self.region,
            "detail": self.detail,
            "price_usd_h": None if self.price is None else str(self.price),
            "created": self.created,
        }


@dataclass(frozen=True, slots=True)
class Leftover:
    """What is there of one launch."""

    target: str
    owner: str
    """As in Owner.name."""
    job_id: str
    """"": its tag is gone; so with attempt 0."""
    attempt: int
    token: str
    expires: float | None
    """Epoch seconds after which anybody may remove it; None: never."""
    things: tuple[Thing, ...]

    @property
    def price(self) -> Decimal | None:
        """US dollars an hour of all; None: that of a part is unknown."""
        prices = [thing.price for thing in self.things]
        return None if None in prices else sum((price for price in prices if price is not None), Decimal(0))

    @property
    def created(self) -> float | None:
        """Of the oldest thing."""
        return min((thing.created for thing in self.things if thing.created is not None), default=None)

    @property
    def regions(self) -> list[str]:
        return sorted({thing.region for thing in self.things if thing.region})


class Tagged(NamedTuple):
    """A thing with its tags, which somebody may have changed."""

    thing: Thing
    tags: Mapping[str, str]


def launches(target: str, found: Iterable[Tagged]) -> list[Leftover]:
    """What has the same token belongs together; without a token every thing is by itself.

    What a stack has made is no launch's: its stack removes it (`cloudgpu infra down`, `cloudgpu cluster down`), and
    machines that were ended one by one would be replaced by their group. What of it bills is told: its stack may have
    been forgotten.
    """
    groups: dict[str, list[Tagged]] = {}
    of_stacks: dict[str, list[Thing]] = {}
    for one in found:
        if tags.STACK in one.tags:
            of_stacks.setdefault(one.tags[tags.STACK], []).append(one.thing)
            continue
        groups.setdefault(one.tags.get(tags.TOKEN) or one.thing.id, []).append(one)
    for stack, things in sorted(of_stacks.items()):
        billing = sorted(f"{thing.kind} {thing.id}" for thing in things if thing.price != 0)
        if billing:
            log.warning(_OF_A_STACK, target, stack, ", ".join(billing))
    return [_launch(target, group) for group in groups.values()]


def _launch(target: str, group: Sequence[Tagged]) -> Leftover:
    def first(name: str) -> str:
        return next((one.tags[name] for one in group if one.tags.get(name)), "")

    expiries = [float(text) for one in group if (text := one.tags.get(tags.EXPIRES, "")).isdecimal()]
    return Leftover(
        target=target,
        owner=first(tags.OWNER),
        job_id=first(tags.JOB),
        attempt=tags.attempt_of(first(tags.ATTEMPT)),
        token=first(tags.TOKEN),
        # A machine that was added later expires later, and needs the others until then.
        expires=max(expiries, default=None),
        things=tuple(one.thing for one in group),
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at a target has found."""

    leftovers: list[Leftover]
    missed: Mapping[str, str] = field(default_factory=dict)
    """Where nobody could look ("eu-west-3", "roles") -> why."""


class Collector(Protocol):
    """A cloud's module for it."""

    def find(self, regions: Sequence[str]) -> Found:
        """Of every owner, in these regions (none: all that are enabled). Raises ProvisionError."""

    def remove(self, leftover: Leftover) -> None:
        """All of it; idempotent; returns when nothing bills any more. Raises ProvisionError."""


def find(target: str, owner: Owner, regions: Sequence[str] = ()) -> Found:
    """What a target has with our tags: of every owner in a cloud, of this one elsewhere. Raises ProvisionError."""
    if (collector := _collector(target)) is not None:
        return collector.find(regions)
    return Found([_leftover(allocation, owner) for allocation in get_provisioner(target).find(owner)])


def remove(leftover: Leftover) -> None:
    """Remove all of it; idempotent. Raises ProvisionError."""
    if (collector := _collector(leftover.target)) is not None:
        collector.remove(leftover)
        return
    machines = {thing.detail: thing.id for thing in leftover.things}
    allocation = Allocation(leftover.target, leftover.job_id, leftover.attempt, leftover.token, machines)
    get_provisioner(leftover.target).terminate(allocation)


def _leftover(allocation: Allocation, owner: Owner) -> Leftover:
    things = tuple(Thing("machine", machine, "", node) for node, machine in allocation.machines.items())
    return Leftover(
        allocation.target, owner.name, allocation.job_id, allocation.attempt, allocation.token, None, things
    )


def _collector(target: str) -> Collector | None:
    """Return the target's collector; None: it has machines only."""
    found = target_of(target)
    return cast("Collector", code_of(target, found.collector)) if found is not None and found.collector else None
