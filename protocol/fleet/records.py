"""Records of a fleet's folder, their keys, and the limits that machines and submitters share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..jobdir import Record

FLEET_KEY = "fleet.json"
WATCH_KEY = "watch.json"
EXPIRY_GRACE_S = 60.0
"""Seconds by which a program is stopped, and its node released, before its machine ends itself or its fleet expires."""
BLOCK_ENDS_EARLY_S = 1_800.0
"""Seconds before the end of a Capacity Block at which AWS begins to terminate its machines ("Monitor Capacity Blocks
using EventBridge"). The machines get no notice of it, so the launch passes the end to agents and fleets."""


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """The record fleet.json."""

    idle_s: float | None = None
    """Seconds without a job after which a machine leaves its group and ends; None: never."""
    look_s: float | None = None
    """Seconds between two heartbeats and polls of a machine; None: 10 s, which cost 0.09 USD a day in S3."""
    silent_s: float = 120.0
    """Seconds without a heartbeat after which the node that runs on a machine is given to another machine. The silent
    machine has killed its agent by then, namely after two thirds of this time without a write to the fleet dir."""
    expires: float | None = None
    """Epoch seconds. Programs save a minute before, and every machine leaves its group; None: never."""

    @property
    def has_expired(self) -> bool:
        """True if the fleet expires within EXPIRY_GRACE_S or has expired: its machines run no nodes any more."""
        return self.expires is not None and time.time() >= self.expires - EXPIRY_GRACE_S


@dataclass(frozen=True, slots=True)
class Order(Record):
    """The record order.json: nodes of an attempt to run, each on one machine."""

    job_id: str
    attempt: int
    token: str
    """Launch token, by which a repeated launch finds its order."""
    owner: str
    """Owner tag of the job's resources; see Owner.name."""
    job_dir: str
    job_sha256: str
    agent_key: str
    """Key of the agent file in the job dir; "": the member runs its own agent."""
    agent_sha256: str
    nodes: list[str]
    """First incarnations, in rank order: `worker-0.1`, …"""
    lifetime_s: float | None
    """Seconds from the first claim after which the order ends, regardless of its machines; None: no limit."""
    time: float


@dataclass(frozen=True, slots=True)
class Holding(Record):
    """The record claims/<node>: which machine runs the node."""

    machine: str
    nonce: str
    time: float


@dataclass(frozen=True, slots=True)
class Freed(Record):
    """The record freed/<node>: the machine has ended the node and removed its processes."""

    outcome: str
    """`lost`: another machine may run the node. Otherwise one of Result's outcomes: the node has ended."""
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class End(Record):
    """The record end.json: the order has ended. Machines that still run a node of it kill it."""

    reason: str
    by: str
    time: float
    unserved: bool = False
    """True if the order ended because there were no machines for it."""


@dataclass(frozen=True, slots=True)
class Beat(Record):
    """The record beat.json: heartbeat of a machine, which counts as alive while this is rewritten."""

    time: float
    holds: str = ""
    """Order and node that the machine runs, as `00000007/worker-0.1`; "": none."""


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """The record failed.json: why a machine's bootstrap gave up."""

    reason: str
    time: float


def place_of(node: str) -> str:
    """Return the node's name without its incarnation: `worker-0` for `worker-0.2`."""
    return node.rpartition(".")[0]


def order_key(number: int, name: str = "order.json") -> str:
    return f"orders/{number:08d}/{name}"


def member_key(machine: str, name: str = "beat.json") -> str:
    return f"members/{machine}/{name}"
