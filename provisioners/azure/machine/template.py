"""A fleet's scale set, in wire format: its machines are made of the same parts as those of a launch. Pure.

Flexible orchestration: its machines are ordinary virtual machines, with the same API, metadata and rights as a
launch's. What differs from a launch is said by `DIFFERS`, to which a test holds both.

Sources: Azure's documentation, "Orchestration modes for Virtual Machine Scale Sets", "Spot Priority Mix",
"Automatic instance repairs", "Application Health extension", "Rolling upgrades with MaxSurge".
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
"""The oldest version with which a Flexible scale set can be told its machines' interfaces."""
DIFFERS = frozenset(
    {
        "osProfile.customData",
        "osProfile.computerName",  # of a scale set: the prefix of names
        "osProfile.computerNamePrefix",
        "osProfile.linuxConfiguration.ssh.publicKeys[0].keyData",  # nobody's, of each launch and each fleet
        "storageProfile.osDisk.name",  # a scale set names disks by itself
        "networkProfile",  # compared by interface(): a launch makes its interfaces beforehand
        "extensionProfile",  # how a scale set knows that a machine lives
        "hardwareProfile.vmSize",  # of a scale set: its SKU
        "securityProfile.securityType",  # the API version of a stack is older than the value that a launch needs
    }
)
"""Paths in the profile of a scale set, or in the properties of a launch's machine, that the other one does not have, or
has with another value."""
_HEALTH_PORT = 22
"""On which a machine's own system is asked whether it lives, from within: nothing comes in to it from outside."""
_GRACE = "PT10M"
"""So long a new machine is not judged: the least that Azure takes."""
_BATCH_PERCENT = 20


_MARKETS = frozenset({"on-demand", "spot", "reservation"})


@dataclass(frozen=True, slots=True)
class Standing:
    """What a fleet's machines are attached to."""

    subnet: Text
    """Resource ids."""
    security_group: Text
    peers: Text | None
    """Application security group of machines that reach each other; None: they do not."""
    public: bool
    """Each has a public address to go out by: its subnet has no other way."""
    reservation: Text | None = None
    """Resource id of the capacity reservation group that they are of; None: of none."""


def check_fleet(fleet: FleetSpec, *, reserved: bool) -> None:
    """Raises ProvisionError(invalid) for a fleet that Azure cannot have; `reserved`: a reservation was named."""
    if fleet.cloud != "azure":
        raise ProvisionError("invalid", f"the fleet {fleet.name} is of {fleet.cloud}, not of azure", scope="cloud")
    if fleet.market not in _MARKETS:
        raise ProvisionError("invalid", f"the target azure has no market {fleet.market}", scope="cloud")
    if reserved != (fleet.market == "reservation"):
        message = "market reservation and the resource id of a capacity reservation group belong together"
        raise ProvisionError("invalid", message, scope="cloud")
    urn_for(fleet.machine_type, gpu=fleet.accelerator is not None)


def zones_of(fleet: FleetSpec) -> list[str]:
    """Machines that talk to each other are in one zone: the first that is named. []: Azure chooses in the region."""
    return list(fleet.zones[:1]) if fleet.peers else sorted(fleet.zones)


def is_close(fleet: FleetSpec) -> bool:
    """Whether its machines are placed together. Reserved ones cannot be: they are where the reservation is."""
    return fleet.peers and fleet.market != "reservation"


def profile(fleet: FleetSpec, image: Image, at: Standing, custom_data: Text) -> dict[str, Any]:
    """The virtualMachineProfile. `custom_data`: base64."""
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
    """The properties of the scale set. Machines that talk to each other are in one placement group: InfiniBand joins no
    others."""
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


def _interface(at: Standing, *, accelerated: bool) -> dict[str, Any]:
    """Gone with its machine, and its address with it."""
    address = {}
    if at.public:
        how = {"publicIPAddressVersion": "IPv4", "deleteOption": "Delete"}
        address["publicIPAddressConfiguration"] = {"name": "out", "sku": {"name": "Standard"}, "properties": how}
    properties = vm_profile.interface(
        subnet=at.subnet, security_group=at.security_group, peers=at.peers, accelerated=accelerated, address=address
    )
    return {"name": "machines", "properties": {"primary": True, "deleteOption": "Delete", **properties}}


def _health() -> dict[str, Any]:
    """Asks the machine's own SSH server, which nobody else reaches, whether it answers: by that Azure replaces a
    machine, and knows at an upgrade that a new one lives."""
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
    """New machines of the new template are made, batch by batch; then old ones are deleted: a machine that is there
    cannot be given other custom data."""
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
