"""The allocation of a launch, from the launch itself or from the tags of what it made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from ..base import Allocation, LaunchRequest, Owner, ProvisionError
from . import tags

log = logging.getLogger("cloudgpu.provisioners")

_REGIONS_AT_ONCE = 8


class Launched(Protocol):
    """A launch that has succeeded."""

    @property
    def request(self) -> LaunchRequest: ...

    @property
    def machines(self) -> Mapping[str, str]:
        """node -> machine, of the request's nodes at least."""

    @property
    def started(self) -> Sequence[str]:
        """Nodes whose machines this launch has started; it found the others there."""

    @property
    def zone(self) -> str | None: ...

    @property
    def is_fresh(self) -> bool: ...


def of_request(
    target: str, request: LaunchRequest, machines: Mapping[str, str], details: dict[str, str], account: str = ""
) -> Allocation:
    """Return the allocation of a request whose nodes have these machines."""
    return Allocation(
        target,
        request.job_id,
        request.attempt,
        request.token,
        {node.node: machines[node.node] for node in request.nodes},
        region=request.region,
        owner=request.owner.name,
        account=account,
        details=details,
    )


def of_launch(
    target: str, launch: Launched, account: str, now: float, details: dict[str, str] | None = None
) -> Allocation:
    """Return the allocation of a launch that has succeeded at `now`, in epoch seconds."""
    return replace(
        of_request(target, launch.request, launch.machines, details or {}, account),
        zone=launch.zone or "",
        launched_at=dict.fromkeys(launch.started, now),
        is_fresh=launch.is_fresh,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A launch as it was found."""

    token: str
    tags: Mapping[str, str]
    """Tags of what the launch made; anyone may have changed them."""
    machines: Mapping[str, str]
    region: str
    zone: str = ""


def of_found(target: str, owner: Owner, found: Found) -> Allocation:
    """Return the allocation of a launch of which only what it made is known."""
    return Allocation(
        target,
        found.tags.get(tags.JOB, ""),
        tags.attempt_of(found.tags.get(tags.ATTEMPT, "")),
        found.token,
        dict(found.machines),
        region=found.region,
        zone=found.zone,
        owner=owner.name,
    )


def in_regions(
    regions: Sequence[str], find: Callable[[str], list[Allocation]], is_denied: Callable[[ProvisionError], bool]
) -> list[Allocation]:
    """Return what `find` finds in each region.

    Regions that are denied to the account are left out with a warning. Raises ProvisionError if all are, or if another
    region does not answer: what is there is unknown then.
    """
    found: list[Allocation] = []
    denied: list[ProvisionError] = []
    with ThreadPoolExecutor(_REGIONS_AT_ONCE, "cloudgpu-find") as pool:
        looks = [pool.submit(find, region) for region in regions]
    for look in looks:
        try:
            found += look.result()
        except ProvisionError as error:
            if not is_denied(error):
                raise
            denied.append(error)
    if len(denied) == len(regions):
        raise denied[0]
    for refusal in denied:
        log.warning("left out: %s", refusal)
    return found
