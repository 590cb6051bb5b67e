"""Request body that creates an instance. Pure functions.

Fields are spelt as in the SDK's messages (`machine_type`), values as in the API.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...base import LaunchRequest, NodeRequest, ProvisionError, node_token
from ...boot.startup_script import startup_script
from ...shared import tags
from ...shared.boot_record import build_boot_data, check_agent
from ..labels import instance_name, launch_name, to_labels
from ..resources.network import CLOSED_TAG, Attachment
from .images import Image
from .instance_spec import GRACE_S, MARKETS, RUN_S, machine, metadata
from .machine_types import architecture_of
from .reservations import Reservation

_FLEX_WAIT_S = (90, 7_200)
"""Limits in seconds that Compute Engine allows for a flex-start machine's wait for capacity ("Compute Engine instance
lifecycle", PENDING; "About Flex-start VMs")."""


@dataclass(frozen=True, slots=True)
class Place:
    """Zone and shared resources of a launch's machines."""

    zone: str
    attachment: Attachment
    service_account: str
    """E-mail address."""
    reservations: Mapping[str, Reservation]
    """Node -> reservation; empty in other markets."""
    storage_endpoint: str | None = None
    """Endpoint of Cloud Storage for the machines in tests; None: Google's own."""
    api_endpoint: str | None = None
    """Endpoint of the Compute Engine API for the machines in tests; None: Google's own."""


def instance(request: LaunchRequest, node: NodeRequest, place: Place, image: Image) -> dict[str, Any]:
    """Return the body that creates one machine. Raises ProvisionError for an invalid request.

    Each machine is created by a separate call instead of bulkInsert, since startup script and labels differ between
    nodes. A request id for each node identifies the existing machines after a lost response.
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
            reads_secrets=bool(request.secrets),
        ),
    }
    if request.market == "flex-start":
        made["params"] = {"request_valid_for_duration": {"seconds": flex_wait_s(request)}}
    return made


def flex_wait_s(request: LaunchRequest) -> int:
    """Return the seconds for which a flex-start machine waits for capacity.

    With several machines it is the minimum: those that have started are billed while the others wait for capacity.
    """
    least, most = _FLEX_WAIT_S
    return least if len(request.nodes) > 1 else most


def check_request(request: LaunchRequest) -> None:
    """Raise ProvisionError if Compute Engine lacks the market, or the agent file does not fit the machines."""
    if request.market not in MARKETS:
        raise ProvisionError("invalid", f"Compute Engine has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: architecture_of(node.machine_type))


def request_id(token: str, node: str, zone: str, *after: str) -> str:
    """Return a request id, a UUID derived from the call, so that Compute Engine executes a repeated call once.

    `after`: name of the preceding operation, if the call is a new one rather than a retry.
    """
    return str(uuid.UUID(node_token(token, node, zone, *after)))


def _life_s(request: LaunchRequest) -> int | None:
    """Return the seconds after which the machine shuts itself down, before Compute Engine deletes it; None: never."""
    if request.market != "flex-start":
        return request.lifetime_s
    longest = RUN_S[1] - GRACE_S
    return longest if request.lifetime_s is None else min(request.lifetime_s, longest)


def _script(request: LaunchRequest, node: NodeRequest, place: Place) -> str:
    return build_boot_data(
        request,
        node.node,
        "gcp",
        startup_script,
        lifetime_s=_life_s(request),
        endpoint=place.storage_endpoint,
        api_endpoint=place.api_endpoint,
    )
