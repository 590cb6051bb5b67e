"""Host module for EC2 machines, which terminate when they power off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - must compile in older Pythons, too

if TYPE_CHECKING:
    from .bucket_s3 import metadata
    from .common import pending_shutdown, power_off, schedule_shutdown
else:
    from bucket_s3 import metadata
    from common import pending_shutdown, power_off, schedule_shutdown


class Host:
    """Machine on which the bootstrap runs: its identity, environment and end."""

    STOPPED = 0  # exit code if SIGTERM comes before the agent starts: the unit must not fail

    RETRY_TIMEOUT_S = 300.0  # a new role takes time to propagate, and the network may come up late

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def name(self) -> str:
        return metadata("instance-id")

    def node(self) -> str:
        return str(self.record["node"])

    def address(self) -> str | None:
        """Return the address at which other nodes reach this one; None: the agent determines it."""
        return None

    def environment(self) -> dict[str, str]:
        """Return environment variables of the agent and the program."""
        variables = {"HOME": "/root", "AWS_DEFAULT_REGION": self.record["region"]}
        return variables | {"AWS_ENDPOINT_URL": self.record["endpoint"]} if self.record["endpoint"] else variables

    def schedule_shutdown(self, left_s: float) -> None:
        schedule_shutdown(left_s)

    def comes_back(self) -> bool:
        """Return whether the machine that goes down will boot again."""
        return pending_shutdown() == "reboot"

    def end(self, going_down: bool, _code: Callable[[], int], _has_ended: Callable[[str], bool]) -> bool:
        """Power off the machine, whose node has ended; return whether that succeeded. Its launch settings make EC2
        terminate it then."""
        return bool(going_down and pending_shutdown()) or power_off()
