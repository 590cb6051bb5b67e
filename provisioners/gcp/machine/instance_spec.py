"""What a machine is made of, whoever makes it: a launch (request.py) or the group of a fleet (template.py). Pure.

Both are built of these functions, so a machine of a fleet is the machine that a launch would have got. Fields are spelt
as the SDK's messages spell them (`machine_type`), values as the API does. In an instance a kind of disk, machine or GPU
is named by its path in the zone, in a template by its name alone: `zone` is None there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..resources.network import Attachment
from .images import Image
from .machine_types import Kind, attached_gpus, needs
from .reservations import Reservation

MARKETS = frozenset({"on-demand", "spot", "flex-start", "reservation"})
SCOPES = (
    "https://www.googleapis.com/auth/devstorage.read_write",
    "https://www.googleapis.com/auth/compute",
)
"""Of the machines' tokens: the job's bucket, and the API by which a machine deletes itself. What its service account
may do of it is its roles' business."""
GRACE_S = 600
"""A machine ends itself at its lifetime; Compute Engine deletes it so much later, should it not."""
RUN_S = (600, 7 * 86_400, 120 * 86_400)
"""Bounds of a run: flex-start's least and most, and the most of all others. Source: Compute Engine's documentation,
"About Flex-start VMs", "Limit the run time of a VM"."""
_HOST_ERROR_S = 90
"""A host that does not answer is given up after so long; the least there is, the default is 330."""


class Terms(Protocol):
    """On which terms machines are had: of a LaunchRequest, or of a FleetSpec."""

    @property
    def market(self) -> str: ...
    @property
    def disk_gb(self) -> float: ...
    @property
    def lifetime_s(self) -> int | None: ...


def machine(
    terms: Terms,
    kind: Kind,
    *,
    at: Attachment,
    image: Image,
    service_account: str,
    labels: Mapping[str, str],
    network_tags: Sequence[str],
    zone: str | None = None,
    disk_name: str | None = None,
    reservation: Reservation | None = None,
) -> dict[str, Any]:
    """All of a machine but its names and its metadata. Raises ProvisionError for what cannot be."""
    need = needs(kind.machine_type)
    named = {"labels": dict(labels)} if disk_name is None else {"disk_name": disk_name, "labels": dict(labels)}
    size_gb = max(math.ceil(terms.disk_gb), image.min_gb)
    made: dict[str, Any] = {
        "machine_type": _of_zone(zone, "machineTypes", kind.machine_type),
        "labels": dict(labels),
        "tags": {"items": list(network_tags)},
        "disks": [_disk(_of_zone(zone, "diskTypes", need.disk), size_gb, image, named)],
        "network_interfaces": [_interface(at, need.nic)],
        "scheduling": _scheduling(terms, reservation, local_ssd=need.local_ssd),
        "service_accounts": [{"email": service_account, "scopes": list(SCOPES)}],
        "reservation_affinity": _affinity(terms.market, reservation),
    }
    gpus = attached_gpus(kind)
    if gpus is not None:
        gpu = _of_zone(zone, "acceleratorTypes", gpus["name"])
        made["guest_accelerators"] = [{"accelerator_type": gpu, "accelerator_count": gpus["count"]}]
    if image.shielded:
        made["shielded_instance_config"] = {
            "enable_vtpm": True,
            "enable_integrity_monitoring": True,
            "enable_secure_boot": image.secure_boot,
        }
    return made


def metadata(script: str) -> dict[str, Any]:
    """Nobody is meant to log in: keys of the project's users are not for this machine."""
    items = [{"key": "startup-script", "value": script}, {"key": "block-project-ssh-keys", "value": "TRUE"}]
    return {"items": items}


def longest_run_s(terms: Terms) -> int | None:
    """After so many seconds Compute Engine itself deletes the machine: a dead man's switch. None: never."""
    least, flex, longest = RUN_S
    wanted = None if terms.lifetime_s is None else terms.lifetime_s + GRACE_S
    if terms.market == "flex-start":
        return flex if wanted is None else min(max(wanted, least), flex)
    return None if wanted is None or wanted > longest else wanted


def _of_zone(zone: str | None, collection: str, name: str) -> str:
    return name if zone is None else f"zones/{zone}/{collection}/{name}"


def _disk(kind: str, size_gb: int, image: Image, named: Mapping[str, object]) -> dict[str, Any]:
    """The one disk: encrypted, as every disk there is, and gone with the machine. `kind`: its type."""
    parameters = {"disk_size_gb": size_gb, "disk_type": kind, "source_image": image.source, **named}
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _interface(at: Attachment, nic: str) -> dict[str, Any]:
    """With an external address only where Google's APIs are not reached without one."""
    interface: dict[str, Any] = {"network": at.network_url, "subnetwork": at.subnetwork_url, "nic_type": nic}
    if not at.private_access:
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return interface


def _scheduling(terms: Terms, reservation: Reservation | None, *, local_ssd: bool) -> dict[str, Any]:
    """How the machine lives with its host, and how long.

    Machines with GPUs cannot be moved to another host: they are ended for maintenance. Those that are ours to keep are
    then started again, on the same disk; one that is taken back is deleted, for another attempt takes its place: it
    must not come back beside it. A host's Local SSDs are not waited for (by default for an hour): nothing is on them.
    """
    keeps = terms.market in {"on-demand", "reservation"}
    bound = reservation is not None and reservation.ends_machines
    scheduling: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "automatic_restart": keeps}
    model = {"spot": "SPOT", "flex-start": "FLEX_START"}.get(terms.market, "RESERVATION_BOUND" if bound else "")
    scheduling["provisioning_model"] = model or "STANDARD"
    if keeps:
        scheduling["host_error_timeout_seconds"] = _HOST_ERROR_S
        if local_ssd:
            scheduling["local_ssd_recovery_timeout"] = {"seconds": 0}
    seconds = longest_run_s(terms)
    if seconds is not None:
        scheduling["max_run_duration"] = {"seconds": seconds}
    if model or seconds is not None:
        scheduling["instance_termination_action"] = "DELETE"
    return scheduling


def _affinity(market: str, reservation: Reservation | None) -> dict[str, Any]:
    """What is reserved is used in its own market, and on demand where it admits anybody's machines."""
    if reservation is not None and reservation.by_name_only:
        key = "compute.googleapis.com/reservation-name"
        return {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": key, "values": [reservation.path]}
    free = market in {"spot", "flex-start"}
    return {"consume_reservation_type": "NO_RESERVATION" if free else "ANY_RESERVATION"}
