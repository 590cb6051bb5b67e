"""Capacity that is paid for already: Capacity Blocks for ML, and On-Demand Capacity Reservations.

The market `reservation` launches into one of the account's own that is active in the zone and has room for all
machines of a type; buying one stays with the user: it is paid in advance and cannot be given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..base import ProvisionError
from ..clock import Clock

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import CapacityReservationTypeDef

_COMING = frozenset({"pending", "scheduled", "payment-pending"})


class Reservation(NamedTuple):
    """One to launch into."""

    reservation: str
    is_block: bool
    """A Capacity Block: it has a market type of its own, and an end."""
    end: float | None
    """Epoch seconds; EC2 begins to end a block's machines 30 minutes before. None: none is set."""


def find_reservation(
    ec2: EC2Client, machine_type: str, zone: str | None, machines: int, clock: Clock
) -> tuple[Reservation, str]:
    """The one with the least room to spare that holds all machines, and its zone's id. Raises ProvisionError."""
    ours = [
        found
        for page in ec2.get_paginator("describe_capacity_reservations").paginate(
            Filters=[{"Name": "instance-type", "Values": [machine_type]}]
        )
        for found in page["CapacityReservations"]
        if zone in (None, found.get("AvailabilityZoneId"), found.get("AvailabilityZone"))
    ]
    active = [one for one in ours if one["State"] == "active" and one["AvailableInstanceCount"] >= machines]
    if not active:
        raise _none(ours, machine_type, zone, machines, clock)
    best = min(active, key=lambda one: (one["AvailableInstanceCount"], one["CapacityReservationId"]))
    end = best.get("EndDate")
    reservation = Reservation(
        best["CapacityReservationId"],
        best.get("ReservationType") == "capacity-block",
        None if end is None else end.timestamp(),
    )
    return reservation, best.get("AvailabilityZoneId", best["AvailabilityZone"])


def _none(
    ours: list[CapacityReservationTypeDef], machine_type: str, zone: str | None, machines: int, clock: Clock
) -> ProvisionError:
    """Why none will do, and when one will."""
    where = f" in {zone}" if zone else ""
    starts = [one["StartDate"] for one in ours if one["State"] in _COMING and "StartDate" in one]
    if starts:
        first = min(starts)
        return ProvisionError(
            "capacity",
            f"the reservation of {machine_type}{where} begins at {first:%Y-%m-%d %H:%M} UTC",
            code="InsufficientReservedInstanceCapacity",
            retry_after=max(0.0, first.timestamp() - clock.now()),
        )
    free = max((one["AvailableInstanceCount"] for one in ours if one["State"] == "active"), default=None)
    have = "the account has no active reservation" if free is None else f"no reservation has more than {free} free"
    return ProvisionError(
        "capacity",
        f"{machines} × {machine_type}{where} are asked for as a reservation, and {have}; "
        "`aws ec2 describe-capacity-block-offerings` shows what can be bought",
        code="InsufficientReservedInstanceCapacity",
    )
