"""Scale set of a fleet in wire format, built from the same parts as a launch's machines. Pure functions.

It uses flexible orchestration: its machines are ordinary virtual machines, with the same API, metadata and permissions
as a launch's. `DIFFERS` lists the differences from a launch; a test checks that there are no others.

Sources: Azure's documentation, "Orchestration modes for Virtual Machine Scale Sets", "Spot Priority Mix", "Automatic
instance repairs", "Application Health extension", "Rolling upgrades with MaxSurge".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....jobspecs.fleets import FleetSpec
from ...base import ProvisionError
from ..catalog.sizes import is_accelerated
from . import vm_profile
from .images import Image, urn_for
from .vm_profile import Text

NETWORK_API = "2020-11-01"
"""Oldest API version that supports network interface settings in a Flexible scale set."""
DIFFERS = frozenset(
    {
        "osProfile.customData",
        "osProfile.computerName",  # scale set: the prefix of names
        "osProfile.computerNamePrefix",
        "osProfile.linuxConfiguration.ssh.publicKeys[0].keyData",  # unusable key, derived from the launch or the fleet
        "storageProfile.osDisk.name",  # a scale set generates disk names
        "networkProfile",  # compared through interface(): a launch creates its interfaces beforehand
        "extensionProfile",  # health check of a scale set's machines
        "hardwareProfile.vmSize",  # scale set: in its SKU
        "securityProfile.securityType",  # a stack's API version is older than the value that a launch needs
    }
)
"""Paths that differ, or exist only on one side, between a scale set's profile and a launched machine's properties."""
_HEALTH_PORT = 22
"""Port of the health check, which runs on the machine itself: inbound traffic from outside is blocked."""
_GRACE = "PT10M"
"""Grace period before a new machine's health counts (ISO 8601): the minimum that Azure allows."""
_BATCH_PERCENT = 20


_MARKETS = frozenset({"on-demand", "spot", "reservation"})


@dataclass(frozen=True, slots=True)
class NetworkAttachment:
    """Network resources and reservation of a fleet's machines."""

    subnet: Text
    """Resource ids of the subnet and of the network security group."""
    security_group: Text
    peers: Text | None
    """Resource id of the application security group of machines that reach each other; None: they do not."""
    public: bool
    """True if each machine gets a public address for outbound traffic, because its subnet has no other egress."""
    reservation: Text | None = None
    """Resource id of the machines' capacity reservation group; None: no reservation."""


def check_fleet(fleet: FleetSpec, *, reserved: bool) -> None:
    """Raise ProvisionError(invalid) for a fleet that Azure does not support. `reserved`: a reservation was given."""
    if fleet.cloud != "azure":
        raise ProvisionError("invalid", f"the fleet {fleet.name} is of {fleet.cloud}, not of azure", scope="cloud")
    if fleet.market not in _MARKETS:
        raise ProvisionError("invalid", f"the target azure has no market {fleet.market}", scope="cloud")
    if reserved != (fleet.market == "reservation"):
        message = "market reservation and the resource id of a capacity reservation group belong together"
        raise ProvisionError("invalid", message, scope="cloud")
    urn_for(fleet.machine_type, gpu=fleet.accelerator is not None)


def zones_of(fleet: FleetSpec) -> list[str]:
    """Return the zones to use: only the first if the machines communicate; []: Azure chooses in the region."""
    return list(fleet.zones[:1]) if fleet.peers else sorted(fleet.zones)


def is_close(fleet: FleetSpec) -> bool:
    """Return True if the machines are placed together; reserved machines are placed by their reservation."""
    return fleet.peers and fleet.market != "reservation"


def profile(fleet: FleetSpec, image: Image, at: NetworkAttachment, custom_data: Text) -> dict[str, Any]:
    """Return the virtualMachineProfile. `custom_data`: base64."""
    accelerated = is_accelerated(fleet.machine_type)
    return {
        "storageProfile": {
            "imageReference": vm_profile.image_reference(image),
            "osDisk": vm_profile.disk(image, fleet.disk_gb),
        },
        "osProfile": {
            "computerNamePrefix": f"{fleet.name}-",
            **vm_profile.system(f"{fleet.name} {fleet.template_hash}", custom_data),
        },
        "networkProfile": {
            "networkApiVersion": NETWORK_API,
            "networkInterfaceConfigurations": [_interface(at, accelerated=accelerated)],
        },
        "diagnosticsProfile": vm_profile.diagnostics(),
        **vm_profile.market(fleet.market),
        **({} if at.reservation is None else vm_profile.reserved(at.reservation)),
        "extensionProfile": {"extensions": [_health()]},
    }


def scale_set(fleet: FleetSpec, profile: dict[str, object]) -> dict[str, Any]:
    """Return the scale set's properties. Machines that communicate share a placement group, which InfiniBand
    requires."""
    properties: dict[str, Any] = {
        "orchestrationMode": "Flexible",
        "platformFaultDomainCount": 1,
        "singlePlacementGroup": is_close(fleet),
        "upgradePolicy": _upgrades(),
        "virtualMachineProfile": profile,
    }
    if fleet.on_demand:
        properties["priorityMixPolicy"] = {
            "baseRegularPriorityCount": fleet.on_demand,
            "regularPriorityPercentageAboveBase": 0,
        }
    if fleet.heal:
        properties["automaticRepairsPolicy"] = {"enabled": True, "gracePeriod": _GRACE, "repairAction": "Replace"}
    if fleet.heal and fleet.market == "spot":
        properties["spotRestorePolicy"] = {"enabled": True}
    return properties


def _interface(at: NetworkAttachment, *, accelerated: bool) -> dict[str, Any]:
    """Return the interface's configuration; interface and address are deleted with the machine."""
    address = {}
    if at.public:
        how = {"publicIPAddressVersion": "IPv4", "deleteOption": "Delete"}
        address["publicIPAddressConfiguration"] = {"name": "out", "sku": {"name": "Standard"}, "properties": how}
    properties = vm_profile.interface(
        subnet=at.subnet, security_group=at.security_group, peers=at.peers, accelerated=accelerated, address=address
    )
    return {"name": "machines", "properties": {"primary": True, "deleteOption": "Delete", **properties}}


def _health() -> dict[str, Any]:
    """Return the health extension: a TCP check of the machine's own SSH server, which is unreachable from outside.

    Azure uses it to replace machines, and to check new ones during an upgrade.
    """
    return {
        "name": "health",
        "properties": {
            "publisher": "Microsoft.ManagedServices",
            "type": "ApplicationHealthLinux",
            "typeHandlerVersion": "1.0",
            "autoUpgradeMinorVersion": True,
            "settings": {"protocol": "tcp", "port": _HEALTH_PORT},
        },
    }


def _upgrades() -> dict[str, Any]:
    """Return the rolling upgrade policy: in each batch, new machines are created before old ones are deleted, because
    the custom data of an existing machine cannot be changed."""
    return {
        "mode": "Rolling",
        "rollingUpgradePolicy": {
            "maxBatchInstancePercent": _BATCH_PERCENT,
            "maxUnhealthyInstancePercent": 100,
            "maxUnhealthyUpgradedInstancePercent": _BATCH_PERCENT,
            "pauseTimeBetweenBatches": "PT0S",
            "maxSurge": True,
        },
    }
