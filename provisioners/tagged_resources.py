"""Find and delete a target's resources by cloudgpu's tags alone: for `cloudgpu gc`, which needs no job records.

A launch creates more than machines: disks, interfaces, security groups, roles ... All resources of one launch are one
Leftover. Which of them may be deleted is decided in control/gc_policy.py.
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
class Resource:
    """One cloud resource."""

    kind: str
    """Kind of resource for the user, e.g. "instance", "volume", "role"."""
    id: str
    region: str
    """Region; "": the resource belongs to none."""
    detail: str = ""
    """Description for the user, e.g. "g4dn.xlarge spot, running"."""
    price: Decimal | None = Decimal(0)
    """Price in US dollars an hour by the tables; None: unknown."""
    created: float | None = None
    """Creation time in epoch seconds; None: unknown."""

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
    """Resources of one launch that were found by their tags."""

    target: str
    owner: str
    """Value of Owner.name."""
    job_id: str
    """Job id; "": the tag is missing. `attempt` is 0 if its tag is missing."""
    attempt: int
    token: str
    expires: float | None
    """Epoch seconds after which any user may delete it; None: never."""
    things: tuple[Resource, ...]

    @property
    def price(self) -> Decimal | None:
        """Return the total price in US dollars an hour; None if the price of any resource is unknown."""
        prices = [thing.price for thing in self.things]
        return None if None in prices else sum((price for price in prices if price is not None), Decimal(0))

    @property
    def created(self) -> float | None:
        """Return the creation time of the oldest resource."""
        return min((thing.created for thing in self.things if thing.created is not None), default=None)

    @property
    def regions(self) -> list[str]:
        return sorted({thing.region for thing in self.things if thing.region})


class Tagged(NamedTuple):
    """A resource with its tags, which users may have changed."""

    thing: Resource
    tags: Mapping[str, str]


def group_by_launch(target: str, found: Iterable[Tagged]) -> list[Leftover]:
    """Group resources by launch token; a resource without a token is a Leftover by itself.

    Resources of a stack are left out: the stack deletes them (`cloudgpu infra down`, `cloudgpu cluster down`), and an
    instance group of the stack would replace machines that gc terminates. Those that are billed are logged, since a
    stack may have been forgotten.
    """
    groups: dict[str, list[Tagged]] = {}
    of_stacks: dict[str, list[Resource]] = {}
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
        # Machines added later expire later, and need the other resources until then.
        expires=max(expiries, default=None),
        things=tuple(one.thing for one in group),
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """Result of find()."""

    leftovers: list[Leftover]
    failed: Mapping[str, str] = field(default_factory=dict)
    """Region or resource kind that could not be listed ("eu-west-3", "roles") -> reason."""


class Collector(Protocol):
    """Protocol of a cloud's module that finds and deletes tagged resources."""

    def find(self, regions: Sequence[str]) -> Listing:
        """Return the resources of every owner in these regions (none: all enabled regions). Raises ProvisionError."""

    def remove(self, leftover: Leftover) -> None:
        """Delete all resources of a leftover. Idempotent; returns when nothing is billed any more. Raises
        ProvisionError."""


def find(target: str, owner: Owner, regions: Sequence[str] = ()) -> Listing:
    """Return a target's resources tagged by cloudgpu: of every owner if it has a collector, otherwise of `owner` only.
    Raises ProvisionError."""
    if (collector := _collector(target)) is not None:
        return collector.find(regions)
    return Listing([_leftover(allocation, owner) for allocation in get_provisioner(target).find(owner)])


def remove(leftover: Leftover) -> None:
    """Delete all resources of a leftover. Idempotent. Raises ProvisionError."""
    if (collector := _collector(leftover.target)) is not None:
        collector.remove(leftover)
        return
    machines = {thing.detail: thing.id for thing in leftover.things}
    allocation = Allocation(leftover.target, leftover.job_id, leftover.attempt, leftover.token, machines)
    get_provisioner(leftover.target).terminate(allocation)


def _leftover(allocation: Allocation, owner: Owner) -> Leftover:
    things = tuple(Resource("machine", machine, "", node) for node, machine in allocation.machines.items())
    return Leftover(
        allocation.target, owner.name, allocation.job_id, allocation.attempt, allocation.token, None, things
    )


def _collector(target: str) -> Collector | None:
    """Return the target's collector; None: its only resources are machines."""
    found = target_of(target)
    return cast("Collector", code_of(target, found.collector)) if found is not None and found.collector else None
