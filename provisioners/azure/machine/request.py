"""Request body in wire format that creates a virtual machine. Pure functions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...base import LaunchRequest, NodeRequest, ProvisionError
from ...boot import user_data
from ...shared import tags
from ...shared.boot_record import build_boot_data, check_agent
from ..catalog.sizes import Size, architecture_of
from ..names import node_name
from . import vm_profile
from .images import Image

MARKETS = frozenset({"on-demand", "spot", "reservation"})
DISK_SUFFIX = "disk"


@dataclass(frozen=True, slots=True)
class Place:
    """Zone and shared resources of a launch's machines."""

    zone: str | None
    """`1`, `2`, `3`; None: Azure chooses in the region."""
    identity: str
    """Resource id of the managed identity."""
    client_id: str
    """Client id of the managed identity, with which a machine requests tokens."""
    availability_set: str | None = None
    """Resource ids of the availability set and of the proximity placement group."""
    proximity_group: str | None = None
    reservations: Mapping[str, str] = field(default_factory=dict)
    """Machine type -> resource id of its capacity reservation group; empty in other markets."""
    endpoint: str | None = None
    """Endpoint of Blob Storage on the loopback, for tests; None: Azure's."""
    api_endpoint: str | None = None
    """Endpoint of Azure Resource Manager on the loopback, for tests; None: Azure's."""


def machine(request: LaunchRequest, node: NodeRequest, place: Place, image: Image, interface: str) -> dict[str, Any]:
    """Return the body that creates one virtual machine. Raises ProvisionError for an invalid request.

    A launch creates single machines instead of a scale set, since custom data and tags differ between nodes. The name
    of each node's machine identifies it after a lost response.
    """
    name = node_name(node.node)
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": node.machine_type},
        "storageProfile": {
            "imageReference": vm_profile.image_reference(image),
            # The zone is part of the disk's name: the disk of a machine refused in another zone may still exist.
            "osDisk": {
                "name": f"{name}-{DISK_SUFFIX}-{place.zone or 'any'}",
                **vm_profile.disk(image, request.disk_gb),
            },
        },
        "osProfile": {
            "computerName": name,
            **vm_profile.system(request.token, base64.b64encode(_boot(request, node, place)).decode()),
        },
        "networkProfile": {
            "networkInterfaces": [{"id": interface, "properties": {"primary": True, "deleteOption": "Delete"}}]
        },
        "diagnosticsProfile": vm_profile.diagnostics(),
        **vm_profile.security(),
        **vm_profile.market(request.market),
    }
    if place.availability_set is not None:
        properties["availabilitySet"] = {"id": place.availability_set}
    if place.proximity_group is not None:
        properties["proximityPlacementGroup"] = {"id": place.proximity_group}
    if node.machine_type in place.reservations:
        properties |= vm_profile.reserved(place.reservations[node.machine_type])
    body: dict[str, Any] = {
        "location": request.region,
        "tags": tags.node_tags(request, node),
        "identity": vm_profile.identity(place.identity),
        "properties": properties,
    }
    return body if place.zone is None else {**body, "zones": [place.zone]}


def check_request(request: LaunchRequest) -> None:
    """Raise ProvisionError if Azure does not have the market, or the agent file does not fit the machines."""
    if request.market not in MARKETS:
        raise ProvisionError("invalid", f"the target azure has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: architecture_of(node.machine_type))


def zones_for(sizes: Sequence[Size], zone: str | None, region: str) -> list[str | None]:
    """Return the zones to try, in order: those that offer all of these sizes; [None]: the region has no zones for them.

    Raises ProvisionError(not_offered) if they have no zone in common, or do not include the requested zone.
    """
    common = set[str].intersection(*(set(size.zones) for size in sizes)) if sizes else set[str]()
    if zone is not None:
        if zone in common:
            return [zone]
        there = f", only {', '.join(sorted(common))}" if common else ""
        message = f"zone {zone} of {region} does not have these machines{there}; leave out the zone, or choose another"
        raise ProvisionError("not_offered", message, scope="zone", code="SkuNotAvailable")
    if common:
        return list[str | None](sorted(common))
    if any(size.zones for size in sizes):
        message = f"{region} has no zone with all of these machine types; choose one for all, or another region"
        raise ProvisionError("not_offered", message, scope="region", code="SkuNotAvailable")
    return [None]


# --- parts ------------------------------------------------------------------------------------------------------------


def _boot(request: LaunchRequest, node: NodeRequest, place: Place) -> bytes:
    return build_boot_data(
        request,
        node.node,
        "azure",
        user_data,
        lifetime_s=request.lifetime_s,
        endpoint=place.endpoint,
        api_endpoint=place.api_endpoint,
        identity=place.client_id,
    )


# --- resources shared by a launch's machines
# ------------------------------------------------------------------------------


def with_tags(request: LaunchRequest, properties: Mapping[str, object] | None = None, **more: Any) -> dict[str, Any]:
    """Return the request body of a resource, with the launch's region and tags. `more`: other top-level fields."""
    body: dict[str, Any] = {"location": request.region, "tags": tags.launch_tags(request), **more}
    return body if properties is None else {**body, "properties": dict(properties)}
