"""What a stack's program must be told, and cannot ask a cloud itself: whose account it is, the image, a reservation,
what a quota leaves. Asked with the credentials of whoever runs the command; nothing is created."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

from ...jobspecs.fleets import FleetSpec
from ..base import NodeRequest, ProvisionError


class Reserved(NamedTuple):
    """Where a fleet of market reservation is."""

    zone: str | None
    """As offers spell it; None: in none."""
    name: str | None
    """As FleetSettings.reservation; None: it need not be named."""
    is_block: bool = False
    """As FleetSettings.capacity_block."""


class Endpoints(NamedTuple):
    """What machines are told stands for their cloud: a test's, on this machine; None: the cloud's own."""

    store: str | None
    api: str | None


class _Asking(NamedTuple):
    """One cloud's way to ask."""

    account: Callable[[str], str]
    """Of a region."""
    image: Callable[[FleetSpec], str]
    quota: Callable[[FleetSpec, int], None]
    reserved: Callable[[FleetSpec], Reserved]
    reserved_until: Callable[[FleetSpec, str], float | None]
    """Of a fleet in a reservation with an end."""
    endpoints: Callable[[str], Endpoints]
    """Of a region."""
    boundary: Callable[[], str] = lambda: ""


def account_of(cloud: str, region: str) -> str:
    """aws: the account's id. gcp: the project's. azure: the subscription's. Raises ProvisionError."""
    return _CLOUDS[cloud].account(region)


def boundary_of(cloud: str) -> str:
    """Return the permissions boundary that this shell names for the roles of a stack; "": none."""
    return _CLOUDS[cloud].boundary()


def image_of(fleet: FleetSpec) -> str:
    """The newest image for its machines, as FleetSettings.image spells it. Raises ProvisionError."""
    return _CLOUDS[fleet.cloud].image(fleet)


def endpoints_of(cloud: str, region: str) -> Endpoints:
    """As a launch tells its machines. Raises ProvisionError."""
    return _CLOUDS[cloud].endpoints(region)


def reserved_for(fleet: FleetSpec) -> Reserved:
    """A reservation in one of its zones with room for all its machines. Raises ProvisionError(capacity)."""
    return _CLOUDS[fleet.cloud].reserved(fleet)


def reserved_until(fleet: FleetSpec, reservation: str) -> float | None:
    """Epoch seconds at which the provider begins to end the machines of a reservation that the fleet has been given;
    0: it is over. None: it does not end machines. Raises ProvisionError."""
    return _CLOUDS[fleet.cloud].reserved_until(fleet, reservation)


def check_quota(fleet: FleetSpec, more: int) -> None:
    """Raise ProvisionError(quota) if so many machines more do not fit beside what runs already.

    What a provider does not tell is not held against the fleet: it is said once in the log, and the provider decides.
    """
    if more > 0:
        _CLOUDS[fleet.cloud].quota(fleet, more)


def _nodes(fleet: FleetSpec, number: int) -> list[NodeRequest]:
    return [
        NodeRequest(f"worker-{index}.1", "worker", index, index, fleet.machine_type, fleet.accelerator, fleet.count)
        for index in range(number)
    ]


def _aws_account(region: str) -> str:
    from ..aws.clients import Clients
    from ..aws.errors import translate_errors

    clients = Clients()
    with translate_errors("ask whose account this is", clients.clock):
        return clients.sts(region).get_caller_identity()["Account"]


def _aws_image(fleet: FleetSpec) -> str:
    from ..aws.clients import Clients
    from ..aws.images import Images

    return Images(Clients()).find(fleet.region, fleet.machine_type).ami


def _aws_quota(fleet: FleetSpec, more: int) -> None:
    from ..aws import quotas
    from ..aws.clients import Clients

    clients, types = Clients(), [fleet.machine_type] * more
    ec2, service_quotas = clients.ec2(fleet.region), clients.service_quotas(fleet.region)
    quotas.check(ec2, service_quotas, region=fleet.region, market=fleet.market, machine_types=types)


def _aws_reserved(fleet: FleetSpec) -> Reserved:
    from ..aws.clients import Clients
    from ..aws.errors import translate_errors
    from ..aws.reservations import find_reservation

    clients = Clients()

    def find(zone: str | None) -> Reserved:
        with translate_errors(f"look for reservations in {zone or fleet.region}", clients.clock):
            ec2 = clients.ec2(fleet.region)
            found, there = find_reservation(ec2, fleet.machine_type, zone, max(fleet.size, 1), clients.clock)
        return Reserved(there, found.reservation, found.is_block)

    return _in_a_zone(fleet, find)


def _aws_reserved_until(fleet: FleetSpec, reservation: str) -> float | None:
    from ..aws.clients import Clients
    from ..aws.errors import translate_errors
    from ..aws.reservations import look_again

    clients = Clients()
    with translate_errors(f"look for the reservation {reservation}", clients.clock):
        found = look_again(clients.ec2(fleet.region), fleet.machine_type, reservation)
    return 0.0 if found is None else found.machines_end


