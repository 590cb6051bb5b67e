"""A machine of EC2: it is terminated by powering itself off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - also read by Pythons that are too old to run it

if TYPE_CHECKING:
    from .bucket_s3 import metadata
    from .common import goes_down_to, limit_life, power_off
else:
    from bucket_s3 import metadata
    from common import goes_down_to, limit_life, power_off


class Host:
    """What the bootstrap must know of, and can do to, the machine it runs on."""

    STOPPED = 0  # exit code where SIGTERM comes before the agent has begun: the unit has not failed then

    PATIENCE_S = 300.0  # a role that was made a minute ago is not known everywhere yet, a network may come late

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def name(self) -> str:
        return metadata("instance-id")

    def node(self) -> str:
        return str(self.record["node"])

    def address(self) -> str | None:
        """By which other nodes reach this one; None: the agent finds out."""
        return None

    def environment(self) -> dict[str, str]:
        """Of the agent, and of the program."""
        told = {"HOME": "/root", "AWS_DEFAULT_REGION": self.record["region"]}
        return told | {"AWS_ENDPOINT_URL": self.record["endpoint"]} if self.record["endpoint"] else told

    def limit_life(self, left_s: float) -> None:
        limit_life(left_s)

    def comes_back(self) -> bool:
        """Asked when the machine goes down."""
        return goes_down_to() == "reboot"

    def end(self, going_down: bool, _code: Callable[[], int], _has_ended: Callable[[str], bool]) -> bool:
        """End the machine of a node that has ended; return whether it ends. EC2 terminates it: it was launched so."""
        return bool(going_down and goes_down_to()) or power_off()
