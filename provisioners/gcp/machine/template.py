"""Instance template and managed instance group of a fleet in wire format. Pure functions.

Every field of a machine comes from the functions that a launch uses too (instance_spec.py). A fleet's machine differs
in three ways: its group names it, it has the fleet's labels, and its startup script takes orders from the fleet folder.
Clusters (infra/gcp/fleet.py) and groups of one job (group_launch.py) both use this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ....jobspecs.fleets import FleetSpec
from ...base import ProvisionError
from ...shared import tags
from ..labels import PREFIX
from ..resources.network import CLOSED_TAG, Attachment
from .images import Image, family_for
from .instance_spec import machine, metadata
from .reservations import Reservation

_ZONES = 3
"""Number of zones that Compute Engine chooses if none are named."""
EXPIRES_PORT = f"{tags.EXPIRES}-"
"""Prefix of a group's named port that stores its expiry in epoch seconds. It is never used for connections; cleanups
search for it."""
_LONGEST = 48
"""Maximum length of a fleet's name in the cloud. The name and `-base-` are the prefix of the template's name, which
Pulumi limits to 54 characters, and of the machines' names, which an instance group limits to 58 (API reference,
baseInstanceName)."""
_PLACED = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
"""Machine types with GPUs that support a compact placement policy; others only share a zone. Source: Google Cloud's
documentation, "Compact placement policy and workload policy overview"."""


def template(
    fleet: FleetSpec,
    *,
    at: Attachment,
    image: str,
    service_account: str,
    labels: Mapping[str, str],
    script: str,
    reservation: str | None = None,
    policies: Sequence[str] = (),
    called: str = "",
) -> dict[str, Any]:
    """Return the template's `instanceProperties`, with the field names of the SDK's protobuf messages.

    `image`: URL of the image. `reservation`: `projects/P/reservations/R`, one that must be targeted by name; None: any
    open one. `policies`: names of resource policies; their URLs if Pulumi creates the template. `called`: the
    fleet's name in the cloud; "": fleet_name(). Raises ProvisionError for an unsupported fleet.
    """
    check_fleet(fleet)
    named = None if reservation is None else Reservation(reservation, "", by_name_only=True, ends_machines=False)
    made = machine(
        fleet,
        fleet,
        at=at,
        image=_image(fleet, image),
        service_account=service_account,
        labels=labels,
        network_tags=(CLOSED_TAG, called or fleet_name(fleet.name)),
        reservation=named,
    )
    made["description"] = f"Machine of {PREFIX}'s fleet {fleet.name}"
    made["metadata"] = metadata(script)
    if policies:
        made["resource_policies"] = list(policies)
    return made


def group(fleet: FleetSpec, *, called: str, base: str, template: str) -> dict[str, Any]:
    """Return the regional managed instance group. `base`: prefix of its machines' names.

    A group in one zone is a regional group limited to that zone. Machines that communicate are in one zone. A new
    template replaces the fewest machines at once that Compute Engine allows, the number of zones, and replacements
    start only after old machines are deleted, since GPUs are scarce.
    """
    zones = [{"zone": f"zones/{zone}"} for zone in fleet.zones]
    return {
        "name": called,
        "base_instance_name": base,
        "versions": [{"name": "only", "instance_template": template}],
        "target_size": fleet.size,
        "distribution_policy": {
            "target_shape": "ANY_SINGLE_ZONE" if fleet.peers else "ANY",
            **({"zones": zones} if zones else {}),
        },
        "update_policy": {
            "type_": "PROACTIVE",
            "minimal_action": "REPLACE",
            "most_disruptive_allowed_action": "REPLACE",
            "replacement_method": "SUBSTITUTE",
            "max_surge": {"fixed": 0},
            "max_unavailable": {"fixed": len(fleet.zones) or _ZONES},
            "instance_redistribution_type": "NONE",
        },
        "instance_lifecycle_policy": {"default_action_on_failure": "REPAIR" if fleet.heal else "DO_NOTHING"},
        "list_managed_instances_results": "PAGINATED",
    }


def placement(called: str) -> dict[str, Any]:
    """Return the compact placement policy."""
    return {"name": called, "group_placement_policy": {"collocation": "COLLOCATED"}}


def check_fleet(fleet: FleetSpec) -> None:
    """Raise ProvisionError for a fleet that Compute Engine does not support as an instance group."""
    if fleet.market == "flex-start":
        message = (
            f"fleet {fleet.name} cannot be of market flex-start, whose machines are queued for once and end after a "
            "week: on-demand, spot or reservation; jobs can have flex-start without a fleet"
        )
        raise ProvisionError("invalid", message, scope="cloud")
    if fleet.on_demand and fleet.peers and len(fleet.zones) != 1:
        message = (
            f"fleet {fleet.name}: machines that talk to each other are in one zone, and those on demand and those on "
            "Spot are two groups, of which each chooses its own: name one zone, or leave on_demand out"
        )
        raise ProvisionError("invalid", message, scope="cloud")


def is_placed(fleet: FleetSpec) -> bool:
    """Return True if the machines get a compact placement policy, which places them close together within a zone."""
    return fleet.peers and fleet.machine_type.startswith(_PLACED)


def fleet_name(name: str) -> str:
    """Return the name of a fleet's group, which is also its machines' network tag and the prefix of their names.

    It begins with cloudgpu's prefix for machines, to which the permission to delete machines is limited.
    """
    whole = f"{PREFIX}-fleet-{name}"
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _image(fleet: FleetSpec, url: str) -> Image:
    """Return the image at a URL; all images of images.csv boot with UEFI. Raises ProvisionError if the machine type has
    none."""
    family = family_for(fleet.machine_type, gpu=fleet.accelerator is not None)
    return Image(url, 0, shielded=True, secure_boot=family.secure_boot)
