"""Build the instance template and the managed instance group of a fleet. Pure.

Every field of a machine comes from the functions that a launch uses too (instance_spec.py). A fleet's machine differs
in three things: its group names it, it has the fleet's labels, and its startup script takes orders from the fleet's
folder. Clusters (infra/gcp/fleet.py) and groups of one job (group_launch.py) both use this module.
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
"""So many zones Compute Engine chooses where none are named."""
EXPIRES_PORT = f"{tags.EXPIRES}-"
"""With epoch seconds, the name of a port of a group that nobody connects to: who ends what has expired looks for it."""
_LONGEST = 48
"""Of a fleet's name in the cloud. With `-base-` it is the prefix of a template's name (Pulumi takes 54 characters), and
of its machines' names (a group takes 58; API reference, baseInstanceName)."""
_PLACED = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
"""Machine types with GPUs that a compact placement policy takes; others are in one zone together, and no closer.
Source: Google Cloud's documentation, "Compact placement policy and workload policy overview"."""


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
    """`instanceProperties`, spelt as the SDK's messages spell them. Raises ProvisionError for what cannot be a fleet.

    `image`: URL of the image. `reservation`: `projects/P/reservations/R`, one that must be named to be used; None: any
    that is open. `policies`: resource policies, by name (Pulumi takes URLs). `called`: what the fleet is called in the
    cloud, "": as fleet_name() says.
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
    """The managed instance group of a region, spelt likewise. `base`: what its machines' names begin with.

    A group of one zone is one of a region with that zone. Machines that talk to each other are in one zone together. A
    new template comes to the machines by as few at once as Compute Engine takes, which is as many as there are zones;
    and none beside the old ones, for GPUs are scarce.
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
    """The policy of machines that are to be close to each other, spelt likewise."""
    return {"name": called, "group_placement_policy": {"collocation": "COLLOCATED"}}


def check_fleet(fleet: FleetSpec) -> None:
    """Raises ProvisionError for a fleet that Compute Engine cannot have as a group of machines."""
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
    """Whether its machines get a compact placement policy: close to each other within a zone."""
    return fleet.peers and fleet.machine_type.startswith(_PLACED)


def fleet_name(name: str) -> str:
    """What all of a fleet is called: its group, the first part of its machines' names, their network tag.

    It begins as the names of all machines of ours do: the right to delete machines ends there.
    """
    whole = f"{PREFIX}-fleet-{name}"
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _image(fleet: FleetSpec, url: str) -> Image:
    """All images of images.csv boot with UEFI. Raises ProvisionError where there is none for the machine type."""
    family = family_for(fleet.machine_type, gpu=fleet.accelerator is not None)
    return Image(url, 0, shielded=True, secure_boot=family.secure_boot)
