"""From what is asked for to the parameters of RunInstances. Pure: it can be printed, and is what tests look at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import tags
from ..base import LaunchRequest, NodeRequest, ProvisionError
from ..boot import user_data
from ..booting import check_agent, told_at_boot
from .images import Image, architecture_of
from .network import Subnet, efa_cards, tag_list
from .reservations import Reservation

_TAGGED = ("instance", "volume", "network-interface")


@dataclass(frozen=True, slots=True)
class Place:
    """What was found, and made, for a launch before its machines: all of one zone."""

    subnet: Subnet
    group: str
    profile_arn: str
    reservations: Mapping[str, Reservation]
    """By machine type; empty in the other markets."""
    placement_group: str | None = None
    endpoint: str | None = None
    """Of the object store, as the machines reach it: a test's, on this machine. None: AWS's own."""


def run_instances(
    request: LaunchRequest, node: NodeRequest, place: Place, image: Image, client_token: str
) -> dict[str, Any]:
    """Parameters that start one machine. Raises ProvisionError for what no machine can be started with.

    One call for each machine, and not CreateFleet (type instant): machines differ in user data and tags by their node,
    for which a fleet would need a launch template each; zones and types are tried in the plan's order, not in EC2's;
    and a client token for each machine tells after a lost answer which machines there are. What a fleet would add,
    all machines or none, is had by ending those that were got.
    """
    parameters: dict[str, Any] = {
        "ClientToken": client_token,
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": image.ami,
        "InstanceType": node.machine_type,
        "IamInstanceProfile": {"Arn": place.profile_arn},
        "UserData": _boot(request, node, place),
        "NetworkInterfaces": _interfaces(request, node, place),
        "BlockDeviceMappings": [_root(request, image)],
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": _tags(request, node),
    }
    if request.market == "spot":
        # Without a maximum price: EC2 asks for no more than the on-demand price, and a low one only gets less.
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    reservation = place.reservations.get(node.machine_type)
    if reservation is not None:
        target = {"CapacityReservationId": reservation.reservation}
        parameters["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if reservation.is_block:
            parameters["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if place.placement_group is not None:
        parameters["Placement"] = {"GroupName": place.placement_group}
    return parameters


def wants_efa(nodes: Sequence[NodeRequest]) -> bool:
    """Whether the machines talk through Elastic Fabric Adapters: several of them, and all have one."""
    return len(nodes) > 1 and all(efa_cards(node.machine_type) for node in nodes)


def check_request(request: LaunchRequest) -> None:
    """Raises ProvisionError for a market EC2 does not have, and for an agent that does not fit the machines."""
    if request.market not in ("on-demand", "spot", "reservation"):
        raise ProvisionError("invalid", f"EC2 has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: architecture_of(node.machine_type))


def _boot(request: LaunchRequest, node: NodeRequest, place: Place) -> str:
    reservation = place.reservations.get(node.machine_type)
    return told_at_boot(
        request,
        node.node,
        "aws",
        user_data,
        lifetime_s=request.lifetime_s,
        endpoint=place.endpoint,
        capacity_block_end=reservation.end if reservation is not None and reservation.is_block else None,
    ).decode()


def _interfaces(request: LaunchRequest, node: NodeRequest, place: Place) -> list[dict[str, Any]]:
    """One for IP, and those of the Elastic Fabric Adapter: one for each network card.

    Where a machine has several interfaces EC2 gives it no public address, without which it reaches nothing from a
    public subnet. There it has a single adapter, which carries IP as well; all of them are used in private subnets.
    Layout: EC2 user guide, "Maximize network bandwidth on instances with multiple network cards".
    """
    cards = efa_cards(node.machine_type) if wants_efa(request.nodes) else range(0)
    base = {"SubnetId": place.subnet.subnet, "Groups": [place.group], "DeleteOnTermination": True}
    first = {**base, "DeviceIndex": 0, "NetworkCardIndex": 0, "AssociatePublicIpAddress": place.subnet.public}
    if not cards:
        return [first]
    if place.subnet.public or len(cards) == 1:
        return [{**first, "InterfaceType": "efa"} if 0 in cards else first]
    others = [
        {**base, "DeviceIndex": 1 if card == 0 else 0, "NetworkCardIndex": card, "InterfaceType": "efa-only"}
        for card in cards
    ]
    return [{**first, "InterfaceType": "interface"}, *others]


def _root(request: LaunchRequest, image: Image) -> dict[str, Any]:
    """The one disk, encrypted with the account's default key, gone with the machine."""
    size = max(math.ceil(request.disk_gb), image.min_gb)
    disk = {"VolumeType": "gp3", "VolumeSize": size, "Encrypted": True, "DeleteOnTermination": True}
    return {"DeviceName": image.root_device, "Ebs": disk}


def _tags(request: LaunchRequest, node: NodeRequest) -> list[dict[str, Any]]:
    values = {"Name": f"{request.job_id} {node.node}", **tags.node_tags(request, node)}
    resources = (*_TAGGED, "spot-instances-request") if request.market == "spot" else _TAGGED
    return [{"ResourceType": resource, "Tags": tag_list(values)} for resource in resources]