def _in_a_zone(fleet: FleetSpec, find: Callable[[str | None], Reserved]) -> Reserved:
    """The best of the region, if the fleet may be there; else one in a zone where it may. Raises ProvisionError."""
    found = find(None)
    if not fleet.zones or found.zone in fleet.zones:
        return found
    *others, last = fleet.zones
    for zone in others:
        with contextlib.suppress(ProvisionError):
            return find(zone)
    return find(last)


def _aws_endpoints(region: str) -> Endpoints:
    from ..aws.clients import Clients

    url = Clients().endpoint(region)
    return Endpoints(url, url)


def _aws_boundary() -> str:
    from ..aws.identity import BOUNDARY_VARIABLE

    return os.environ.get(BOUNDARY_VARIABLE, "").strip()


def _gcp_account(_region: str) -> str:
    from ..gcp.account import Account
    from ..shared.clock import SystemClock

    return Account(SystemClock()).project


def _gcp_image(fleet: FleetSpec) -> str:
    from ..gcp.clients import Clients
    from ..gcp.images import Images

    image = Images(Clients()).find(_nodes(fleet, 1)[0])
    if fleet.disk_gb < image.min_gb:  # a launch takes the larger one; a template is what the fleet says
        message = (
            f"the image of {fleet.machine_type} does not fit on {fleet.disk_gb:g} GB: write disk: {image.min_gb}GB"
        )
        raise ProvisionError("invalid", message, scope="cloud")
    return image.source


def _gcp_quota(fleet: FleetSpec, more: int) -> None:
    from ..gcp import quotas
    from ..gcp.clients import Clients

    quotas.check(
        Clients().rest,
        region=fleet.region,
        market=fleet.market,
        nodes=_nodes(fleet, more),
        run_s=fleet.lifetime_s,
    )


def _gcp_reserved(fleet: FleetSpec) -> Reserved:
    from ..gcp.clients import Clients
    from ..gcp.reservations import find_reservations

    clients = Clients()

    def find(zone: str | None) -> Reserved:
        found = find_reservations(clients, fleet.region, zone, _nodes(fleet, max(fleet.size, 1)))
        paths, named = {one.path for one in found}, {one.path for one in found if one.by_name_only}
        if any(one.ends_machines for one in found) or (named and len(paths) > 1):
            message = (
                f"{len(found)} × {fleet.machine_type} could be in {', '.join(sorted(paths))}, and a cluster can "
                "only be in one reservation that has room for all its machines, and does not end them itself"
            )
            raise ProvisionError("capacity", message, scope="zone")
        return Reserved(found[0].zone, min(named, default=None))

    return _in_a_zone(fleet, find)


def _gcp_endpoints(_region: str) -> Endpoints:
    from ..gcp.clients import Clients

    clients = Clients()
    return Endpoints(clients.storage_endpoint, clients.account.endpoint or None)


def _azure_account(_region: str) -> str:
    from ..azure.account import Account
    from ..shared.clock import SystemClock

    return Account(SystemClock()).subscription


def _azure_image(fleet: FleetSpec) -> str:
    from ..azure.clients import Clients
    from ..azure.images import Images

    image = Images(Clients()).find(fleet.region, _nodes(fleet, 1)[0])
    return ":".join((*image.urn, image.version))


def _azure_quota(fleet: FleetSpec, more: int) -> None:
    from ..azure import quotas
    from ..azure.clients import Clients

    types = [fleet.machine_type] * more
    quotas.check(Clients(), region=fleet.region, market=fleet.market, machine_types=types)


def _azure_reserved(fleet: FleetSpec) -> Reserved:
    from ..azure.clients import Clients
    from ..azure.reservations import find_reservations

    types = [fleet.machine_type] * max(fleet.size, 1)
    found = find_reservations(Clients(), fleet.region, fleet.zones, types)
    return Reserved(found.zone, found.groups[fleet.machine_type])


def _azure_endpoints(_region: str) -> Endpoints:
    from ..azure.account import Account
    from ..azure.launching import endpoints
    from ..shared.clock import SystemClock

    return Endpoints(*endpoints(Account(SystemClock())))


def _never(_fleet: FleetSpec, _reservation: str) -> None:
    """Compute Engine: _gcp_reserved() takes none that ends machines. Azure: none is known to."""


_CLOUDS = {
    "aws": _Asking(
        *(_aws_account, _aws_image, _aws_quota, _aws_reserved, _aws_reserved_until, _aws_endpoints), _aws_boundary
    ),
    "gcp": _Asking(_gcp_account, _gcp_image, _gcp_quota, _gcp_reserved, _never, _gcp_endpoints),
    "azure": _Asking(_azure_account, _azure_image, _azure_quota, _azure_reserved, _never, _azure_endpoints),
}

__all__ = [
    "Endpoints",
    "ProvisionError",
    "Reserved",
    "account_of",
    "boundary_of",
    "check_quota",
    "endpoints_of",
    "image_of",
    "reserved_for",
    "reserved_until",
]
