"""Kinds of resources that need no code: the model of their body, and how they are created.

`later`: created and deleted by a long-running operation, as the SDK's methods (begin_…) are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of resource. `in_use`: code and status of the response to a DELETE while it is referenced; None:
    allowed."""

    name: str
    model: str
    later: bool
    in_use: tuple[str, int] | None = None
    parts: Mapping[str, str] | None = None
    """List within the properties whose items have ids -> suffix of the items' type."""
    located: bool = True
    made: int = 201
    """Status of the PUT that creates it; 200 where the SDK's method accepts no other."""


_ALL = (
    Kind(
        "Microsoft.Network/virtualNetworks",
        "network.VirtualNetwork",
        True,
        ("InUseSubnetCannotBeDeleted", 400),
        {"subnets": "subnets"},
    ),
    Kind(
        "Microsoft.Network/virtualNetworks/subnets",
        "network.Subnet",
        True,
        ("InUseSubnetCannotBeDeleted", 400),
        located=False,
    ),
    Kind(
        "Microsoft.Network/networkSecurityGroups",
        "network.NetworkSecurityGroup",
        True,
        ("InUseNetworkSecurityGroupCannotBeDeleted", 400),
        {"securityRules": "securityRules"},
    ),
    Kind(
        "Microsoft.Network/applicationSecurityGroups",
        "network.ApplicationSecurityGroup",
        True,
        ("ApplicationSecurityGroupIsInUse", 400),
    ),
    Kind(
        "Microsoft.Network/networkInterfaces",
        "network.NetworkInterface",
        True,
        ("NicInUse", 400),
        {"ipConfigurations": "ipConfigurations"},
    ),
    Kind(
        "Microsoft.Network/publicIPAddresses",
        "network.PublicIPAddress",
        True,
        ("PublicIPAddressCannotBeDeleted", 400),
    ),
    Kind("Microsoft.Network/natGateways", "network.NatGateway", True, ("InUseNatGatewayCannotBeDeleted", 400)),
    Kind("Microsoft.Compute/disks", "compute.Disk", True, ("OperationNotAllowed", 409)),
    Kind(
        "Microsoft.Compute/availabilitySets", "compute.AvailabilitySet", False, ("OperationNotAllowed", 409), made=200
    ),
    Kind(
        "Microsoft.Compute/proximityPlacementGroups",
        "compute.ProximityPlacementGroup",
        False,
        ("OperationNotAllowed", 409),
    ),
    Kind(
        "Microsoft.Compute/capacityReservationGroups",
        "compute.CapacityReservationGroup",
        False,
        ("OperationNotAllowed", 409),
    ),
    Kind("Microsoft.Compute/capacityReservationGroups/capacityReservations", "compute.CapacityReservation", True),
    Kind("Microsoft.ManagedIdentity/userAssignedIdentities", "msi.Identity", False),
)
KINDS: Mapping[str, Kind] = {kind.name.lower(): kind for kind in _ALL}
