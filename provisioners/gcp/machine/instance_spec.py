"""Parts of a machine in wire format, shared by launches (request.py) and fleets' groups (template.py). Pure functions.

Both use these functions, so a fleet's machines are identical to a launch's. Fields are spelt as in the SDK's messages
(`machine_type`), values as in the API. An instance refers to types of disk, machine or GPU by their path in the zone, a
template only by name: there `zone` is None.
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
"""OAuth scopes of the machines' tokens: the job's bucket, and the API with which a machine deletes itself. The roles of
the service account limit them further."""
SECRETS_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The only OAuth scope that Secret Manager accepts, for machines that read secrets."""
GRACE_S = 600
"""Seconds between the end of a machine's lifetime, when it shuts itself down, and its deletion by Compute Engine."""
RUN_S = (600, 7 * 86_400, 120 * 86_400)
"""Limits of a run in seconds: flex-start's minimum and maximum, and the maximum of other markets. Source: Compute
Engine's documentation, "About Flex-start VMs", "Limit the run time of a VM"."""
_HOST_ERROR_S = 90
"""Seconds until an unresponsive host counts as failed: the minimum; the default is 330."""


class Terms(Protocol):
    """Market, disk size and lifetime of a machine: a LaunchRequest or a FleetSpec."""

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
    reads_secrets: bool = False,
) -> dict[str, Any]:
    """Return a machine's fields except names and metadata. Raises ProvisionError for an unsupported combination."""
    scopes = [*SCOPES, SECRETS_SCOPE] if reads_secrets else list(SCOPES)
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
        "service_accounts": [{"email": service_account, "scopes": scopes}],
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
    """Return the metadata: the startup script, and no SSH keys of the project, since login is not intended."""
    items = [{"key": "startup-script", "value": script}, {"key": "block-project-ssh-keys", "value": "TRUE"}]
    return {"items": items}


def longest_run_s(terms: Terms) -> int | None:
    """Return the seconds after which Compute Engine deletes the machine, if it does not shut down itself; None:
    never."""
    least, flex, longest = RUN_S
    wanted = None if terms.lifetime_s is None else terms.lifetime_s + GRACE_S
    if terms.market == "flex-start":
        return flex if wanted is None else min(max(wanted, least), flex)
    return None if wanted is None or wanted > longest else wanted


def _of_zone(zone: str | None, collection: str, name: str) -> str:
    return name if zone is None else f"zones/{zone}/{collection}/{name}"


def _disk(kind: str, size_gb: int, image: Image, named: Mapping[str, object]) -> dict[str, Any]:
    """Return the only disk: encrypted, like all disks, and deleted with the machine. `kind`: its type."""
    parameters = {"disk_size_gb": size_gb, "disk_type": kind, "source_image": image.source, **named}
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _interface(at: Attachment, nic: str) -> dict[str, Any]:
    """Return the network interface, with an external address only if Google's APIs are unreachable without one."""
    interface: dict[str, Any] = {"network": at.network_url, "subnetwork": at.subnetwork_url, "nic_type": nic}
    if not at.private_access:
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return interface


def _scheduling(terms: Terms, reservation: Reservation | None, *, local_ssd: bool) -> dict[str, Any]:
    """Return the scheduling options.

    Machines with GPUs cannot migrate to another host: maintenance terminates them. On-demand and reserved machines are
    then restarted with the same disk. Machines of other markets are deleted: the next attempt replaces them, and must
    not run at the same time. The recovery of a host's Local SSDs (an hour by default) is skipped: they hold no data.
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
    """Return the reservation affinity: a targeted reservation, none for Spot and flex-start, otherwise any open one."""
    if reservation is not None and reservation.by_name_only:
        key = "compute.googleapis.com/reservation-name"
        return {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": key, "values": [reservation.path]}
    free = market in {"spot", "flex-start"}
    return {"consume_reservation_type": "NO_RESERVATION" if free else "ANY_RESERVATION"}
