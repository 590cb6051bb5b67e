"""Records of a fleet's folder, their keys, and the limits that machines and submitters share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..jobdir import Record

FLEET_KEY = "fleet.json"
WATCH_KEY = "watch.json"
LAST_S = 60.0
"""So long before a machine ends itself, or its fleet expires, what it runs is told to save, and is left to another."""
BLOCK_ENDS_EARLY_S = 1_800.0
"""So long before a Capacity Block ends AWS begins to terminate its machines ("Monitor Capacity Blocks using
EventBridge"), and says nothing on them: agents and fleets are told the end by whoever launches."""


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """fleet.json."""

    idle_s: float | None = None
    """A machine that had no job for so long leaves its group, and ends; None: never."""
    look_s: float | None = None
    """How often a machine beats and looks; None: every 10 s, at 0.09 USD a day in S3."""
    silent_s: float = 120.0
    """A machine that was not heard of for so long has lost its node. Its own agent is dead by then: it is killed where
    the fleet dir could not be written for two thirds of it."""
    expires: float | None = None
    """Epoch seconds: a minute before, what runs saves, and every machine leaves its group; None: never."""

    @property
    def has_expired(self) -> bool:
        """Or is about to: machines run nothing any more."""
        return self.expires is not None and time.time() >= self.expires - LAST_S


@dataclass(frozen=True, slots=True)
class Order(Record):
    """order.json: these nodes of an attempt are to run, each on one machine."""

    job_id: str
    attempt: int
    token: str
    """Of the launch: a repeated one finds its order."""
    owner: str
    """As in Owner.name."""
    job_dir: str
    job_sha256: str
    agent_key: str
    """Of the agent file in the job dir; "": the member's own agent."""
    agent_sha256: str
    nodes: list[str]
    """First incarnations, in rank order: `worker-0.1`, …"""
    lifetime_s: float | None
    """From its first claim on, whichever machines it has; None: no limit."""
    time: float


@dataclass(frozen=True, slots=True)
class Holding(Record):
    """claims/<node>."""

    machine: str
    nonce: str
    time: float


@dataclass(frozen=True, slots=True)
class Freed(Record):
    """freed/<node>: the machine does not run the node any more; what is left of it goes before another one comes."""

    outcome: str
    """`lost`: another machine may take its place. Else as in Result: the node has ended."""
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class End(Record):
    """end.json. Machines that still run a node kill it."""

    reason: str
    by: str
    time: float
    unserved: bool = False
    """There were no machines for it."""


@dataclass(frozen=True, slots=True)
class Beat(Record):
    """beat.json; that it is rewritten is the sign of life."""

    time: float
    holds: str = ""
    """`00000007/worker-0.1`; "": nothing."""


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """failed.json."""

    reason: str
    time: float


def place_of(node: str) -> str:
    """`worker-0` of `worker-0.2`."""
    return node.rpartition(".")[0]


def order_key(number: int, name: str = "order.json") -> str:
    return f"orders/{number:08d}/{name}"


def member_key(machine: str, name: str = "beat.json") -> str:
    return f"members/{machine}/{name}"
