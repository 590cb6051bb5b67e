"""Test client of the AWS stand-in: the common control verbs and AWS's."""

from __future__ import annotations

from typing import Any

from ..faults import Control
from .account import InstanceState

KEY = "AKIACLOUDGPUSUBMITTE"
"""The submitter's access key; machines use other keys."""


class AwsControl(Control):
    """Control of the stand-in's only account."""

    def set_capacity(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        """Limit the concurrent machines of a type, zone and market (`spot`, `on-demand`); None: unlimited."""
        self.do("set_capacity", machine_type=machine_type, zone=zone, market=market, places=places)

    def set_quota(self, region: str, code: str, vcpus: float) -> None:
        """Set a quota by its code, such as L-DB2E81BA."""
        self.do("set_quota", region=region, code=code, vcpus=vcpus)

    def set_price(self, machine_type: str, place: str, amount: str) -> None:
        """Set a price in US dollars per hour: on-demand for a region, Spot for a zone."""
        self.do("set_price", machine_type=machine_type, place=place, amount=amount)

    def reserve(
        self, machine_type: str, zone: str, places: int, *, start_s: float = 0.0, end_s: float | None = None
    ) -> str:
        """Create a capacity reservation that begins in `start_s` seconds; return its id. With an end it is a Capacity
        Block."""
        result = {"machine_type": machine_type, "zone": zone, "places": places, "start_s": start_s, "end_s": end_s}
        return str(self.do("reserve", **result))

    def extend_block(self, reservation: str, end_s: float) -> None:
        """Make a Capacity Block end in `end_s` seconds, later or earlier than planned."""
        self.do("extend_block", reservation=reservation, end_s=end_s)

    def set_lag(self, seconds: float, *, profiles: float = 0.0) -> None:
        """Set for how many seconds new instances are not visible, and new instance profiles unknown to EC2."""
        self.do("set_lag", seconds=seconds, profiles=profiles)

    def set_stopping(self, seconds: float) -> None:
        """Set for how many seconds instances are shutting-down before they are terminated."""
        self.do("set_stopping", seconds=seconds)

    def throttle(self, on: bool = True) -> None:
        """Enable throttling by token buckets, in real time."""
        self.do("throttle", on=on)

    def fail_launches(
        self, code: str, message: str = "", *, zone: str = "", times: int = 1, after_s: float = 0.0
    ) -> None:
        """Make the next instances (in this zone) fail during startup, with this StateReason."""
        self.do("fail_launches", code=code, message=message, zone=zone, times=times, after_s=after_s)

    def enforce(self, on: bool = True) -> None:
        """Verify signatures and enforce IAM policies."""
        self.do("enforce", on=on)

    def assign_key(self, key: str, account_id: str) -> None:
        """Assign this access key to a different account, which sees no machines and has that account's access to
        buckets."""
        self.do("assign_key", key=key, account_id=account_id)

    def revoke(self, key: str) -> None:
        """Expire this access key: every call with it is refused."""
        self.do("revoke", key=key)

    def interrupt(self, instance_id: str, seconds: float = 120.0) -> None:
        """Send a Spot interruption notice; the instance is terminated after `seconds`."""
        self.do("interrupt", instance_id=instance_id, seconds=seconds)

    def recommend_rebalance(self, instance_id: str) -> None:
        self.do("recommend_rebalance", instance_id=instance_id)

    def schedule_event(self, instance_id: str, event: dict[str, Any]) -> None:
        """Publish `{"Code": "system-reboot", "EventId": …, "NotBefore": "21 Jan 2027 09:00:43 GMT", "State":
        "active"}`."""
        self.do("schedule_event", instance_id=instance_id, event=event)

    def reboot(self, instance_id: str) -> None:
        """Kill all processes of the machine and boot it again with its disk."""
        self.do("reboot", instance_id=instance_id)

    def run_delayed(self) -> None:
        """Run all delayed actions now, such as the end after a notice, so that a test can first check the transient
        state without a race."""
        self.do("run_delayed")

    def crash(self, instance_id: str) -> None:
        """End the instance without notice."""
        self.do("crash", instance_id=instance_id)

    def forget_ended(self) -> None:
        """Forget all ended instances, as EC2 does after about an hour."""
        self.do("forget_ended")

    def instances(self, **where: Any) -> list[InstanceState]:
        """Return all instances ever launched; `where` compares fields: `instances(running=True, zone="us-east-1b")`."""
        result = [InstanceState(**value) for value in self.do("instances")]
        return [one for one in result if all(getattr(one, name) == value for name, value in where.items())]


def environ(url: str, region: str = "us-east-1") -> dict[str, str]:
    """Return the environment that points AWS clients to the stand-in at this URL, as the submitter."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        # Keeps the tester's own settings away from the stand-in.
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
