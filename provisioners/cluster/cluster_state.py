"""What a cluster's machines do at one moment, as its folder tells it: for `cloudgpu cluster status`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...protocol.fleet.view import OrderView, View
from ..stacks.clusters import Cluster
from ..stacks.fleet_orders import Orders, translate_errors


@dataclass(frozen=True, slots=True)
class Turn:
    """A job that runs, or waits for its turn."""

    job_id: str
    attempt: int
    nodes: int
    machines: int
    """So many it has."""
    after: int
    """Of those that it lacks: so many other jobs get theirs first."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A machine that has given up before it could take a job."""

    machine: str
    seconds_ago: float
    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    """All of it."""

    answering: int
    """Machines that were heard of lately."""
    queue: tuple[Turn, ...]
    """In their turn."""
    suspects: tuple[str, ...]
    """Machines on which jobs fail: they get none while others are free."""
    unusable: tuple[Unusable, ...]
    """The newest first."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look(cluster: Cluster) -> Seen:
    """Raises ProvisionError."""
    orders, url = Orders(), cluster.fleet_dir
    with translate_errors(url):
        view = orders.look(url, at_once=True)
        failed = sorted(view.failed.items(), key=lambda item: item[1])
        reasons = [(machine, age, orders.fleet(url).failure(machine)) for machine, age in failed]
    queue = tuple(_turn(one, view) for one in view.orders if not one.is_over)
    unusable = tuple(Unusable(machine, age, why.reason) for machine, age, why in reasons if why is not None)
    return Seen(len(view.alive), queue, tuple(sorted(view.suspects & set(view.alive))), unusable)


def _turn(one: OrderView, view: View) -> Turn:
    return Turn(one.order.job_id, one.order.attempt, len(one.places), len(one.held), view.orders_ahead(one))
