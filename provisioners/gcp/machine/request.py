"""From what is asked for to the instance that is inserted. Pure: it can be printed, and is what tests look at.

Fields are spelt as the SDK's messages spell them (`machine_type`), values as the API does.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...base import LaunchRequest, NodeRequest, ProvisionError, node_token
from ...boot.startup_script import startup_script
from ...shared import tags
from ...shared.boot_record import check_agent, told_at_boot
from ..labels import instance_name, launch_name, to_labels
from ..resources.network import CLOSED_TAG, Attachment
from .images import Image
from .instance_spec import GRACE_S, MARKETS, RUN_S, machine, metadata
from .machine_types import architecture_of
from .reservations import Reservation

_FLEX_WAIT_S = (90, 7_200)
"""So long flex-start machines wait for capacity: the least and the most that Compute Engine takes ("Compute Engine
instance lifecycle", PENDING; "About Flex-start VMs")."""


@dataclass(frozen=True, slots=True)
class Place:
    """What was found, and made, for a launch before its machines: all in one zone."""

    zone: str
    attachment: Attachment
    service_account: str
    """E-mail address."""
    reservations: Mapping[str, Reservation]
    """By node; empty in the other markets."""
    storage_endpoint: str | None = None
    """Of Cloud Storage, as the machines reach it: a test's, on this machine. None: Google's own."""
    api_endpoint: str | None = None
    """Likewise of the Compute Engine API."""


def instance(request: LaunchRequest, node: NodeRequest, place: Place, image: Image) -> dict[str, Any]:
    """Starts one machine. Raises ProvisionError for what no machine can be started with.

    One call for each machine, and not bulkInsert: machines differ in startup script and labels by their node, and a
    request id for each tells after a lost answer which machines there are.
    """
    name = instance_name(request.token, node.node)
    made = {
        "name": name,
        "description": f"{node.node} of cloudgpu job {request.job_id}",
        "metadata": metadata(_script(request, node, place)),
        **machine(
            request,
            node,
            at=place.attachment,
            image=image,
            service_account=place.service_account,
            labels=to_labels(tags.node_tags(request, node)),
            network_tags=(CLOSED_TAG, launch_name(request.token)),
            zone=place.zone,
            disk_name=name,
            reservation=place.reservations.get(node.node),
        ),
    }
    if request.market == "flex-start":
        made["params"] = {"request_valid_for_duration": {"seconds": flex_wait_s(request)}}
    return made


def flex_wait_s(request: LaunchRequest) -> int:
    """How long a flex-start machine is in the queue. One of several waits for the others, and is paid for: there they
    wait as little as can be, and the next place is tried."""
    least, most = _FLEX_WAIT_S
    return least if len(request.nodes) > 1 else most


def check_request(request: LaunchRequest) -> None:
    """Raises ProvisionError for a market that is not there, and for an agent that does not fit the machines."""
    if request.market not in MARKETS:
        raise ProvisionError("invalid", f"Compute Engine has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: architecture_of(node.machine_type))


def request_id(token: str, node: str, zone: str, *after: str) -> str:
    """A UUID for a call about a machine: the same call has the same, so that Compute Engine does it once.

    `after`: the operation that this call comes after, where it is no repetition.
    """
    return str(uuid.UUID(node_token(token, node, zone, *after)))


def _life_s(request: LaunchRequest) -> int | None:
    """After which the machine ends itself: before Compute Engine would. None: never."""
    if request.market != "flex-start":
        return request.lifetime_s
    longest = RUN_S[1] - GRACE_S
    return longest if request.lifetime_s is None else min(request.lifetime_s, longest)


def _script(request: LaunchRequest, node: NodeRequest, place: Place) -> str:
    return told_at_boot(
        request,
        node.node,
        "gcp",
        startup_script,
        lifetime_s=_life_s(request),
        endpoint=place.storage_endpoint,
        api_endpoint=place.api_endpoint,
    )
