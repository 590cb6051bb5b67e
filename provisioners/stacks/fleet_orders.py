"""Orders in a fleet's folder, as seen by their submitter; shared by clusters and dedicated groups of jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from ...protocol.fleet.folder import Fleet
from ...protocol.fleet.records import WATCH_KEY, Beat, End, Order, order_key
from ...protocol.fleet.view import OrderView, Place, View
from ...protocol.jobdir import JobDirError, is_login
from ..base import ErrorClass, LaunchRequest, NodeState, ProvisionError

_MARK_S = 30.0
"""Seconds between two writes of the watch key, whose time stamp is by the store's clock."""


class Orders:
    """Client of fleet folders: place, poll and end orders. Caches only immutable data; thread-safe. Methods raise
    JobDirError."""

    def __init__(self) -> None:
        self._fleets: dict[str, Fleet] = {}
        self._marked: dict[str, float] = {}

    def fleet(self, url: str) -> Fleet:
        return self._fleets.get(url) or self._fleets.setdefault(url, Fleet(url))

    def place(self, url: str, request: LaunchRequest) -> tuple[int, Order]:
        """Enqueue an order; return its number and the order. Idempotent."""
        order = Order(
            job_id=request.job_id,
            attempt=request.attempt,
            token=request.token,
            owner=request.owner.name,
            job_dir=request.job_dir,
            job_sha256=request.job_sha256,
            agent_key="" if request.agent is None else request.agent.key,
            agent_sha256="" if request.agent is None else request.agent.sha256,
            nodes=[node.node for node in request.nodes],
            lifetime_s=request.lifetime_s,
            time=time.time(),
        )
        return self.fleet(url).order(order), order

    def poll(self, url: str, *, at_once: bool = False) -> View:
        """Return the current state of a fleet folder.

        Heartbeats are compared with the store's clock, which can be read only by writing an object: that is done every
        _MARK_S seconds, or now if `at_once`."""
        now = time.monotonic()
        if at_once or now - self._marked.get(url, -_MARK_S) >= _MARK_S:
            self.fleet(url).mark(WATCH_KEY, Beat(time.time()))
            self._marked[url] = now
        return self.fleet(url).view()

    def end(
        self, url: str, token: str, reason: str, *, unserved: bool = False, number: int | None = None
    ) -> OrderView | None:
        """End an order, so that its machines stop it; return its new state. None: there is no such order.

        `number`: the order's number, if known; with it even an order that cannot be read is ended.
        """
        fleet = self.fleet(url)
        view = fleet.view()
        one = view.of_token(token)
        if one is not None:
            number = one.number if one.end is None else None
        elif view.unreadable.get(number or 0, 0.0) is not None:
            number = None
        if number is None:
            return one
        fleet.create(order_key(number, "end.json"), End(reason, "submitter", time.time(), unserved=unserved))
        return fleet.view().of_token(token)


WaitingState = Callable[[str, Place], NodeState]
"""Function: (node, place that waits for a machine) -> state of the node."""


def node_states(one: OrderView, waiting: WaitingState, refused: ProvisionError | None) -> Iterator[NodeState]:
    """Yield the state of every incarnation of every place of an order. A lost incarnation counts as waiting while it
    will be replaced.

    `refused`: the error of nodes for which there were no machines, if the order ended unserved."""
    unserved = refused if one.end is not None and one.end.unserved else None
    for place in one.places:
        for incarnation in range(1, max(1, place.incarnation) + 1):
            node = f"{place.name}.{incarnation}"
            if incarnation == place.incarnation and place.state == "held":
                yield NodeState(node, "running", place.machine)
            elif one.is_over or one.is_failing or place.state == "done":
                yield NodeState(node, "gone", one.end.reason if one.end else "", refused=unserved)
            else:
                yield waiting(node, place)


def gone(node: str, why: str) -> NodeState:
    return NodeState(node, "gone", why)


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Context manager: translate JobDirError, an error of the object store, to ProvisionError."""
    try:
        yield
    except JobDirError as error:
        error_class: ErrorClass = "expired" if is_login(error) else "transient"
        raise ProvisionError(error_class, f"{what}: {error}", scope="cloud") from error
