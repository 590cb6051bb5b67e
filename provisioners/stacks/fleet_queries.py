"""Query a cloud for what a stack's program cannot ask itself: the account, the image, a reservation,
what a quota leaves. Asked with the credentials of whoever runs the command; nothing is created."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from ...jobspecs.fleets import FleetSpec
from ..base import NodeRequest, ProvisionError
from ..target import code_of, target_of


class Reserved(NamedTuple):
    """The reservation of a fleet of market reservation."""

    zone: str | None
    """Zone as offers spell it; None: in none."""
    name: str | None
    """Its name, as FleetSettings.reservation; None: it need not be named."""
    is_block: bool = False
    """The value of FleetSettings.capacity_block."""


class Endpoints(NamedTuple):
    """Endpoint that machines use instead of the cloud's, on this machine (tests only); None: the cloud's own."""

    store: str | None
    api: str | None


class FleetQueries(Protocol):
    """A cloud's module for it: provisioners/<cloud>/fleets.py. Each function raises ProvisionError."""

    def account(self, region: str, /) -> str: ...
    def image(self, fleet: FleetSpec, /) -> str: ...
    def quota(self, fleet: FleetSpec, more: int, /) -> None: ...
    def reserved(self, fleet: FleetSpec, /) -> Reserved: ...
    def reserved_until(self, fleet: FleetSpec, reservation: str, /) -> float | None: ...
    def endpoints(self, region: str, /) -> Endpoints: ...
    def boundary(self) -> str: ...


def account_of(cloud: str, region: str) -> str:
    """aws: the account's id. gcp: the project's. azure: the subscription's. Raises ProvisionError."""
    return _queries(cloud).account(region)


def boundary_of(cloud: str) -> str:
    """Return the permissions boundary that this shell names for the roles of a stack; "": none."""
    return _queries(cloud).boundary()


def image_of(fleet: FleetSpec) -> str:
    """The newest image for its machines, as FleetSettings.image spells it. Raises ProvisionError."""
    return _queries(fleet.cloud).image(fleet)


def endpoints_of(cloud: str, region: str) -> Endpoints:
    """Return the endpoints that a launch writes into boot records. Raises ProvisionError."""
    return _queries(cloud).endpoints(region)


def reserved_for(fleet: FleetSpec) -> Reserved:
    """A reservation in one of its zones with room for all its machines. Raises ProvisionError(capacity)."""
    return _queries(fleet.cloud).reserved(fleet)


def reserved_until(fleet: FleetSpec, reservation: str) -> float | None:
    """Epoch seconds at which the provider begins to end the machines of a reservation that the fleet has been given;
    0: it is over. None: it does not end machines. Raises ProvisionError."""
    return _queries(fleet.cloud).reserved_until(fleet, reservation)


def check_quota(fleet: FleetSpec, more: int) -> None:
    """Raise ProvisionError(quota) if so many machines more do not fit beside what runs already.

    What a provider does not tell is not held against the fleet: it is said once in the log, and the provider decides.
    """
    if more > 0:
        _queries(fleet.cloud).quota(fleet, more)


def nodes_of(fleet: FleetSpec, number: int) -> list[NodeRequest]:
    """Return requests for that number of the fleet's machines."""
    return [
        NodeRequest(f"worker-{index}.1", "worker", index, index, fleet.machine_type, fleet.accelerator, fleet.count)
        for index in range(number)
    ]


def in_a_zone(fleet: FleetSpec, find: Callable[[str | None], Reserved]) -> Reserved:
    """The best of the region, if the fleet may be there; else one in a zone where it may. Raises ProvisionError."""
    found = find(None)
    if not fleet.zones or found.zone in fleet.zones:
        return found
    *others, last = fleet.zones
    for zone in others:
        with contextlib.suppress(ProvisionError):
            return find(zone)
    return find(last)


def _queries(cloud: str) -> FleetQueries:
    found = target_of(cloud)
    if found is None or not found.fleets:
        raise ProvisionError("invalid", f"{cloud} has no fleets", scope="cloud")
    return cast("FleetQueries", code_of(cloud, found.fleets))
