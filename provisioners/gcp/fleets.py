"""Queries of Google Cloud for infra stacks; implements the protocol FleetQueries (stacks/fleet_queries.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ...jobspecs.fleets import FleetSpec
from ...jobspecs.secret_references import granted_by, parse
from ..base import ProvisionError
from ..shared.clock import SystemClock
from ..stacks.fleet_queries import Endpoints, Reserved, in_a_zone, nodes_of
from .account import Account
from .catalog import quotas
from .clients import Clients
from .machine.images import Images
from .machine.reservations import find_reservations


def account(_region: str) -> str:
    """Return the project's id."""
    return Account(SystemClock()).project


def image(fleet: FleetSpec) -> str:
    """Return the URL of the newest image for the fleet. Raises ProvisionError(invalid) if the disk is too small."""
    found = Images(Clients()).find(nodes_of(fleet, 1)[0])
    if fleet.disk_gb < found.min_gb:  # a launch would enlarge the disk; a fleet's template uses its disk size as given
        message = (
            f"the image of {fleet.machine_type} does not fit on {fleet.disk_gb:g} GB: write disk: {found.min_gb}GB"
        )
        raise ProvisionError("invalid", message, scope="cloud")
    return found.source


def quota(fleet: FleetSpec, more: int) -> None:
    """Raise ProvisionError(quota) if the project's quota does not allow `more` machines of the fleet."""
    quotas.check(
        Clients().rest,
        region=fleet.region,
        market=fleet.market,
        nodes=nodes_of(fleet, more),
        run_s=fleet.lifetime_s,
    )


def reserved(fleet: FleetSpec) -> Reserved:
    """Return a reservation with capacity for the fleet that does not end its machines. Raises
    ProvisionError(capacity)."""
    clients = Clients()

    def find(zone: str | None) -> Reserved:
        found = find_reservations(clients, fleet.region, zone, nodes_of(fleet, max(fleet.size, 1)))
        paths, named = {one.path for one in found}, {one.path for one in found if one.by_name_only}
        if any(one.ends_machines for one in found) or (named and len(paths) > 1):
            message = (
                f"{len(found)} × {fleet.machine_type} could be in {', '.join(sorted(paths))}, and a cluster can "
                "only be in one reservation that has room for all its machines, and does not end them itself"
            )
            raise ProvisionError("capacity", message, scope="zone")
        return Reserved(found[0].zone, min(named, default=None))

    return in_a_zone(fleet, find)


def reserved_until(_fleet: FleetSpec, _reservation: str) -> None:
    """Return None: reserved() excludes reservations that end their machines."""


def endpoints(_region: str) -> Endpoints:
    """Return the endpoints of Cloud Storage and of the Compute Engine API that tests configure; None: Google's own."""
    clients = Clients()
    return Endpoints(clients.storage_endpoint, clients.account.endpoint or None)


def boundary() -> str:
    """Return "": Google Cloud has no permissions boundary."""
    return ""


def secrets(_region: str, references: Sequence[str]) -> dict[str, str]:
    """Return each secret's full name, `projects/P/secrets/S`."""
    found = {one: parse(one).path for one in map(granted_by, references)}
    if all(path.startswith("projects/") for path in found.values()):
        return found
    project = Clients().project
    return {one: path if "/" in path else f"projects/{project}/secrets/{path}" for one, path in found.items()}
