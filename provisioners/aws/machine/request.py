"""Build the parameters of RunInstances from a launch request. Pure functions, for tests and for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base import LaunchRequest, NodeRequest, ProvisionError
from ...boot import user_data
from ...shared import tags
from ...shared.boot_record import build_boot_data, check_agent
from ..resources.network import Subnet, efa_cards
from .images import Image, architecture_of
from .instance_spec import TAGGED, Attachment, cards_of, disk_gib, interfaces, machine, root_disk, tagged
from .reservations import Reservation


@dataclass(frozen=True, slots=True)
class Place:
    """Resources of one zone that were found or created for a launch before its machines."""

    subnet: Subnet
    group: str
    profile_arn: str
    reservations: Mapping[str, Reservation]
    """Machine type -> reservation; empty in other markets."""
    placement_group: str | None = None
    endpoint: str | None = None
    """Endpoint of the object store on the loopback, for tests; None: AWS's real endpoint."""


def run_instances(
    request: LaunchRequest, node: NodeRequest, place: Place, image: Image, client_token: str
) -> dict[str, Any]:
    """Return the parameters to start one machine. Raises ProvisionError if they would be invalid.

    Each machine is started by a separate call rather than by CreateFleet (type instant): user data and tags differ
    between nodes, for which a fleet would need a launch template each; zones and types are tried in the plan's order,
    not EC2's; and a client token for each machine identifies it if the answer is lost. All-or-none, which a fleet would
    add, is achieved by terminating machines after a refusal.
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
    """Return whether the machines use Elastic Fabric Adapters: there are several, and all have adapters."""
    return len(nodes) > 1 and all(efa_cards(node.machine_type) for node in nodes)


def check_request(request: LaunchRequest) -> None:
    """Raise ProvisionError if EC2 does not have the market, or the agent file does not fit the machines."""
    if request.market not in ("on-demand", "spot", "reservation"):
        raise ProvisionError("invalid", f"EC2 has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: architecture_of(node.machine_type))


def _boot(request: LaunchRequest, node: NodeRequest, place: Place) -> str:
    reservation = place.reservations.get(node.machine_type)
    return build_boot_data(
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
