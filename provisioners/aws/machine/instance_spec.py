"""EC2 API parameters common to RunInstances and RequestLaunchTemplateData. Pure functions.

Ids of resources (image, security group, profile, subnet) are passed through unread: a Pulumi program passes Outputs
instead of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..resources.network import efa_cards, tag_list
from .reservations import Reservation

TAGGED = ("instance", "volume", "network-interface")
"""Resource types that are created with a machine and get its tags."""

Text = Any
"""str, or a Pulumi Output of one."""
Number = Any
"""int, or a Pulumi Output of one."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """Network attachment of a machine's interfaces."""

    group: Text
    """Id of the security group."""
    public: bool
    """True if the machine gets a public address. In a public subnet it has no internet access without one."""
    subnet: Text | None = None
    """Id of the subnet; None: set when the machine is started, e.g. by an Auto Scaling group."""


def machine(
    machine_type: str,
    market: str,
    *,
    ami: Text,
    disk: Mapping[str, object],
    profile_arn: Text,
    interfaces: list[dict[str, object]],
    reservation: Reservation | None = None,
    placement_group: Text | None = None,
) -> dict[str, Any]:
    """Return the parameters of RunInstances and launch templates that do not differ between the nodes of a role."""
    parameters: dict[str, Any] = {
        "ImageId": ami,
        "InstanceType": machine_type,
        "IamInstanceProfile": {"Arn": profile_arn},
        "NetworkInterfaces": interfaces,
        "BlockDeviceMappings": [disk],
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    if market == "spot":
        # No maximum price: EC2 charges at most the on-demand price, and a lower maximum only reduces availability.
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if reservation is not None:
        target = {"CapacityReservationId": reservation.reservation}
        parameters["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if reservation.is_block:
            parameters["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if placement_group is not None:
        parameters["Placement"] = {"GroupName": placement_group}
    return parameters


def interfaces(at: Attachment, cards: range) -> list[dict[str, Any]]:
    """Return a machine's network interfaces: one for IP, and one Elastic Fabric Adapter for each card in `cards`.

    EC2 gives no public address to a machine with several interfaces, and without one it has no internet access in a
    public subnet. There it gets a single adapter, which carries IP as well; all adapters are used in private subnets
    only. Layout: EC2 user guide, "Maximize network bandwidth on instances with multiple network cards".
    """
    subnet = {} if at.subnet is None else {"SubnetId": at.subnet}
    base = {**subnet, "Groups": [at.group], "DeleteOnTermination": True}
    first = {**base, "DeviceIndex": 0, "NetworkCardIndex": 0, "AssociatePublicIpAddress": at.public}
    if not cards:
        return [first]
    if at.public or len(cards) == 1:
        return [{**first, "InterfaceType": "efa"} if 0 in cards else first]
    others = [
        {**base, "DeviceIndex": 1 if card == 0 else 0, "NetworkCardIndex": card, "InterfaceType": "efa-only"}
        for card in cards
    ]
    return [{**first, "InterfaceType": "interface"}, *others]


def cards_of(machine_type: str, *, wants_efa: bool) -> range:
    """Return the network cards whose Elastic Fabric Adapters are used; empty without EFA."""
    return efa_cards(machine_type) if wants_efa else range(0)


def disk_gib(asked_gb: float, image_gb: int) -> int:
    """Return the volume's size in GiB: as requested, but at least that of the image's snapshot."""
    return max(math.ceil(asked_gb), image_gb)


def root_disk(device: Text, gib: Number) -> dict[str, Any]:
    """Return the root disk, encrypted with the account's default key and deleted with the machine."""
    disk = {"VolumeType": "gp3", "VolumeSize": gib, "Encrypted": True, "DeleteOnTermination": True}
    return {"DeviceName": device, "Ebs": disk}


def tagged(values: Mapping[str, Text], resources: tuple[str, ...] = TAGGED) -> list[dict[str, Any]]:
    """Return TagSpecifications with the same tags for all resource types."""
    return [{"ResourceType": resource, "Tags": tag_list(values)} for resource in resources]
