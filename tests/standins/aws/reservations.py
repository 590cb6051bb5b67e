"""Capacity reservations and Capacity Blocks, which tests create and the product describes and launches into.

Fields follow botocore's service model (CapacityReservation). Error codes follow the EC2 API reference, not verified
against the service: InvalidCapacityReservationId.NotFound, ReservationCapacityExceeded.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from ..faults import Call
from . import moto_side
from .answers import Answer, RefusedError, ec2_answer
from .calls import filters, numbered

_TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"


@dataclass
class Reservation:
    """One reservation of the account; `end` makes it a Capacity Block."""

    identity: str
    machine_type: str
    zone: str
    places: int
    start: float
    end: float | None

    @property
    def region(self) -> str:
        return self.zone[:-1]

    @property
    def state(self) -> str:
        now = time.time()
        if now < self.start:
            return "scheduled"
        return "expired" if self.end is not None and now > self.end else "active"


class Reservations:
    """The account's reservations."""

    def __init__(self) -> None:
        self._known: dict[str, Reservation] = {}
        self._used: dict[str, str] = {}
        """instance -> reservation"""

    def make(self, machine_type: str, zone: str, places: int, *, start: float, end: float | None) -> str:
        identity = f"cr-{uuid.uuid4().hex[:17]}"
        self._known[identity] = Reservation(identity, machine_type, zone, places, start, end)
        return identity

    def extend(self, identity: str, end: float) -> None:
        self._known[identity].end = end

    def target(self, call: Call, there: list[Any]) -> Reservation | None:
        """Return the reservation that RunInstances names, checked for this launch. Raises RefusedError."""
        identity = call.params.get(_TARGET)
        if identity is None:
            return None
        found = self._known.get(identity)
        if found is None or found.region != call.region:
            raise RefusedError(
                "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{identity}' does not exist"
            )
        if (found.machine_type, found.zone) != (call.params.get("InstanceType"), call.zone):
            raise RefusedError("InvalidParameterValue", f"{identity} is of another instance type or Availability Zone")
        is_block = call.params.get("InstanceMarketOptions.MarketType") == "capacity-block"
        if is_block != (found.end is not None):
            raise RefusedError("InvalidParameterCombination", f"{identity}: market type and reservation do not fit")
        if found.state != "active" or self._free(found, there) < int(call.params.get("MinCount", "1")):
            raise RefusedError("ReservationCapacityExceeded", f"{identity} has not enough capacity", 400)
        return found

    def use(self, instance_id: str, reservation: Reservation) -> None:
        self._used[instance_id] = reservation.identity

    def describe(self, call: Call, there: list[Any]) -> Answer:
        asked = set(numbered(call.params, "CapacityReservationId"))
        items = "".join(
            f"<item>{self._xml(one, there)}</item>"
            for one in self._known.values()
            if one.region == call.region
            and (not asked or one.identity in asked)
            and all(self._passes(one, name, values) for name, values in filters(call.params))
        )
        return ec2_answer(call.action, f"<capacityReservationSet>{items}</capacityReservationSet>")

    def _passes(self, one: Reservation, name: str, values: list[str]) -> bool:
        known = {"instance-type": one.machine_type, "state": one.state, "availability-zone": one.zone}
        if name not in known:
            raise RefusedError("StandinNotImplemented", f"filter {name} of DescribeCapacityReservations", 501)
        return known[name] in values

    def _free(self, one: Reservation, there: list[Any]) -> int:
        return one.places - sum(self._used.get(instance.id) == one.identity for instance in there)

    def _xml(self, one: Reservation, there: list[Any]) -> str:
        fields = {
            "capacityReservationId": one.identity,
            "ownerId": moto_side.ACCOUNT,
            "availabilityZone": one.zone,
            "availabilityZoneId": moto_side.zone_id(one.zone),
            "instanceType": one.machine_type,
            "instancePlatform": "Linux/UNIX",
            "tenancy": "default",
            "totalInstanceCount": one.places,
            "availableInstanceCount": self._free(one, there),
            "state": one.state,
            "startDate": _stamp(one.start),
            "endDateType": "unlimited" if one.end is None else "limited",
            "instanceMatchCriteria": "targeted",
            "reservationType": "default" if one.end is None else "capacity-block",
        }
        if one.end is not None:
            fields["endDate"] = _stamp(one.end)
        return "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())


def _stamp(epoch: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(epoch))
