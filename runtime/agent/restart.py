"""Decide whether a failed program is restarted in place, on the same machines. Pure functions.

A new attempt takes minutes, because machines are terminated and launched again. Most failures do not need new machines,
so the program is first restarted in place, where its staged checkpoints are still in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...protocol.jobdir import Generation, GenerationKind, NodeRecord
from ..processes.exit_verdict import Ending

FRUITLESS = 2
"""Maximum number of consecutive generations without a new checkpoint that are restarted in place. After one more, the
attempt ends, because the program may succeed on other machines."""
_PAUSE_S = (1.0, 60.0)  # backoff after the second generation without a new checkpoint, doubled up to the maximum


Scope = Literal["lone", "member", "group"]
"""Processes that restart when a process of this node dies. group: those of all nodes; member: only this node's, which
also restart with the group; lone: only this node's, which never restart with others."""


def scope(launcher: str, nodes: Sequence[NodeRecord], own: NodeRecord) -> Scope:
    """Return the smallest scope that the framework supports.

    With parameter servers, TensorFlow workers may join and leave. In all other cases, processes that communicate wait
    for each other in every step, so a restart of one process needs a new rendezvous of all.
    """
    if launcher == "none":
        return "lone"
    served = any(node.role == "parameter_server" for node in nodes)
    if launcher == "tensorflow" and (own.role == "evaluator" or (own.role == "worker" and served)):
        return "member"
    return "group"


@dataclass(frozen=True, slots=True)
class Budget:
    """The share of the job's `retry` limits that an attempt may use for restarts in place."""

    failures: int
    interruptions: int | None
    """None: unlimited."""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """A node's request to restart its program; `pause_s` is the backoff in seconds."""

    kind: GenerationKind
    reason: str
    pause_s: float


def requested_restart(ending: Ending, fruitless: int) -> RestartRequest | None:
    """Return the restart that a node requests after its processes ended without an order; None if it requests none.

    `fruitless`: number of consecutive generations without a new checkpoint, including the one that has ended
    """
    kind = _KINDS.get(ending.outcome)
    if kind is None or ending.final or fruitless > FRUITLESS:
        return None
    first, most = _PAUSE_S
    pause = 0.0 if fruitless < 2 else min(most, first * 2.0 ** (fruitless - 2))
    return RestartRequest(kind, ending.reason, pause)


_KINDS: dict[str, GenerationKind] = {"failed": "failure", "again": "interruption"}


def charge_budget(wanted: RestartRequest, budget: Budget, last: Generation | None) -> tuple[int, int] | None:
    """Return the failures and interruptions used once the request is granted; None if the budget does not allow it."""
    failures, interruptions = (0, 0) if last is None else (last.failures, last.interruptions)
    if wanted.kind == "failure":
        return (failures + 1, interruptions) if failures < budget.failures else None
    if budget.interruptions is not None and interruptions >= budget.interruptions:
        return None
    return failures, interruptions + 1


def generations_without_checkpoint(progresses: Sequence[dict[str, Any] | None]) -> int:
    """Return the number of consecutive generations, up to the newest, that saved no new checkpoint.

    `progresses`: last Progress of each generation, oldest first
    """
    count, best = 0, 0
    for progress in progresses:
        saved = int((progress or {}).get("saved_step") or 0)
        count = 0 if saved > best else count + 1
        best = max(best, saved)
    return count
