"""Provisioner of the target `cluster`: a launch is an order in the fleet's folder, which the machines fill themselves.

A launch creates no billed resources. The fleet itself replaces lost machines, even without a supervisor
(runtime/fleet/member.py).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection
from decimal import Decimal

from ...jobspecs.catalog import CLOUDS, machine_types
from ...jobspecs.plan import Offer
from ...protocol.fleet.records import Order, place_of
from ...protocol.fleet.view import OrderView, View
from ..base import Allocation, LaunchRequest, NodeState, Owner, ProvisionError, TerminateResult
from ..shared.api_calls import mark_may_have_created
from ..stacks import clusters
from ..stacks.fleet_orders import Orders, gone, node_states, translate_errors
from .offer import TARGET

RELEASE_TIMEOUT_S = 60.0
"""Seconds that terminate() waits, beyond the time after which a silent machine counts as lost, for machines to stop
their programs."""
FAILURE_TTL_S = 3_600.0
"""Age in seconds up to which a machine's failure is reported as the reason why an order waits."""
_PARTS = 3  # parts of a machine's name in an allocation: cluster, number of the order, place
_POLL_S = (0.2, 5.0)  # seconds between two polls of a local folder, and of a bucket


class ClusterProvisioner:
    """Provisioner of clusters. Caches only immutable data; thread-safe."""

    def __init__(self) -> None:
        self._orders = Orders()

    def launch(self, request: LaunchRequest) -> Allocation:
        """Enqueue an order. Idempotent; an ended order is not restarted. Raises ProvisionError."""
        cluster = _known(request.region)
        if len(request.nodes) > cluster.fleet.size:
            raise ProvisionError(
                "capacity",
                f"{cluster.name} has {cluster.fleet.size} machines, the job needs {len(request.nodes)}: "
                f"`cloudgpu cluster scale {cluster.name} {len(request.nodes)}`",
                scope="cloud",
            )
        with mark_may_have_created(), translate_errors(cluster.name):
            number, order = self._orders.place(cluster.fleet_dir, request)
        return _allocation(order, cluster.name, cluster.fleet_dir, number)

    def observe(self, allocation: Allocation) -> list[NodeState]:
        url = self._fleet_dir(allocation)
        if url is None or not _exists(_name_of(allocation)):
            return [gone(node, "the cluster is not known here any more") for node in allocation.machines]
        with translate_errors(url):
            view = self._orders.poll(url)
            one = view.of_token(allocation.token)
            trouble = self._trouble(url, _name_of(allocation), view) if one is not None and one.wanting else ""
            if one is not None and (why := view.withdrawal_reason(one)):
                one = self._orders.end(url, allocation.token, why + trouble, unserved=True)
        if one is None and _may_run(view, _number_of(allocation)):
            return [NodeState(node, "running", "its order cannot be read any more") for node in allocation.machines]
        if one is None:
            return [gone(node, "it was never ordered, or long ago") for node in allocation.machines]
        detail = f"waits for a machine of the cluster{_turn(one, view)}{trouble}"
        return list(node_states(one, lambda node, _: NodeState(node, "pending", detail, queued=True), _unserved(one)))

    def terminate(self, allocation: Allocation) -> TerminateResult | None:
        """End the order; return when no machine runs the job any more. Raises ProvisionError."""
        url = self._fleet_dir(allocation)
        if url is None:
            return None
        with translate_errors(url):
            one = self._orders.end(url, allocation.token, "terminated", number=_number_of(allocation))
            if one is not None:
                self._await_release(url, one.number)
        return TerminateResult(one is not None and any(place.incarnation for place in one.places))

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """No-op: the fleet itself gives the node of a lost machine to another machine."""

    def find(self, owner: Owner) -> list[Allocation]:
        found = []
        for cluster in _all():
            with translate_errors(cluster.name):
                view = self._orders.fleet(cluster.fleet_dir).view()
            found += [
                _allocation(one.order, cluster.name, cluster.fleet_dir, one.number)
                for one in view.orders
                if one.order.owner == owner.name and one.end is None
            ]
        return found

    def account(self) -> str:
        """Return "": this target has no accounts."""
        return ""

    def check_account(self, account: str) -> None:
        """No-op: this target has no accounts."""

    def price(self, offer: Offer) -> Decimal | None:  # noqa: ARG002 - the protocol's
        """Return None: the price does not change after planning, as the machines are running already."""
        return None

    def _await_release(self, url: str, number: int) -> None:
        until: float | None = None
        while True:
            view = self._orders.poll(url, at_once=True)
            one = view.find(number)
            held = [] if one is None else one.held
            if not held:
                return
            until = until or time.monotonic() + view.settings.silent_s + RELEASE_TIMEOUT_S
            if time.monotonic() > until:
                names = ", ".join(f"{place.machine} ({place.node})" for place in held)
                raise ProvisionError("transient", f"it was ended, and these machines do not let go of it: {names}")
            time.sleep(_POLL_S[0] if self._orders.fleet(url).is_local else _POLL_S[1])

    def _trouble(self, url: str, name: str, view: View) -> str:
        """Return a known reason why no machine takes a waiting order; "": none."""
        if view.settings.has_expired:
            return f"; the cluster has expired: `cloudgpu cluster extend {name} 7d` brings machines back"
        lately = {machine: age for machine, age in view.failed.items() if age < FAILURE_TTL_S}
        if view.free or not lately:
            return ""
        newest = min(lately, key=lambda machine: lately[machine])
        failure = self._orders.fleet(url).failure(newest)
        return "" if failure is None else f"; {newest} could not be used: {failure.reason}"

    def _fleet_dir(self, allocation: Allocation) -> str | None:
        """Return the URL of the fleet's folder, from the allocation or else by the cluster's name; None: unknown."""
        name = _name_of(allocation)
        known = (cluster.fleet_dir for cluster in _all() if cluster.name == name)
        return allocation.details.get("fleet_dir") or next(known, None)


