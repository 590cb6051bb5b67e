"""Capacity reservations of the subscription.

The market `reservation` launches into existing reservations with capacity for all machines, in one zone, or without a
zone where the machines have none. Users create reservations themselves, since they bill while they exist. A machine
names a reservation's group; Azure finds the group's reservation for the machine's size and zone. If a group has no
capacity left, Azure would use capacity outside it, so free capacity is checked first. In a race for it, the loser gets
the same machine at the same price. Reservations include their quota, and do not support Spot machines, availability
sets or proximity placement groups. Source: Azure's documentation, "On-demand capacity reservation" and "Overallocate
capacity reservation"; for future reservations, the REST reference of Capacity Reservations (`scheduleProfile`,
`reservationStateInfo`).
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ...base import ProvisionError
from ...shared.clock import Clock
from ..clients import Clients, Json, answer_of, as_dicts
from ..names import part_of

_NO_ROOM = "InsufficientReservedCapacity"
_LIVE = frozenset({"", "Live", "PartiallyFulfilled"})
"""States in which a future reservation is usable; "": not a future reservation."""


class Reservation(NamedTuple):
    """Capacity reservation of the subscription, for one machine size."""

    group: str
    """Resource id of its group, which a machine names."""
    name: str
    size: str
    zone: str | None
    """Zone; None: only for machines without a zone."""
    free: int
    """Number of machines that it still has capacity for."""
    begins: float | None
    """Start in epoch seconds; None: it is usable now."""


class Reserved(NamedTuple):
    """Zone and reservation groups for a launch."""

    zone: str | None
    groups: Mapping[str, str]
    """Machine type -> resource id of its capacity reservation group."""


def find_reservations(
    clients: Clients, region: str, zones: Sequence[str | None], machine_types: Sequence[str]
) -> Reserved:
    """Return reservation groups with capacity for these machines, all in one zone or without a zone.

    `machine_types`: one entry for each machine. `zones`: allowed zones, with None for no zone; (): any. It takes one
    call, one for each group of the region, and one for each reservation of these sizes. Raises
    ProvisionError(capacity).
    """
    wanted = Counter(machine_types)
    ours = [one for one in _reservations(clients, region, frozenset(wanted)) if not zones or one.zone in zones]
    for zone in sorted({one.zone for one in ours}, key=lambda zone: (zone is None, zone or "")):
        chosen = [_choose(ours, zone, size, machines) for size, machines in wanted.items()]
        found = [one for one in chosen if one is not None]
        if len(found) == len(chosen):
            return Reserved(zone, {size: one.group for size, one in zip(wanted, found, strict=True)})
    raise _none(ours, region, zones, wanted, clients.clock)


def _choose(ours: Sequence[Reservation], zone: str | None, size: str, machines: int) -> Reservation | None:
    """Return the reservation with the least capacity that suffices; None: there is none."""
    fitting = [
        one
        for one in ours
        if one.zone == zone and one.size.lower() == size.lower() and one.begins is None and one.free >= machines
    ]
    return min(fitting, key=lambda one: (one.free, one.group, one.name), default=None)


def _none(
    ours: Sequence[Reservation],
    region: str,
    zones: Sequence[str | None],
    wanted: Mapping[str, int],
    clock: Clock,
) -> ProvisionError:
    """Return the error to raise if no reservation fits; it names the start of the next one, if any."""
    asked = " + ".join(f"{machines} × {size}" for size, machines in wanted.items())
    where = f"zone {zones[0]} of {region}" if zones and zones[0] else region
    starts = [one.begins for one in ours if one.begins is not None]
    if starts:
        first = datetime.datetime.fromtimestamp(min(starts), datetime.UTC)
        return ProvisionError(
            "capacity",
            f"the reservation of {asked} in {where} begins at {first:%Y-%m-%d %H:%M} UTC",
            scope="region",
            code=_NO_ROOM,
            retry_after=max(0.0, min(starts) - clock.now()),
        )
    there = ", ".join(sorted(f"{one.name} ({max(one.free, 0)} {one.size} free)" for one in ours))
    have = f"have no room for them: {there}" if there else "are none of these sizes"
    return ProvisionError(
        "capacity",
        f"{asked} are asked for as a reservation, and the subscription's capacity reservations in {where} {have}; "
        "`az capacity reservation group list` shows what there is",
        scope="region",
        code=_NO_ROOM,
    )


# --- calls ------------------------------------------------------------------------------------------------------------


def _reservations(clients: Clients, region: str, sizes: frozenset[str]) -> Iterator[Reservation]:
    """Yield the reservations of these sizes in the region. Raises ProvisionError."""
    doing = f"look for capacity reservations in {region}"
    compute, names = clients.compute, {size.lower() for size in sizes}
    groups = clients.ask(doing, lambda: as_dicts(compute.capacity_reservation_groups.list_by_subscription()))
    for group in groups:
        if str(group.get("location", "")).lower() != region.lower():
            continue
        where, name = part_of(str(group["id"]), "resourceGroups"), str(group["name"])
        for listed in clients.ask(doing, lambda: as_dicts(_list(clients, where, name))):  # noqa: B023 - called immediately
            if str((listed.get("sku") or {}).get("name", "")).lower() in names:
                yield _reservation(str(group["id"]), _look(clients, where, name, str(listed["name"]), doing), clients)


def _list(clients: Clients, where: str, group: str) -> Any:  # the SDK's pages
    return clients.compute.capacity_reservations.list_by_capacity_reservation_group(where, group)


def _look(clients: Clients, where: str, group: str, name: str, doing: str) -> Json:
    """Return a reservation with its usage, which the list does not contain."""
    get = clients.compute.capacity_reservations.get
    return clients.ask(doing, lambda: cast("Json", get(where, group, name, expand="instanceView", cls=answer_of)))


def _reservation(group: str, found: Json, clients: Clients) -> Reservation:
    """Parse a reservation from the API's response."""
    inside, sku = found.get("properties") or {}, found.get("sku") or {}
    view = inside.get("instanceView") or {}
    used = view.get("utilizationInfo") or {}
    capacity = used.get("currentCapacity")  # capacity that Azure has provided, of that requested
    return Reservation(
        group=group,
        name=str(found["name"]),
        size=str(sku.get("name", "")),
        zone=next((str(zone) for zone in found.get("zones") or ()), None),
        free=int(sku.get("capacity", 0) if capacity is None else capacity)
        - len(used.get("virtualMachinesAllocated") or ()),
        begins=_begins(inside, view, clients.clock),
    )


def _begins(inside: Json, view: Json, clock: Clock) -> float | None:
    """Return the start of a future reservation in epoch seconds; None: usable now."""
    start = str((inside.get("scheduleProfile") or {}).get("start") or "")
    if not start:
        return None
    state = str((view.get("reservationStateInfo") or {}).get("reservationState") or "")
    moment = datetime.datetime.fromisoformat(start)
    begins = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    return None if begins <= clock.now() and state in _LIVE else max(begins, clock.now())
