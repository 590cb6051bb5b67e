"""Capacity reservations: Capacity Blocks for ML, and On-Demand Capacity Reservations.

The market `reservation` launches into a reservation of the account that is active in the zone and has room for all
machines of a type. Users buy reservations themselves, since they are prepaid and not refundable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ....protocol.fleet.records import BLOCK_ENDS_EARLY_S
from ...base import ProvisionError
from ...shared.clock import Clock

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import CapacityReservationTypeDef

_COMING = frozenset({"pending", "scheduled", "payment-pending"})


class Reservation(NamedTuple):
    """A reservation to launch into."""

    reservation: str
    is_block: bool
    """True for a Capacity Block, which has a separate market type and an end."""
    end: float | None
    """End in epoch seconds; EC2 terminates a block's machines from BLOCK_ENDS_EARLY_S before it. None: no end."""

    @property
    def machines_end(self) -> float | None:
        """Return the epoch seconds at which EC2 begins to terminate a block's machines.

        None: EC2 does not terminate them, since the reservation is not a block or has no end."""
        return self.end - BLOCK_ENDS_EARLY_S if self.is_block and self.end is not None else None

    def is_ending(self, now: float) -> bool:
        return self.machines_end is not None and self.machines_end <= now


def find_reservation(
    ec2: EC2Client, machine_type: str, zone: str | None, machines: int, clock: Clock
) -> tuple[Reservation, str]:
    """Return the reservation with the least free capacity that holds all machines, and its zone's id.

    Blocks whose machines are being terminated are left out. Raises ProvisionError(capacity) if there is none."""
    everywhere = _all(ec2, machine_type)
    ours = [one for one in everywhere if zone in (None, one.get("AvailabilityZoneId"), one.get("AvailabilityZone"))]
    active = [one for one in ours if one["State"] == "active" and not _read(one).is_ending(clock.now())]
    fitting = [one for one in active if one["AvailableInstanceCount"] >= machines]
    if not fitting:
        raise _none(ours, active, machine_type, zone, machines=machines, clock=clock)
    best = min(fitting, key=lambda one: (one["AvailableInstanceCount"], one["CapacityReservationId"]))
    return _read(best), best.get("AvailabilityZoneId", best["AvailabilityZone"])


def get_reservation(ec2: EC2Client, machine_type: str, reservation: str) -> Reservation | None:
    """Return a reservation by id, as it is now: a Capacity Block may have been extended. None: it is not active."""
    there = (one for one in _all(ec2, machine_type) if one["CapacityReservationId"] == reservation)
    return next((_read(one) for one in there if one["State"] == "active"), None)


def _all(ec2: EC2Client, machine_type: str) -> list[CapacityReservationTypeDef]:
    pages = ec2.get_paginator("describe_capacity_reservations").paginate(
        Filters=[{"Name": "instance-type", "Values": [machine_type]}]
    )
    return [found for page in pages for found in page["CapacityReservations"]]


def _read(one: CapacityReservationTypeDef) -> Reservation:
    end = one.get("EndDate")
    return Reservation(
        one["CapacityReservationId"],
        one.get("ReservationType") == "capacity-block",
        None if end is None else end.timestamp(),
    )


def _none(
    ours: list[CapacityReservationTypeDef],
    active: list[CapacityReservationTypeDef],
    machine_type: str,
    zone: str | None,
    *,
    machines: int,
    clock: Clock,
) -> ProvisionError:
    """Return the error to raise if no reservation fits; it names the start of the next one, if any."""
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
    free = max((one["AvailableInstanceCount"] for one in active), default=None)
    have = "the account has no active reservation" if free is None else f"no reservation has more than {free} free"
    return ProvisionError(
        "capacity",
        f"{machines} × {machine_type}{where} are asked for as a reservation, and {have}; "
        "`aws ec2 describe-capacity-block-offerings` shows what can be bought",
        code="InsufficientReservedInstanceCapacity",
    )
