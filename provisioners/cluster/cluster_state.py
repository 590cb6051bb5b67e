"""Snapshot of a cluster's machines and queue, read from its folder, for `cloudgpu cluster status`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...protocol.fleet.view import OrderView, View
from ..stacks.clusters import Cluster
from ..stacks.fleet_orders import Orders, translate_errors


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that runs or waits in the queue."""

    job_id: str
    attempt: int
    nodes: int
    machines: int
    """Number of machines that the job has now."""
    after: int
    """Number of other jobs that get their missing machines first."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A machine that gave up before it could take a job."""

    machine: str
    seconds_ago: float
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Snapshot of a cluster."""

    answering: int
    """Number of machines with a recent heartbeat."""
    queue: tuple[QueuedJob, ...]
    """Jobs in the order in which they get machines."""
    suspects: tuple[str, ...]
    """Machines on which jobs failed; they get no jobs while others are free."""
    unusable: tuple[Unusable, ...]
    """Unusable machines, the latest first."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def snapshot(cluster: Cluster) -> Snapshot:
    """Read a cluster's folder and return its current state. Raises ProvisionError."""
    orders, url = Orders(), cluster.fleet_dir
    with translate_errors(url):
        view = orders.poll(url, at_once=True)
        failed = sorted(view.failed.items(), key=lambda item: item[1])
        reasons = [(machine, age, orders.fleet(url).failure(machine)) for machine, age in failed]
    queue = tuple(_turn(one, view) for one in view.orders if not one.is_over)
    unusable = tuple(Unusable(machine, age, why.reason) for machine, age, why in reasons if why is not None)
    return Snapshot(len(view.alive), queue, tuple(sorted(view.suspects & set(view.alive))), unusable)


def _turn(one: OrderView, view: View) -> QueuedJob:
    return QueuedJob(one.order.job_id, one.order.attempt, len(one.places), len(one.held), view.orders_ahead(one))
