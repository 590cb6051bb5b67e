"""Queries of a cloud that a stack's Pulumi program cannot make itself: account, image, reservation, remaining quota.

They use the credentials of the user who runs the command, and create nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from ...jobspecs.fleets import FleetSpec
from ...jobspecs.secret_references import scheme_of
from ...jobspecs.targets import info
from ..base import NodeRequest, ProvisionError
from ..target import code_of, target_of


class Reserved(NamedTuple):
    """Reservation for a fleet of the market `reservation`."""

    zone: str | None
    """Zone as offers spell it; None: not in a particular zone."""
    name: str | None
    """Value of FleetSettings.reservation; None: the reservation need not be named."""
    is_block: bool = False
    """Value of FleetSettings.capacity_block."""


class Endpoints(NamedTuple):
    """Endpoints on the loopback that machines use in tests; None: the cloud's real endpoint."""

    store: str | None
    api: str | None


class FleetQueries(Protocol):
    """Protocol of a cloud's module provisioners/<cloud>/fleets.py. Its functions raise ProvisionError."""

    def account(self, region: str, /) -> str: ...
    def image(self, fleet: FleetSpec, /) -> str: ...
    def quota(self, fleet: FleetSpec, more: int, /) -> None: ...
    def reserved(self, fleet: FleetSpec, /) -> Reserved: ...
    def reserved_until(self, fleet: FleetSpec, reservation: str, /) -> float | None: ...
    def endpoints(self, region: str, /) -> Endpoints: ...
    def boundary(self) -> str: ...
    def secrets(self, region: str, references: Sequence[str], /) -> dict[str, str]: ...


def account_of(cloud: str, region: str) -> str:
    """Return the id of the credentials' account (gcp: project, azure: subscription). Raises ProvisionError."""
    return _queries(cloud).account(region)


def boundary_of(cloud: str) -> str:
    """Return the permissions boundary set in this shell's environment for the roles of a stack; "": none."""
    return _queries(cloud).boundary()


def secrets_of(cloud: str, region: str, references: Sequence[str]) -> dict[str, str]:
    """Return the secrets to grant to a stack's machines, as InfraSettings.secrets has them.

    Raises ProvisionError for one that this cloud's machines cannot read, or that is looked up and not found.
    """
    for one in references:
        if scheme_of(one) not in info(cloud).secret_schemes:
            schemes = " or ".join(f"{scheme}://" for scheme in info(cloud).secret_schemes)
            raise ProvisionError(
                "invalid", f"machines of {cloud} cannot read {one}: they read {schemes}", scope="cloud"
            )
    return _queries(cloud).secrets(region, references) if references else {}


def image_of(fleet: FleetSpec) -> str:
    """Return the newest image for the fleet's machines, as FleetSettings.image spells it. Raises ProvisionError."""
    return _queries(fleet.cloud).image(fleet)


def endpoints_of(cloud: str, region: str) -> Endpoints:
    """Return the endpoints that a launch writes into boot records. Raises ProvisionError."""
    return _queries(cloud).endpoints(region)


def reserved_for(fleet: FleetSpec) -> Reserved:
    """Return a reservation in one of the fleet's zones with room for all its machines. Raises
    ProvisionError(capacity)."""
    return _queries(fleet.cloud).reserved(fleet)


def reserved_until(fleet: FleetSpec, reservation: str) -> float | None:
    """Return epoch seconds at which the provider begins to terminate the machines of the fleet's reservation.

    0: the reservation is over. None: its machines are not terminated. Raises ProvisionError."""
    return _queries(fleet.cloud).reserved_until(fleet, reservation)


def check_quota(fleet: FleetSpec, more: int) -> None:
    """Raise ProvisionError(quota) if the quota does not allow `more` machines beside those that run.

    If the provider does not report a quota, the check passes with a warning in the log, and the provider decides.
    """
    if more > 0:
        _queries(fleet.cloud).quota(fleet, more)


def nodes_of(fleet: FleetSpec, number: int) -> list[NodeRequest]:
    """Return `number` node requests for machines of the fleet."""
    return [
        NodeRequest(f"worker-{index}.1", "worker", index, index, fleet.machine_type, fleet.accelerator, fleet.count)
        for index in range(number)
    ]


def in_a_zone(fleet: FleetSpec, find: Callable[[str | None], Reserved]) -> Reserved:
    """Return the best reservation of the region if the fleet allows its zone, else one in an allowed zone.

    `find`: function of a zone (None: any) that raises ProvisionError if there is no reservation."""
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
