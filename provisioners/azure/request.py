"""From what is asked for to the body that makes a machine, in wire format. Pure: it is what tests look at."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import tags
from ..base import LaunchRequest, NodeRequest, ProvisionError
from ..boot import user_data
from ..booting import check_agent, told_at_boot
from .images import Image
from .names import node_name
from .sizes import Size, architecture_of

MARKETS = frozenset({"on-demand", "spot"})
DISK_SUFFIX = "disk"
_ADMIN = "cloudgpu"
_SMALLEST_GB = 64
"""Of the disk: the HPC image fills some 57 GB (a public report of 7 GB left of 64)."""


@dataclass(frozen=True, slots=True)
class Place:
    """What was found, and made, for a launch before its machines."""

    zone: str | None
    """`1`, `2`, `3`; None: Azure chooses in the region."""
    identity: str
    """Resource id of the managed identity."""
    client_id: str
    """Of the same: how a machine asks for its token."""
    availability_set: str | None = None
    """Resource ids."""
    proximity_group: str | None = None
    endpoint: str | None = None
    """Of Blob Storage, as the machines reach it: a test's, on this machine. None: Azure's own."""
    api_endpoint: str | None = None
    """Likewise of Azure Resource Manager."""


def machine(  # noqa: PLR0917 - what was found for it, one by one
    request: LaunchRequest, node: NodeRequest, place: Place, size: Size, image: Image, interface: str
) -> dict[str, Any]:
    """The body that makes one virtual machine. Raises ProvisionError for what no machine can be started with.

    A machine each, and not a scale set: machines differ in custom data and tags by their node, and a name for each
    tells after a lost answer which machines there are.
    """
    name = node_name(node.node)
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": node.machine_type},
        "storageProfile": {
            "imageReference": {**image.urn._asdict(), "version": image.version},
            "osDisk": _disk(request, place, size, image, name),
        },
        "osProfile": _system(request, node, place, name),
        "networkProfile": {
            "networkInterfaces": [{"id": interface, "properties": {"primary": True, "deleteOption": "Delete"}}]
        },
        # What the machine writes on its console is kept by Azure, without a storage account of ours.
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
    }
    if request.market == "spot":
        # Without a maximum price: it is never more than the on-demand price, and a low one only gets less.
        properties |= {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
    if place.availability_set is not None:
        properties["availabilitySet"] = {"id": place.availability_set}
    if place.proximity_group is not None:
        properties["proximityPlacementGroup"] = {"id": place.proximity_group}
    body: dict[str, Any] = {
        "location": request.region,
        "tags": tags.node_tags(request, node),
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {place.identity: {}}},
        "properties": properties,
    }
    return body if place.zone is None else {**body, "zones": [place.zone]}


def check_request(request: LaunchRequest) -> None:
    """Raises ProvisionError for a market that is not there, and for an agent that does not fit the machines."""
    if request.market not in MARKETS:
        raise ProvisionError("invalid", f"the target azure has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: architecture_of(node.machine_type))


def zones_for(sizes: Sequence[Size], zone: str | None, region: str) -> list[str | None]:
    """Zones to try, in this order: those in which all of these sizes can be had; [None]: the region has none for them.

    Raises ProvisionError(not_offered) if they have none in common, or not the one that is asked for.
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


def _disk(request: LaunchRequest, place: Place, size: Size, image: Image, name: str) -> dict[str, Any]:
    """The one disk: encrypted, as every disk there is, and gone with the machine. Another one in another zone: the
    disk of a machine that could not be had there may go later than the machine."""
    return {
        "name": f"{name}-{DISK_SUFFIX}-{place.zone or 'any'}",
        "osType": "Linux",
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": max(math.ceil(request.disk_gb), image.min_gb, _SMALLEST_GB),
        "managedDisk": {"storageAccountType": "Premium_LRS" if size.premium else "StandardSSD_LRS"},
    }


def _system(request: LaunchRequest, node: NodeRequest, place: Place, name: str) -> dict[str, Any]:
    """Nobody is meant to log in. Azure wants a key or a password: it gets a key that nobody has."""
    key = {"path": f"/home/{_ADMIN}/.ssh/authorized_keys", "keyData": nobodys_key(request.token)}
    return {
        "computerName": name,
        "adminUsername": _ADMIN,
        "customData": base64.b64encode(_boot(request, node, place)).decode(),
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


def nobodys_key(token: str) -> str:
    """An Ed25519 public key whose private key nobody knows, for it was never made: the bytes of a hash.

    The same for the same launch, for a repeated call must ask for the same machine.
    """
    point = hashlib.sha256(f"cloudgpu: a key without its other half: {token}".encode()).digest()
    kind = b"ssh-ed25519"
    blob = len(kind).to_bytes(4, "big") + kind + len(point).to_bytes(4, "big") + point
    return f"ssh-ed25519 {base64.b64encode(blob).decode()} nobody"


def _boot(request: LaunchRequest, node: NodeRequest, place: Place) -> bytes:
    return told_at_boot(
        request,
        node.node,
        "azure",
        user_data,
        lifetime_s=request.lifetime_s,
        endpoint=place.endpoint,
        api_endpoint=place.api_endpoint,
        identity=place.client_id,
    )


# --- what belongs to all of a launch ----------------------------------------------------------------------------------


def with_tags(request: LaunchRequest, properties: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """A resource of the launch."""
    body: dict[str, Any] = {"location": request.region, "tags": tags.launch_tags(request), **more}
    return body if properties is None else {**body, "properties": dict(properties)}
