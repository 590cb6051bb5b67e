"""From what is asked for to the instance that is inserted. Pure: it can be printed, and is what tests look at.

Fields are spelt as the SDK's messages spell them (`machine_type`), values as the API does.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import tags
from ..base import LaunchRequest, NodeRequest, ProvisionError, node_token
from ..boot.startup_script import startup_script
from ..booting import check_agent, told_at_boot
from .images import Image
from .labels import instance_name, launch_name, to_labels
from .machines import architecture_of, attached_gpus, needs
from .network import CLOSED_TAG, Attachment
from .reservations import Reservation

MARKETS = frozenset({"on-demand", "spot", "flex-start", "reservation"})
SCOPES = (
    "https://www.googleapis.com/auth/devstorage.read_write",
    "https://www.googleapis.com/auth/compute",
)
"""Of the machines' tokens: the job's bucket, and the API by which a machine deletes itself. What its service account
may do of it is its roles' business."""
_FLEX_WAIT_S = (90, 7_200)
"""So long flex-start machines wait for capacity: the least and the most that Compute Engine takes ("Compute Engine
instance lifecycle", PENDING; "About Flex-start VMs")."""
_GRACE_S = 600
"""A machine ends itself at its lifetime; Compute Engine deletes it so much later, should it not."""
_RUN_S = (600, 7 * 86_400, 120 * 86_400)
"""Bounds of a run: flex-start's least and most, and the most of all others. Source: Compute Engine's documentation,
"About Flex-start VMs", "Limit the run time of a VM"."""
_HOST_ERROR_S = 90
"""A host that does not answer is given up after so long; the least there is, the default is 330."""


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
    kind = needs(node.machine_type)
    labels = to_labels(tags.node_tags(request, node))
    name = instance_name(request.token, node.node)
    disk_type, size_gb = f"zones/{place.zone}/diskTypes/{kind.disk}", max(math.ceil(request.disk_gb), image.min_gb)
    made: dict[str, Any] = {
        "name": name,
        "description": f"{node.node} of cloudgpu job {request.job_id}",
        "machine_type": f"zones/{place.zone}/machineTypes/{node.machine_type}",
        "labels": labels,
        "tags": {"items": [CLOSED_TAG, launch_name(request.token)]},
        "disks": [_disk(disk_type, size_gb, image, {"disk_name": name, "labels": labels})],
        "network_interfaces": [_interface(place.attachment, kind.nic)],
        "scheduling": _scheduling(request, place.reservations.get(node.node), local_ssd=kind.local_ssd),
        "service_accounts": [{"email": place.service_account, "scopes": list(SCOPES)}],
        "reservation_affinity": _affinity(request.market, place.reservations.get(node.node)),
        "metadata": {"items": _metadata(request, node, place)},
    }
    gpus = attached_gpus(node)
    if gpus is not None:
        kind_url = f"zones/{place.zone}/acceleratorTypes/{gpus['name']}"
        made["guest_accelerators"] = [{"accelerator_type": kind_url, "accelerator_count": gpus["count"]}]
    if image.shielded:
        made["shielded_instance_config"] = {
            "enable_vtpm": True,
            "enable_integrity_monitoring": True,
            "enable_secure_boot": image.secure_boot,
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


# --- parts ------------------------------------------------------------------------------------------------------------


def _disk(url: str, size_gb: int, image: Image, named: Mapping[str, Any]) -> dict[str, Any]:
    """The one disk: encrypted, as every disk there is, and gone with the machine. `url`: of its type."""
    parameters = {"disk_size_gb": size_gb, "disk_type": url, "source_image": image.source, **named}
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _interface(at: Attachment, nic: str) -> dict[str, Any]:
    """With an external address only where Google's APIs are not reached without one."""
    interface: dict[str, Any] = {"network": at.network_url, "subnetwork": at.subnetwork_url, "nic_type": nic}
    if not at.private_access:
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return interface


def _scheduling(request: LaunchRequest, reservation: Reservation | None, *, local_ssd: bool) -> dict[str, Any]:
    """How the machine lives with its host, and how long.

    Machines with GPUs cannot be moved to another host: they are ended for maintenance. Those that are ours to keep are
    then started again, on the same disk; one that is taken back is deleted, for another attempt takes its place: it
    must not come back beside it. A host's Local SSDs are not waited for (by default for an hour): nothing is on them.
    """
    keeps = request.market in {"on-demand", "reservation"}
    bound = reservation is not None and reservation.ends_machines
    scheduling: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "automatic_restart": keeps}
    model = {"spot": "SPOT", "flex-start": "FLEX_START"}.get(request.market, "RESERVATION_BOUND" if bound else "")
    scheduling["provisioning_model"] = model or "STANDARD"
    if keeps:
        scheduling["host_error_timeout_seconds"] = _HOST_ERROR_S
        if local_ssd:
            scheduling["local_ssd_recovery_timeout"] = {"seconds": 0}
    seconds = longest_run_s(request)
    if seconds is not None:
        scheduling["max_run_duration"] = {"seconds": seconds}
    if model or seconds is not None:
        scheduling["instance_termination_action"] = "DELETE"
    return scheduling


def longest_run_s(request: LaunchRequest) -> int | None:
    """After so many seconds Compute Engine itself deletes the machine: a dead man's switch. None: never."""
    least, flex, longest = _RUN_S
    wanted = None if request.lifetime_s is None else request.lifetime_s + _GRACE_S
    if request.market == "flex-start":
        return flex if wanted is None else min(max(wanted, least), flex)
    return None if wanted is None or wanted > longest else wanted


def _life_s(request: LaunchRequest) -> int | None:
    """After which the machine ends itself: before Compute Engine would. None: never."""
    if request.market != "flex-start":
        return request.lifetime_s
    longest = _RUN_S[1] - _GRACE_S
    return longest if request.lifetime_s is None else min(request.lifetime_s, longest)


def _affinity(market: str, reservation: Reservation | None) -> dict[str, Any]:
    """What is reserved is used in its own market, and on demand where it admits anybody's machines."""
    if reservation is not None and reservation.by_name_only:
        key = "compute.googleapis.com/reservation-name"
        return {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": key, "values": [reservation.path]}
    free = market in {"spot", "flex-start"}
    return {"consume_reservation_type": "NO_RESERVATION" if free else "ANY_RESERVATION"}


def _metadata(request: LaunchRequest, node: NodeRequest, place: Place) -> list[dict[str, str]]:
    script = told_at_boot(
        request,
        node.node,
        "gcp",
        startup_script,
        lifetime_s=_life_s(request),
        endpoint=place.storage_endpoint,
        api_endpoint=place.api_endpoint,
    )
    # Nobody is meant to log in: keys of the project's users are not for this machine.
    return [{"key": "startup-script", "value": script}, {"key": "block-project-ssh-keys", "value": "TRUE"}]
