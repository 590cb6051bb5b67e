"""Queries of AWS for infra stacks; implements the protocol FleetQueries (stacks/fleet_queries.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...jobspecs.fleets import FleetSpec
from ...jobspecs.secret_references import grants
from ..stacks.fleet_queries import Endpoints, Reserved, in_a_zone
from .catalog import quotas
from .clients import Clients
from .errors import translate_errors
from .machine.images import Images
from .machine.reservations import find_reservation, get_reservation
from .resources.identity import BOUNDARY_VARIABLE


def account(region: str) -> str:
    """Return the AWS account's id."""
    clients = Clients()
    with translate_errors("ask whose account this is", clients.clock):
        return clients.sts(region).get_caller_identity()["Account"]


def image(fleet: FleetSpec) -> str:
    """Return the id of the AMI for the fleet's region and machine type."""
    return Images(Clients()).find(fleet.region, fleet.machine_type).ami


def quota(fleet: FleetSpec, more: int) -> None:
    """Raise ProvisionError(quota) if `more` additional machines would exceed the region's quota."""
    clients, types = Clients(), [fleet.machine_type] * more
    ec2, service_quotas = clients.ec2(fleet.region), clients.service_quotas(fleet.region)
    quotas.check(ec2, service_quotas, region=fleet.region, market=fleet.market, machine_types=types)


def reserved(fleet: FleetSpec) -> Reserved:
    """Return an On-Demand Capacity Reservation or Capacity Block with room for the fleet."""
    clients = Clients()

    def find(zone: str | None) -> Reserved:
        with translate_errors(f"look for reservations in {zone or fleet.region}", clients.clock):
            ec2 = clients.ec2(fleet.region)
            found, there = find_reservation(ec2, fleet.machine_type, zone, max(fleet.size, 1), clients.clock)
        return Reserved(there, found.reservation, found.is_block)

    return in_a_zone(fleet, find)


def reserved_until(fleet: FleetSpec, reservation: str) -> float | None:
    """Return the epoch seconds at which EC2 begins to terminate a Capacity Block's machines.

    None: the reservation is not a block; 0.0: it is not active any more."""
    clients = Clients()
    with translate_errors(f"look for the reservation {reservation}", clients.clock):
        found = get_reservation(clients.ec2(fleet.region), fleet.machine_type, reservation)
    return 0.0 if found is None else found.machines_end


def endpoints(region: str) -> Endpoints:
    """Return the loopback endpoint of this process's clients, if any, for both object store and API."""
    url = Clients().endpoint(region)
    return Endpoints(url, url)


def boundary() -> str:
    """Return the ARN of the permissions boundary set in the environment; "": none."""
    return os.environ.get(BOUNDARY_VARIABLE, "").strip()


def secrets(_region: str, references: Sequence[str]) -> dict[str, str]:
    """Return each secret's reference, with the key for decryption that it may name."""
    return {one: one for one in grants(references)}
