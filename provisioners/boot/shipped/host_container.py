"""Host module for containers of a Vertex AI custom job, which exit with the exit code of the node's program.

All containers of a worker pool have the same command. Each determines its node from CLUSTER_SPEC, which Vertex sets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, NoReturn  # noqa: UP035 - must compile in older Pythons, too

if TYPE_CHECKING:
    from .common import PermanentError
else:
    from common import PermanentError


PRIMARY = "workerpool0"
OTHERS_S = 180.0  # a stop request reaches a node within seconds, and its program has 30 s to end
PAUSE_S = 2.0


class Host:
    """Container in which the bootstrap runs: its identity, environment and end."""

    STOPPED = 143  # exit code if SIGTERM comes before the agent starts: 0 would mean success to Vertex

    RETRY_TIMEOUT_S = 300.0  # a new role takes time to propagate, and the network may come up late

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def name(self) -> str:
        pool, index = self.place()
        return f"{os.environ.get('CLOUD_ML_JOB_ID') or self.record['job_id']}/{pool}/{index}"

    def node(self) -> str:
        """Return the node of this container. Raises PermanentError."""
        if self.record["node"]:
            return str(self.record["node"])
        pool, index = self.place()
        nodes = self.record["pools"].get(pool, ())
        if not 0 <= index < len(nodes):
            raise PermanentError(
                f"CLUSTER_SPEC says that this is {pool} number {index}; the job has {self.record['pools']}"
            )
        return str(nodes[index])

    def address(self) -> str | None:
        """Return the address at which other nodes reach this one, from CLUSTER_SPEC; None: the agent determines it."""
        pool, index = self.place()
        try:
            return str(spec()["cluster"][pool][index]).rpartition(":")[0] or None
        except (LookupError, TypeError):
            return None

    def place(self) -> tuple[str, int]:
        """Return the worker pool and the replica's index in it. Raises PermanentError."""
        if not os.environ.get("CLUSTER_SPEC") and sum(map(len, self.record["pools"].values())) == 1:
            return next(pool for pool, nodes in self.record["pools"].items() if nodes), 0
        try:
            task = spec()["task"]
            return str(task["type"]), int(task.get("index", 0))
        except (LookupError, TypeError, ValueError) as error:
            raise PermanentError(
                f"CLUSTER_SPEC={os.environ.get('CLUSTER_SPEC')!r} does not say which node of the job this is: "
                f"expected a `task` with `type` and `index`, as Vertex AI sets it"
            ) from error

    def environment(self) -> dict[str, str]:
        """Return environment variables of the agent and the program; variables that Vertex sets take precedence."""
        of_tests = {
            "STORAGE_EMULATOR_HOST": self.record["endpoint"],
            "CLOUDGPU_GCP_ENDPOINT": self.record["api_endpoint"],
        }
        return {name: url for name, url in of_tests.items() if url}

    def schedule_shutdown(self, left_s: float) -> None:
        """No-op: Vertex enforces the job's timeout, and the agent its own limit."""

    def comes_back(self) -> bool:
        """Return False: a terminated container is not restarted, and would have a new disk."""
        return False

    def end(self, going_down: bool, code: Callable[[], int], has_ended: Callable[[str], bool]) -> NoReturn:
        """Exit with the exit code that `code()` returns, after waiting for other nodes; SIGTERM ends the wait."""
        found = code()
        if not going_down:
            signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(found))
            self.wait_for_others(found, has_ended)
        sys.exit(found)

    def wait_for_others(self, code: int, has_ended: Callable[[str], bool]) -> None:
        """Wait until the other nodes have ended.

        Vertex terminates all containers as soon as one fails or the primary one exits; nodes that still work would look
        preempted. After a success the primary waits for all nodes but those that serve others. After a failure the
        container waits for all nodes, up to OTHERS_S, since a running supervisor stops them.
        """
        nodes = [node for names in self.record["pools"].values() for node in names]
        try:
            own, place = self.node(), self.place()
        except PermanentError:  # not a node of the job
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
    """Return the nodes that serve others and never end by themselves, as in control/reconcile/outcomes.py."""
    roles = {node: node.rpartition("-")[0] for node in nodes}
    kinds = {"parameter_server"}
    if {"chief", "parameter_server"} <= set(roles.values()):
        kinds.add("worker")
    return {node for node, role in roles.items() if role in kinds}


def spec() -> dict[str, Any]:
    """Parse CLUSTER_SPEC. Raises ValueError, TypeError."""
    found: dict[str, Any] = json.loads(os.environ.get("CLUSTER_SPEC") or "null")
    return found
