"""From what is asked for to the parameters of RunInstances. Pure: it can be printed, and is what tests look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base import LaunchRequest, NodeRequest, ProvisionError
from ...boot import user_data
from ...shared import tags
from ...shared.boot_record import check_agent, told_at_boot
from ..resources.network import Subnet, efa_cards
from .images import Image, architecture_of
from .instance_spec import TAGGED, Attachment, cards_of, disk_gib, interfaces, machine, root_disk, tagged
from .reservations import Reservation


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
    at = Attachment(place.group, place.subnet.public, place.subnet.subnet)
    cards = cards_of(node.machine_type, wants_efa=wants_efa(request.nodes))
    return {
        "ClientToken": client_token,
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": _boot(request, node, place),
        "TagSpecifications": _tags(request, node),
        **machine(
            node.machine_type,
            request.market,
            ami=image.ami,
            disk=root_disk(image.root_device, disk_gib(request.disk_gb, image.min_gb)),
            profile_arn=place.profile_arn,
            interfaces=interfaces(at, cards),
            reservation=place.reservations.get(node.machine_type),
            placement_group=place.placement_group,
        ),
    }


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


def _tags(request: LaunchRequest, node: NodeRequest) -> list[dict[str, Any]]:
    values = {"Name": f"{request.job_id} {node.node}", **tags.node_tags(request, node)}
    return tagged(values, (*TAGGED, "spot-instances-request") if request.market == "spot" else TAGGED)
