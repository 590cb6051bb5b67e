"""Test client for custom jobs of the stand-in for Google Cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..faults import Control

SERVICE = "aiplatform"
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class ContainerState:
    """State of a replica."""

    replica: str
    """Name, such as `workerpool0-0`."""
    root: str
    """Folder of its disk."""
    code: int | None
    running: bool
    trouble: list[str]
    """Problems that would also occur in a real container."""
    console: str


@dataclass(frozen=True)
class JobState:
    """State of a custom job."""

    name: str
    id: str
    region: str
    state: str
    """State without `JOB_STATE_`."""
    market: str
    labels: dict[str, str]
    error: str
    replicas: int
    created: float
    """Monotonic time of its creation, by the stand-in's clock."""
    ended: float | None
    """Monotonic time when its last process ended; None: it is alive."""
    trouble: list[str]
    """Errors of the stand-in."""
    containers: list[ContainerState]
    """Containers; empty before they start, and where containers do not run."""

    @property
    def alive(self) -> bool:
        return self.ended is None


class VertexControl:
    """Control of custom jobs in the stand-in's only project. `job` is a job's id."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def set_capacity(self, machine_type: str, region: str, market: str, places: int | None) -> None:
        """Limit the concurrent machines of a market (`spot`, `on-demand`, `flex-start`, `reservation`); None:
        unlimited."""
        self._do("set_capacity", machine_type=machine_type, region=region, market=market, places=places)

    def set_quota(self, region: str, metric: str, limit: int) -> None:
        """Set a quota by metric, such as `aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus`."""
        self._do("set_quota", region=region, metric=metric, limit=limit)

    def withdraw(self, machine_type: str, region: str) -> None:
        """Stop offering a machine type in a region."""
        self._do("withdraw", machine_type=machine_type, region=region)

    def set_pending(self, seconds: float) -> None:
        """Set for how many seconds jobs are PENDING before capacity is checked."""
        self._do("set_pending", seconds=seconds)

    def set_lag(self, seconds: float) -> None:
        """Set for how many seconds a new job is missing in lists."""
        self._do("set_lag", seconds=seconds)

    def preempt(self, job: str, replica: str = "workerpool0-0", seconds: float = 30.0) -> None:
        """Send SIGTERM to one replica; after `seconds` it is killed, and the job fails."""
        self._do("preempt", job=job, replica=replica, seconds=seconds)

    def fail_inside(self, job: str) -> None:
        """Simulate an internal error of the service: the job's machines end at once."""
        self._do("fail_inside", job=job)

    def finish(self, job: str, code: int = 0) -> None:
        """End the job as if its primary replica had this exit code, for jobs whose containers do not run."""
        self._do("finish", job=job, code=code)

    def jobs(self, **where: Any) -> list[JobState]:
        """Return all jobs except deleted ones, oldest first; `where` compares fields."""
        result = [
            JobState(**{**one, "containers": [ContainerState(**c) for c in one["containers"]]})
            for one in self._do("jobs")
        ]
        return [one for one in result if all(getattr(one, name) == value for name, value in where.items())]

    def _do(self, verb: str, **arguments: Any) -> Any:
        return self._control.do(f"{SERVICE}/{verb}", **arguments)
