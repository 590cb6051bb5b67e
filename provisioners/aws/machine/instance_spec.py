"""What a machine is, in the words of EC2's API: the same for a launch and for the launch template of a fleet.

RunInstances and RequestLaunchTemplateData spell all of this alike. What is found or made before (image, group, profile,
subnet) is text here; a Pulumi program gives what it does not know yet, an Output, in its place: nothing here looks into
it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..resources.network import efa_cards, tag_list
from .reservations import Reservation

TAGGED = ("instance", "volume", "network-interface")
"""What is made with a machine, and carries its tags."""

Text = Any
"""str, or a Pulumi Output of one."""
Number = Any
"""int, likewise."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where a machine's interfaces are."""

    group: Text
    """Security group."""
    public: bool
    """The machine gets a public address, without which it reaches nothing from a public subnet."""
    subnet: Text | None = None
    """None: whoever starts the machine says it."""


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
    """All that does not tell one machine from another of its kind."""
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
        # Without a maximum price: EC2 asks for no more than the on-demand price, and a low one only gets less.
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
    """One for IP, and those of the Elastic Fabric Adapter: one for each of the network cards that are to be used.

    Where a machine has several interfaces EC2 gives it no public address, without which it reaches nothing from a
    public subnet. There it has a single adapter, which carries IP as well; all of them are used in private subnets.
    Layout: EC2 user guide, "Maximize network bandwidth on instances with multiple network cards".
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
    """Network cards whose Elastic Fabric Adapters are used."""
    return efa_cards(machine_type) if wants_efa else range(0)


def disk_gib(asked_gb: float, image_gb: int) -> int:
    """Of the volume: as asked for, and no smaller than the image's snapshot."""
    return max(math.ceil(asked_gb), image_gb)


def root_disk(device: Text, gib: Number) -> dict[str, Any]:
    """The one disk, encrypted with the account's default key, gone with the machine."""
    disk = {"VolumeType": "gp3", "VolumeSize": gib, "Encrypted": True, "DeleteOnTermination": True}
    return {"DeviceName": device, "Ebs": disk}


def tagged(values: Mapping[str, Text], resources: tuple[str, ...] = TAGGED) -> list[dict[str, Any]]:
    """TagSpecifications: the same tags on everything that is made."""
    return [{"ResourceType": resource, "Tags": tag_list(values)} for resource in resources]
