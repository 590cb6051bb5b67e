"""Spot requests, which RunInstances with MarketType=spot creates beside the instance.

They follow the EC2 user guide's "Spot request status" and "Spot Instance interruptions": a one-time request is active
and fulfilled while its instance runs, marked-for-termination between notice and end, then closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import moto_side

NO_CAPACITY = "instance-terminated-no-capacity"
BY_USER = "instance-terminated-by-user"
MARKED = "marked-for-termination"
_MESSAGES = {
    "fulfilled": "Your Spot request is fulfilled.",
    MARKED: "Your Spot instance is marked for termination.",
    NO_CAPACITY: "Your Spot instance was terminated because there is no Spot capacity available that matches your "
    "request.",
    BY_USER: "Your Spot instance was terminated by you.",
}


def open_request(instance: Any, region: str, tags: Mapping[str, str], max_price: str) -> Any:
    """Add a fulfilled request to moto's table, so that it can be described and cancelled; return it."""
    from moto.ec2.models.spot_requests import LaunchSpecification, SpotInstanceRequest
    from moto.ec2.utils import random_spot_request_id

    class Request(SpotInstanceRequest):
        """Spot request that did not launch its instance itself."""

        def __init__(self) -> None:
            self.ec2_backend, self.id, self.instance = instance.ec2_backend, random_spot_request_id(), instance
            self.launch_specification = LaunchSpecification(
                kernel_id=None,
                ramdisk_id=None,
                image_id=instance.image_id,
                key_name=instance.key_name,
                instance_type=instance.instance_type,
                placement=instance.availability_zone,
                monitored=False,
                subnet_id=instance.subnet_id,
            )
            self.state, self.type, self.price = "active", "one-time", max_price
            self.valid_from = self.valid_until = self.launch_group = self.availability_zone_group = None
            self.instance_interruption_behaviour = "terminate"
            self.launched_availability_zone = instance.availability_zone
            self.spot_fleet_id = self.launch_spec = self.user_data = None
            self.set_status("fulfilled")
            self.add_tags(dict(tags))

        def set_status(self, code: str, state: str = "active") -> None:
            self.state, self._status_code, self.status_message = state, code, _MESSAGES[code]

    request = Request()
    moto_side.ec2(region).spot_instance_requests[request.id] = request
    instance.spot_instance_request_id = request.id
    return request


def request_of(instance: Any) -> Any:
    """Return the instance's request, or None."""
    identity = getattr(instance, "spot_instance_request_id", None)
    return instance.ec2_backend.spot_instance_requests.get(identity) if identity else None
