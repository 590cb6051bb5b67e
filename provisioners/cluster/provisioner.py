"""The target `cluster`: a launch is an order in the fleet's folder, which its machines fill by themselves.

Nothing is created and nothing billed that was not there before. Lost machines are the fleet's own matter: it replaces
them whether or not anybody looks (runtime/fleet/member.py).
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
from ..base import Allocation, Ended, LaunchRequest, NodeState, Owner, ProvisionError
from ..shared.api_calls import mark_may_have_created
from ..stacks import clusters
from ..stacks.fleet_orders import Orders, gone, node_states, translate_errors
from .offer import TARGET

LET_GO_S = 60.0
"""Beyond the time after which a machine counts as lost: for those that live to kill what they run."""
LATELY_S = 3_600.0
"""A machine that gave up before then says nothing of why an order waits now."""
_PARTS = 3  # of what a machine is called in an allocation: cluster, number of the order, place
_POLL_S = (0.2, 5.0)  # a folder on this computer; a bucket


class ClusterProvisioner:
    """Keeps nothing but what is the same for ever; may be used by several threads."""

    def __init__(self) -> None:
        self._orders = Orders()

    def launch(self, request: LaunchRequest) -> Allocation:
        """Stand in the queue; who has been ended is not started again."""
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
        if url is None or not _stands(_name_of(allocation)):
            return [gone(node, "the cluster is not known here any more") for node in allocation.machines]
        with translate_errors(url):
            view = self._orders.look(url)
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

    def terminate(self, allocation: Allocation) -> Ended | None:
        """Returns when no machine runs anything of it."""
        url = self._fleet_dir(allocation)
        if url is None:
            return None
        with translate_errors(url):
            one = self._orders.end(url, allocation.token, "terminated", number=_number_of(allocation))
            if one is not None:
                self._await_release(url, one.number)
        return Ended(one is not None and any(place.incarnation for place in one.places))

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """A lost machine has lost its node by itself."""

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
        """ "": there is none."""
        return ""

    def check_account(self, account: str) -> None:
        """Machines of this target are in no account."""

    def price(self, offer: Offer) -> Decimal | None:  # noqa: ARG002 - the protocol's
        """As planned: the cluster's machines were bought before."""
        return None

    def _await_release(self, url: str, number: int) -> None:
        until: float | None = None
        while True:
            view = self._orders.look(url, at_once=True)
            one = view.find(number)
            held = [] if one is None else one.held
            if not held:
                return
            until = until or time.monotonic() + view.settings.silent_s + LET_GO_S
            if time.monotonic() > until:
                names = ", ".join(f"{place.machine} ({place.node})" for place in held)
                raise ProvisionError("transient", f"it was ended, and these machines do not let go of it: {names}")
            time.sleep(_POLL_S[0] if self._orders.fleet(url).is_local else _POLL_S[1])

    def _trouble(self, url: str, name: str, view: View) -> str:
        """Why nobody takes what waits, as far as it is known."""
        if view.settings.has_expired:
            return f"; the cluster has expired: `cloudgpu cluster extend {name} 7d` brings machines back"
        lately = {machine: age for machine, age in view.failed.items() if age < LATELY_S}
        if view.free or not lately:
            return ""
        newest = min(lately, key=lambda machine: lately[machine])
        failure = self._orders.fleet(url).failure(newest)
        return "" if failure is None else f"; {newest} could not be used: {failure.reason}"

    def _fleet_dir(self, allocation: Allocation) -> str | None:
        """By what is written in the allocation; of a launch whose answer nobody has, or of a leftover, by the cluster's
        name."""
        name = _name_of(allocation)
        known = (cluster.fleet_dir for cluster in _all() if cluster.name == name)
        return allocation.details.get("fleet_dir") or next(known, None)


@functools.cache
def shared() -> ClusterProvisioner:
    """The one of this process."""
    return ClusterProvisioner()


def architecture_of(machine_type: str) -> str:
    """By the table that has it; of a type that none has, by the cluster that is made of it."""
    from .. import architecture_of as of_cloud

    known = (one.cloud for one in _all() if one.fleet.machine_type == machine_type)
    cloud = next(known, None) or next((one for one in CLOUDS if machine_type in machine_types(one)), "")
    return of_cloud(cloud, machine_type) or "x86_64"


def could_be_used() -> bool:
    """Whether a cluster is known here; one that cannot be read is told of when it is used."""
    try:
        return bool(clusters.known())
    except ValueError:
        return True


def _all() -> list[clusters.Cluster]:
    try:
        return clusters.known()
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="cloud") from error


def _name_of(allocation: Allocation) -> str:
    """Of its cluster."""
    return allocation.region or next(iter(allocation.machines.values()), "").partition("/")[0]


def _stands(name: str) -> bool:
    """Whether nobody has taken it down from here."""
    try:
        return clusters.load(name) is not None
    except ValueError:  # told of when it is used
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
    """Return the number of its order, which its machines are named after; None: it is not known."""
    parts = next(iter(allocation.machines.values()), "").split("/")
    return int(parts[1]) if len(parts) == _PARTS and parts[1].isdecimal() else None


def _may_run(view: View, number: int | None) -> bool:
    """Return whether machines may run an order that cannot be read: those that had read it before."""
    if number is None or number not in view.unreadable:
        return False
    ended_s = view.unreadable[number]
    return ended_s is None or ended_s < view.settings.silent_s


def _turn(one: OrderView, view: View) -> str:
    before = view.orders_ahead(one)
    return f", after {before} other {'job' if before == 1 else 'jobs'}" if before else ""


def _unserved(one: OrderView) -> ProvisionError | None:
    return None if one.end is None else ProvisionError("capacity", one.end.reason, scope="cloud")
