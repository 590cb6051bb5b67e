"""Queries of Azure for infra stacks; implements the protocol FleetQueries (stacks/fleet_queries.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ...jobspecs.fleets import FleetSpec
from ...jobspecs.secret_references import granted_by
from ..shared.clock import SystemClock
from ..stacks.fleet_queries import Endpoints, Reserved, nodes_of
from .account import Account
from .catalog import quotas
from .clients import Clients
from .lifecycle import launching
from .machine.images import Images
from .machine.reservations import find_reservations
from .resources.vaults import find_secrets


def account(_region: str) -> str:
    """Return the subscription's id."""
    return Account(SystemClock()).subscription


def image(fleet: FleetSpec) -> str:
    """Return the URN of the newest image for the fleet's region and machine type."""
    found = Images(Clients()).find(fleet.region, nodes_of(fleet, 1)[0])
    return ":".join((*found.urn, found.version))


def quota(fleet: FleetSpec, more: int) -> None:
    """Raise ProvisionError(quota) if `more` additional machines would exceed the region's quota."""
    types = [fleet.machine_type] * more
    quotas.check(Clients(), region=fleet.region, market=fleet.market, machine_types=types)


def reserved(fleet: FleetSpec) -> Reserved:
    """Return a capacity reservation group with capacity for the fleet."""
    types = [fleet.machine_type] * max(fleet.size, 1)
    found = find_reservations(Clients(), fleet.region, fleet.zones, types)
    return Reserved(found.zone, found.groups[fleet.machine_type])


def reserved_until(_fleet: FleetSpec, _reservation: str) -> None:
    """Return None: Azure does not terminate machines when their reservation ends, as far as is known."""


def endpoints(_region: str) -> Endpoints:
    """Return the loopback endpoints of Blob Storage and Azure Resource Manager that tests configure."""
    return Endpoints(*launching.endpoints(Account(SystemClock())))


def boundary() -> str:
    """Return "": Azure has no permissions boundary."""
    return ""


def secrets(_region: str, references: Sequence[str]) -> dict[str, str]:
    """Return each secret's resource id, on which a role can be assigned."""
    clients = Clients()
    found = {one: find_secrets(clients, [one])[0] for one in map(granted_by, references)}
    return {one: secret.scope(clients.subscription) for one, secret in found.items()}
