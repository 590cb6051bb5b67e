"""A container of a Vertex AI custom job: it ends by exiting, with the job's own exit code.

All containers of a worker pool are started with the same words. Which node one is says CLUSTER_SPEC, which Vertex sets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, NoReturn  # noqa: UP035 - also read by Pythons that are too old to run it

if TYPE_CHECKING:
    from .common import Hopeless
else:
    from common import Hopeless


PRIMARY = "workerpool0"
OTHERS_S = 180.0  # a stop reaches a node within seconds, and its program has 30 s to end
PAUSE_S = 2.0


class Host:
    """What the bootstrap must know of, and can do to, the container it runs in."""

    STOPPED = 143  # exit code where SIGTERM comes before the agent has begun: 0 would be success to Vertex

    PATIENCE_S = 300.0  # a role that was made a minute ago is not known everywhere yet, a network may come late

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def name(self) -> str:
        pool, index = self.place()
        return f"{os.environ.get('CLOUD_ML_JOB_ID') or self.record['job_id']}/{pool}/{index}"

    def node(self) -> str:
        """Raises Hopeless."""
        if self.record["node"]:
            return str(self.record["node"])
        pool, index = self.place()
        nodes = self.record["pools"].get(pool, ())
        if not 0 <= index < len(nodes):
            raise Hopeless(f"CLUSTER_SPEC says that this is {pool} number {index}; the job has {self.record['pools']}")
        return str(nodes[index])

    def address(self) -> str | None:
        """By which other nodes reach this one, as Vertex names it to them; None: the agent finds out."""
        pool, index = self.place()
        try:
            return str(spec()["cluster"][pool][index]).rpartition(":")[0] or None
        except (LookupError, TypeError):
            return None

    def place(self) -> tuple[str, int]:
        """Worker pool, and number in it. Raises Hopeless."""
        if not os.environ.get("CLUSTER_SPEC") and sum(map(len, self.record["pools"].values())) == 1:
            return next(pool for pool, nodes in self.record["pools"].items() if nodes), 0
        try:
            task = spec()["task"]
            return str(task["type"]), int(task.get("index", 0))
        except (LookupError, TypeError, ValueError) as error:
            raise Hopeless(
                f"CLUSTER_SPEC={os.environ.get('CLUSTER_SPEC')!r} does not say which node of the job this is: "
                f"expected a `task` with `type` and `index`, as Vertex AI sets it"
            ) from error

    def environment(self) -> dict[str, str]:
        """Of the agent, and of the program: what Vertex has set stays."""
        return {"STORAGE_EMULATOR_HOST": self.record["endpoint"]} if self.record["endpoint"] else {}

    def limit_life(self, left_s: float) -> None:
        """Vertex ends the job by its timeout, and the agent by its own clock."""

    def comes_back(self) -> bool:
        """A container that was ended is not started again, and would have another disk."""
        return False

    def end(self, going_down: bool, code: Callable[[], int], has_ended: Callable[[str], bool]) -> NoReturn:
        """Exit with the job's exit code, which `code` finds out. SIGTERM does not wait for others any more."""
        found = code()
        if not going_down:
            signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(found))
            self.wait_for_others(found, has_ended)
        sys.exit(found)

    def wait_for_others(self, code: int, has_ended: Callable[[str], bool]) -> None:
        """Vertex ends every container as soon as one fails, or the primary one ends: others would seem to have been
        taken away in the middle of their work. So this one stays until they have ended by themselves: after a success
        those whose work makes the job's; after a failure all, for the supervisor tells them to stop, if there is one.
        """
        nodes = [node for names in self.record["pools"].values() for node in names]
        try:
            own, place = self.node(), self.place()
        except Hopeless:  # it is no part of the job, which will not end well
            return
        if len(nodes) < 2 or (code == 0 and place != (PRIMARY, 0)):
            return
        left = set(nodes) - {own}
        left -= serving(nodes) if code == 0 else set()
        until = None if code == 0 else time.monotonic() + OTHERS_S
        while left and (until is None or time.monotonic() < until):
            left = {node for node in left if not has_ended(node)}
            if left:
                time.sleep(PAUSE_S)


def serving(nodes: list[str]) -> set[str]:
    """Those that serve others and never end by themselves, as in control/reconcile/outcomes.py."""
    roles = {node: node.rpartition("-")[0] for node in nodes}
    kinds = {"parameter_server"}
    if {"chief", "parameter_server"} <= set(roles.values()):
        kinds.add("worker")
    return {node for node, role in roles.items() if role in kinds}


def spec() -> dict[str, Any]:
    """Raises ValueError, TypeError."""
    found: dict[str, Any] = json.loads(os.environ.get("CLUSTER_SPEC") or "null")
    return found
