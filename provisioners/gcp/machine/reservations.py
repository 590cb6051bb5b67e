"""Capacity reservations of the project.

The market `reservation` launches into existing reservations that are ready and have capacity for all machines in one
zone. Users create reservations themselves, since they bill while they exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...base import NodeRequest, ProvisionError
from ..clients import READ_S, Clients
from ..listing import list_everywhere
from ..rest import last_part
from .machine_types import attached_gpus

if TYPE_CHECKING:
    from google.cloud import compute_v1

_NO_ROOM = "InsufficientReservedCapacity"


class Reservation(NamedTuple):
    """Reservation to launch into."""

    path: str
    """`projects/P/reservations/R`, as an instance refers to it."""
    zone: str
    by_name_only: bool
    """True if it accepts only machines that name it; other reservations accept any matching machine."""
    ends_machines: bool
    """True if its machines end when it ends (densely deployed blocks, calendar mode); they are then bound to it."""


def find_reservations(clients: Clients, region: str, zone: str | None, nodes: list[NodeRequest]) -> list[Reservation]:
    """Return each node's reservation, all in one zone. Raises ProvisionError(capacity)."""
    ready = _ready(clients, region, zone)
    zones = sorted({last_part(one.zone) for one in ready})
    for there in zones:
        chosen = _choose([one for one in ready if last_part(one.zone) == there], nodes)
        if chosen is not None:
            return [_reservation(one, clients.project) for one in chosen]
    kinds = ", ".join(sorted({f"{node.machine_type}" for node in nodes}))
    where = zone or region
    raise ProvisionError(
        "capacity",
        f"{len(nodes)} × {kinds} are asked for as a reservation, and no reservation of {clients.project} in {where} "
        "has room for them; `gcloud compute reservations list` shows what there is",
        scope="zone" if zone else "region",
        code=_NO_ROOM,
    )


def _ready(clients: Clients, region: str, zone: str | None) -> list[compute_v1.Reservation]:
    def everywhere() -> list[compute_v1.Reservation]:
        pages = clients.reservations.aggregated_list(project=clients.project, retry=None, timeout=READ_S)
        return [one for _, scope in pages for one in scope.reservations]

    def in_zone(one: str) -> list[compute_v1.Reservation]:
        return list(clients.reservations.list(project=clients.project, zone=one, retry=None, timeout=READ_S))

    found = list_everywhere(clients, f"look for reservations in {zone or region}", everywhere, in_zone, region)
    return [one for one in found if one.status == "READY" and _is_in(last_part(one.zone), region, zone)]


def _is_in(where: str, region: str, zone: str | None) -> bool:
    return where == zone if zone else where.rpartition("-")[0] == region


def _choose(there: list[compute_v1.Reservation], nodes: list[NodeRequest]) -> list[compute_v1.Reservation] | None:
    """Return each node's reservation: the matching one with the least free capacity; None: not all nodes fit."""
    left = {
        one.self_link or one.name: one.specific_reservation.count - one.specific_reservation.in_use_count
        for one in there
    }
    chosen = []
    for node in nodes:
        fitting = [one for one in there if _fits(one, node) and left[one.self_link or one.name] > 0]
        if not fitting:
            return None
        best = min(fitting, key=lambda one: (left[one.self_link or one.name], one.name))
        left[best.self_link or best.name] -= 1
        chosen.append(best)
    return chosen


def _fits(one: compute_v1.Reservation, node: NodeRequest) -> bool:
    properties = one.specific_reservation.instance_properties
    if properties.machine_type != node.machine_type:
        return False
    gpus = attached_gpus(node)
    if gpus is None:
        return True
    reserved = {last_part(gpu.accelerator_type): gpu.accelerator_count for gpu in properties.guest_accelerators}
    return reserved == {gpus["name"]: gpus["count"]}


def _reservation(one: compute_v1.Reservation, project: str) -> Reservation:
    ends = one.deployment_type == "DENSE" or bool(one.delete_at_time)
    return Reservation(
        f"projects/{project}/reservations/{one.name}", last_part(one.zone), one.specific_reservation_required, ends
    )
