"""Capacity reservations: assignment of machines, and instance views.

They follow "On-demand capacity reservation", "Overallocate capacity reservation" and the REST reference: a machine
names a group, in which the service finds the reservation of its size and zone; when that is full, the machine uses
ordinary capacity. Error messages are not verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .arm import RefusedError, Response, answer, key, last
from .ask import ApiRequest
from .capacity import Shape
from .world import World

GROUP = "Microsoft.Compute/capacityReservationGroups"
KIND = f"{GROUP}/capacityReservations"


def get(ask: ApiRequest) -> Response:
    found = ask.found()
    if ask.request.query.get("$expand", "").lower() != "instanceview":
        return answer(found)
    shown = {**found["properties"], "instanceView": _view(ask.world, found)}
    return answer({**found, "properties": shown})


def listed(ask: ApiRequest) -> Response:
    """List a group's reservations, without their usage."""
    return answer({"value": list(_of_group(ask.world, ask.found()["id"]))})


def find(world: World, group: str, size: str, zone: str) -> str:
    """Return the id of the group's reservation for this size and zone. Raises RefusedError if there is none."""
    for one in _of_group(world, group):
        if one["sku"]["name"].lower() == size.lower() and "".join(one.get("zones") or ()) == zone:
            return str(one["id"])
    where = f" in zone {zone}" if zone else " without a zone"
    text = f"The capacity reservation group '{last(group)}' has no capacity reservation of the VM size {size}{where}."
    raise RefusedError("OperationNotAllowed", 409, text, target="capacityReservation")


def has_room(world: World, shape: Shape, there: list[Shape]) -> bool:
    """Return whether the machine's reservation has a free place."""
    found = world.find(shape.reservation)
    used = sum(key(one.reservation) == key(shape.reservation) for one in there)
    return found is not None and used < int(found["sku"]["capacity"])


def _of_group(world: World, group: str) -> Iterator[dict[str, Any]]:
    return (one for one in world.within(group) if one["type"].lower() == KIND.lower())


def _view(world: World, found: dict[str, Any]) -> dict[str, Any]:
    done = {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}
    inside = [vm for vm in world.vms if vm.is_placed and key(vm.shape.reservation) == key(found["id"])]
    return {
        "utilizationInfo": {
            "currentCapacity": int(found["sku"]["capacity"]),
            "virtualMachinesAllocated": [{"id": vm.id} for vm in inside],
        },
        "statuses": [done],
    }
