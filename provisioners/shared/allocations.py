"""Build Allocation objects, from a launch or from the tags of the resources it created."""

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
    """Protocol of a successful launch."""

    @property
    def request(self) -> LaunchRequest: ...

    @property
    def machines(self) -> Mapping[str, str]:
        """Node -> machine id, for at least the nodes of the request."""

    @property
    def started(self) -> Sequence[str]:
        """Nodes whose machines this call started; the machines of other nodes already existed."""

    @property
    def zone(self) -> str | None: ...

    @property
    def is_fresh(self) -> bool: ...


def of_request(
    target: str, request: LaunchRequest, machines: Mapping[str, str], details: dict[str, str], account: str = ""
) -> Allocation:
    """Return the allocation of a request. `machines`: node -> machine id, for at least the nodes of the request."""
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
    """Return the allocation of a launch that succeeded at `now`, in epoch seconds."""
    return replace(
        of_request(target, launch.request, launch.machines, details or {}, account),
        zone=launch.zone or "",
        launched_at=dict.fromkeys(launch.started, now),
        is_fresh=launch.is_fresh,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A launch that was found by its tags."""

    token: str
    tags: Mapping[str, str]
    """Tags of the launch's resources; users may have changed them."""
    machines: Mapping[str, str]
    region: str
    zone: str = ""


def of_found(target: str, owner: Owner, found: Found) -> Allocation:
    """Return the allocation of a launch that was found by its tags."""
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
    """Call `find` for each region, in parallel, and return all allocations.

    Regions that the account may not use are left out with a warning. Raises ProvisionError if it may use none, or if
    a region fails for another reason: its allocations would be missing.
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