@functools.cache
def shared() -> ClusterProvisioner:
    """Return the process's shared provisioner."""
    return ClusterProvisioner()


def architecture_of(machine_type: str) -> str:
    """Return the architecture of a machine type, by the tables of a cloud in which a known cluster uses the type, or
    else of the first cloud that lists it."""
    from .. import architecture_of as of_cloud

    known = (one.cloud for one in _all() if one.fleet.machine_type == machine_type)
    cloud = next(known, None) or next((one for one in CLOUDS if machine_type in machine_types(one)), "")
    return of_cloud(cloud, machine_type) or "x86_64"


def is_set_up() -> bool:
    """Return whether this computer has the record of a cluster. Unreadable records count: using them raises the
    error."""
    try:
        return bool(clusters.load_all())
    except ValueError:
        return True


def _all() -> list[clusters.Cluster]:
    try:
        return clusters.load_all()
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="cloud") from error


def _name_of(allocation: Allocation) -> str:
    """Return the name of the allocation's cluster."""
    return allocation.region or next(iter(allocation.machines.values()), "").partition("/")[0]


def _exists(name: str) -> bool:
    """Return whether the record of the cluster exists, i.e. it was not taken down from this computer."""
    try:
        return clusters.load(name) is not None
    except ValueError:  # raised when the record is used
        return True


def _known(name: str) -> clusters.Cluster:
    try:
        found = clusters.load(name)
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="cloud") from error
    if found is None:
        message = f"no cluster {name} is known here: `cloudgpu cluster status` lists those that are"
        raise ProvisionError("invalid", message, scope="cloud")
    return found


def _allocation(order: Order, name: str, fleet_dir: str, number: int) -> Allocation:
    return Allocation(
        TARGET,
        order.job_id,
        order.attempt,
        order.token,
        {node: f"{name}/{number:08d}/{place_of(node)}" for node in order.nodes},
        region=name,
        owner=order.owner,
        details={"fleet_dir": fleet_dir},
    )


def _number_of(allocation: Allocation) -> int | None:
    """Return the number of an allocation's order, taken from the machines' names; None: unknown."""
    parts = next(iter(allocation.machines.values()), "").split("/")
    return int(parts[1]) if len(parts) == _PARTS and parts[1].isdecimal() else None


def _may_run(view: View, number: int | None) -> bool:
    """Return whether machines may still run an order that can no longer be read, because they have read it before."""
    if number is None or number not in view.unreadable:
        return False
    ended_s = view.unreadable[number]
    return ended_s is None or ended_s < view.settings.silent_s


def _turn(one: OrderView, view: View) -> str:
    before = view.orders_ahead(one)
    return f", after {before} other {'job' if before == 1 else 'jobs'}" if before else ""


def _unserved(one: OrderView) -> ProvisionError | None:
    return None if one.end is None else ProvisionError("capacity", one.end.reason, scope="cloud")
