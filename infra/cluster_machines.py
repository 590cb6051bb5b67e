"""Settings of a cluster's machines: newest image, agent, reservation, and the fleet folder with their orders."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..jobspecs.fleets import FleetSpec
    from ..provisioners.shared.infra_outputs import Infrastructure
    from .settings import FleetSettings


_KIND = ("cloud", "region", "market", "machine_type", "accelerator", "gpus")
"""Fields of a fleet that decide the kind of its machines."""


def are_alike(one: FleetSpec, other: FleetSpec) -> bool:
    """Return True if the machines of two fleets are of the same kind."""
    return all(getattr(one, key) == getattr(other, key) for key in _KIND)


def is_reserved_elsewhere(fleet: FleetSpec, before: FleetSettings) -> bool:
    """Return True if the fleet needs another reservation: the current one is for other machines, or has ended. Raises
    ProvisionError."""
    if fleet.market != "reservation":
        return False
    is_fit = are_alike(fleet, before.fleet) and fleet.zones == before.fleet.zones
    until = _reserved_until(before) if is_fit and fleet.size > 0 else None
    return not is_fit or (until is not None and until <= time.time())


def ending_with_reservation(settings: FleetSettings) -> FleetSettings:
    """Return settings that expire no later than the provider starts to terminate the reservation's machines.

    The end of a Capacity Block is queried on every call, since a block can be extended. Raises ProvisionError.
    """
    until = _reserved_until(settings) if settings.fleet.size else None
    if until is None or (settings.expires is not None and settings.expires <= until):
        return settings
    return dataclasses.replace(settings, expires=until)


def _reserved_until(settings: FleetSettings) -> float | None:
    from ..provisioners.stacks.fleet_queries import reserved_until

    if settings.fleet.market != "reservation" or settings.reservation is None:
        return None
    return reserved_until(settings.fleet, settings.reservation)


def settings_for(
    stack: str, fleet: FleetSpec, stands_in: Infrastructure, before: FleetSettings | None = None
) -> FleetSettings:
    """Return settings with the newest image and agent; no resource is created. Raises InfraError, ProvisionError.

    With market reservation: the fleet keeps the reservation in `before`, as its machines occupy the capacity.
    Without `before` it gets a reservation with capacity for all its machines.
    """
    from ..control.submit.submission import owner_name
    from ..protocol.jobdir import agent_key
    from ..provisioners import AgentFile, architecture_of
    from ..provisioners.boot import fleet_boot
    from ..provisioners.boot.agent_file import AgentFileError, build_agent_file
    from ..provisioners.stacks.fleet_queries import Reserved, account_of, endpoints_of, image_of, reserved_for
    from .errors import InfraError
    from .settings import FleetSettings

    reserved = Reserved(None, None)
    if fleet.market == "reservation":
        if before is not None:
            reserved = Reserved(None, before.reservation, before.capacity_block)
        else:
            reserved = reserved_for(fleet)
            fleet = fleet.model_copy(update={"zones": () if reserved.zone is None else (reserved.zone,)})
    fleet_dir = f"{stands_in.job_dir.rstrip('/')}/fleets/{fleet.name}"
    account, image = account_of(fleet.cloud, fleet.region), image_of(fleet)
    try:
        built = build_agent_file(architecture_of(fleet.cloud, fleet.machine_type) or "x86_64")
        agent = AgentFile(agent_key(built.sha256), built.sha256, built.architecture)
        store, api = endpoints_of(fleet.cloud, fleet.region)
        identity = stands_in.machine_role_id or None
        user_data = fleet_boot(fleet, fleet_dir, agent, identity=identity, endpoint=store, api_endpoint=api)
    except (AgentFileError, ValueError) as error:
        raise InfraError(f"no machine could start from {fleet_dir}: {error}") from error
    return FleetSettings(
        stack=stack,
        owner=owner_name(),
        fleet=fleet,
        infrastructure=stands_in,
        user_data=user_data,
        image=image,
        fleet_dir=fleet_dir,
        account=account,
        reservation=reserved.name,
        capacity_block=reserved.is_block,
    )


def put_files(settings: FleetSettings, *, agent: bool) -> None:
    """Write the files in the fleet's folder: the settings, which running machines read too, and with `agent` the agent
    that the settings name. Raises JobDirError."""
    from ..provisioners.cluster.files import put_agent, put_settings

    if agent:
        put_agent(settings.fleet, settings.fleet_dir)
    put_settings(settings.fleet, settings.fleet_dir, settings.expires)
