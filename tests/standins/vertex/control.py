"""A test's hold on the custom jobs of the stand-in for Google Cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..faults import Control

SERVICE = "aiplatform"
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class ToldContainer:
    """A replica."""

    replica: str
    """`workerpool0-0`."""
    root: str
    """The folder that is its disk."""
    code: int | None
    running: bool
    trouble: list[str]
    """What would have gone wrong in a real container."""
    console: str


@dataclass(frozen=True)
class ToldJob:
    """A custom job."""

    name: str
    id: str
    region: str
    state: str
    """Without `JOB_STATE_`."""
    market: str
    labels: dict[str, str]
    error: str
    replicas: int
    created: float
    """Steady time of the stand-in's computer."""
    ended: float | None
    """Likewise: since when nothing of it runs."""
    trouble: list[str]
    """Bugs of the stand-in."""
    containers: list[ToldContainer]
    """Empty before they start, and where containers do not run."""

    @property
    def alive(self) -> bool:
        return self.ended is None


class VertexControl:
    """Places and quotas are of the one project that there is. `job` is a job's id."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def set_capacity(self, machine_type: str, region: str, market: str, places: int | None) -> None:
        """At most so many machines at once (`spot`, `on-demand`, `flex-start`, `reservation`); None: any number."""
        self._do("set_capacity", machine_type=machine_type, region=region, market=market, places=places)

    def set_quota(self, region: str, metric: str, limit: int) -> None:
        """`aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus`, and the like."""
        self._do("set_quota", region=region, metric=metric, limit=limit)

    def withdraw(self, machine_type: str, region: str) -> None:
        """It is not offered there."""
        self._do("withdraw", machine_type=machine_type, region=region)

    def set_pending(self, seconds: float) -> None:
        """How long jobs are PENDING before their machines are there, or not."""
        self._do("set_pending", seconds=seconds)

    def set_lag(self, seconds: float) -> None:
        """How long a new job is missing in lists."""
        self._do("set_lag", seconds=seconds)

    def preempt(self, job: str, replica: str = "workerpool0-0", seconds: float = 30.0) -> None:
        """SIGTERM for one replica now; after so long it is gone, and with it the job."""
        self._do("preempt", job=job, replica=replica, seconds=seconds)

    def fail_inside(self, job: str) -> None:
        """The service itself fails: the job's machines are gone at once."""
        self._do("fail_inside", job=job)

    def finish(self, job: str, code: int = 0) -> None:
        """As if its primary replica had ended with this exit code: for jobs whose containers do not run."""
        self._do("finish", job=job, code=code)

    def jobs(self, **where: Any) -> list[ToldJob]:
        """All but deleted ones, oldest first; `where` compares fields."""
        told = [
            ToldJob(**{**one, "containers": [ToldContainer(**c) for c in one["containers"]]})
            for one in self._do("jobs")
        ]
        return [one for one in told if all(getattr(one, name) == value for name, value in where.items())]

    def _do(self, verb: str, **arguments: Any) -> Any:
        return self._control.do(f"{SERVICE}/{verb}", **arguments)
