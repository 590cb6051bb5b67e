"""A test's hold on the AWS stand-in, wherever it runs: the verbs of every stand-in, and AWS's own."""

from __future__ import annotations

from typing import Any

from ..faults import Control
from .account import Told

KEY = "AKIACLOUDGPUSUBMITTE"
"""The submitter's access key: calls of machines are known by another."""


class AwsControl(Control):
    """Places, quotas and prices are of the one account that there is."""

    def set_capacity(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        """At most so many machines at once of a type, zone and market (`spot`, `on-demand`); None: any number."""
        self.do("set_capacity", machine_type=machine_type, zone=zone, market=market, places=places)

    def set_quota(self, region: str, code: str, vcpus: float) -> None:
        """By its code, such as L-DB2E81BA."""
        self.do("set_quota", region=region, code=code, vcpus=vcpus)

    def set_price(self, machine_type: str, place: str, amount: str) -> None:
        """US dollars an hour: of a region on-demand, of a zone on Spot."""
        self.do("set_price", machine_type=machine_type, place=place, amount=amount)

    def reserve(
        self, machine_type: str, zone: str, places: int, *, start_s: float = 0.0, end_s: float | None = None
    ) -> str:
        """A capacity reservation that begins in so many seconds; with an end it is a Capacity Block. Its id."""
        told = {"machine_type": machine_type, "zone": zone, "places": places, "start_s": start_s, "end_s": end_s}
        return str(self.do("reserve", **told))

    def extend_block(self, reservation: str, end_s: float) -> None:
        """It ends in so many seconds: later than it would have, or sooner, as if time had passed."""
        self.do("extend_block", reservation=reservation, end_s=end_s)

    def set_lag(self, seconds: float, *, profiles: float = 0.0) -> None:
        """How long new instances are not found, and new instance profiles unknown to EC2."""
        self.do("set_lag", seconds=seconds, profiles=profiles)

    def set_stopping(self, seconds: float) -> None:
        """How long instances are shutting-down before they are terminated."""
        self.do("set_stopping", seconds=seconds)

    def throttle(self, on: bool = True) -> None:
        """Calls are counted by token buckets from now on, in real time."""
        self.do("throttle", on=on)

    def doom(self, code: str, message: str = "", *, zone: str = "", times: int = 1, after_s: float = 0.0) -> None:
        """The next instances (in this zone) end while they start, with this StateReason."""
        self.do("doom", code=code, message=message, zone=zone, times=times, after_s=after_s)

    def enforce(self, on: bool = True) -> None:
        """Signatures are verified and IAM policies obeyed from now on."""
        self.do("enforce", on=on)

    def belong(self, key: str, account_id: str) -> None:
        """This access key is of another account: it sees none of the machines, and buckets as that account may."""
        self.do("belong", key=key, account_id=account_id)

    def revoke(self, key: str) -> None:
        """This access key has expired: every call with it is refused."""
        self.do("revoke", key=key)

    def interrupt(self, instance_id: str, seconds: float = 120.0) -> None:
        """Spot notice now, termination after so long."""
        self.do("interrupt", instance_id=instance_id, seconds=seconds)

    def recommend_rebalance(self, instance_id: str) -> None:
        self.do("recommend_rebalance", instance_id=instance_id)

    def schedule_event(self, instance_id: str, event: dict[str, Any]) -> None:
        """`{"Code": "system-reboot", "EventId": …, "NotBefore": "21 Jan 2027 09:00:43 GMT", "State": "active"}`."""
        self.do("schedule_event", instance_id=instance_id, event=event)

    def reboot(self, instance_id: str) -> None:
        """Everything on it is killed; it boots again with its disk."""
        self.do("reboot", instance_id=instance_id)

    def hurry(self) -> None:
        """What would be done later, such as after a notice, is done now: so a test may look at what does not last, as
        long as it takes."""
        self.do("hurry")

    def crash(self, instance_id: str) -> None:
        """It is gone, without notice."""
        self.do("crash", instance_id=instance_id)

    def forget_ended(self) -> None:
        """EC2 forgets all instances that have ended, as it does about an hour later."""
        self.do("forget_ended")

    def instances(self, **where: Any) -> list[Told]:
        """All ever launched; `where` compares fields: `instances(running=True, zone="us-east-1b")`."""
        told = [Told(**value) for value in self.do("instances")]
        return [one for one in told if all(getattr(one, name) == value for name, value in where.items())]


def environ(url: str, region: str = "us-east-1") -> dict[str, str]:
    """What points any client of AWS's to the stand-in at this URL, as the submitter."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        # The tester's own settings must not reach the stand-in, nor this get mixed with them.
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
