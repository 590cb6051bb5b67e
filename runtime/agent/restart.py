"""Whether a program that died is started again on the machines it has. Pure.

A new attempt costs minutes: machines are terminated and got again. Most failures need no other machines, so the first
answer is to start the program again where it is; what it had staged of its checkpoints is still in memory there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...protocol.jobdir import Generation, GenerationKind, NodeRecord
from ..processes.exit_verdict import Ending

FRUITLESS = 2
"""So many generations in a row without a new checkpoint are followed by another one here. Upon one more the attempt
ends: other machines may do what these do not."""
_PAUSE_S = (1.0, 60.0)  # before a second generation without a new checkpoint in between; doubled up to the most


Scope = Literal["lone", "member", "group"]
"""Who starts again when a process of a node dies. lone: this node's processes, and it takes no notice of other nodes;
member: this node's, but it follows when the group starts again; group: the processes of all nodes."""


def scope(launcher: str, nodes: Sequence[NodeRecord], own: NodeRecord) -> Scope:
    """As far as the framework allows, only who must.

    With parameter servers TensorFlow's workers may come and go; all other processes that talk to one another wait for
    each other in every step, and none of them goes on without a new rendezvous.
    """
    if launcher == "none":
        return "lone"
    served = any(node.role == "parameter_server" for node in nodes)
    if launcher == "tensorflow" and (own.role == "evaluator" or (own.role == "worker" and served)):
        return "member"
    return "group"


@dataclass(frozen=True, slots=True)
class Budget:
    """What an attempt may use of the job's `retry` by itself."""

    failures: int
    interruptions: int | None
    """None: without limit."""


@dataclass(frozen=True, slots=True)
class Wish:
    """To be started again."""

    kind: GenerationKind
    reason: str
    pause_s: float


def wish(ending: Ending, fruitless: int) -> Wish | None:
    """What a node wants after its processes ended so, nobody having ordered it; None: nothing follows.

    `fruitless`: generations in a row that ended without a new checkpoint, this one included.
    """
    kind = _KINDS.get(ending.outcome)
    if kind is None or ending.final or fruitless > FRUITLESS:
        return None
    first, most = _PAUSE_S
    pause = 0.0 if fruitless < 2 else min(most, first * 2.0 ** (fruitless - 2))
    return Wish(kind, ending.reason, pause)


_KINDS: dict[str, GenerationKind] = {"failed": "failure", "again": "interruption"}


def allowed(wanted: Wish, budget: Budget, last: Generation | None) -> tuple[int, int] | None:
    """Failures and interruptions used once this wish is granted; None: the budget does not allow it."""
    failures, interruptions = (0, 0) if last is None else (last.failures, last.interruptions)
    if wanted.kind == "failure":
        return (failures + 1, interruptions) if failures < budget.failures else None
    if budget.interruptions is not None and interruptions >= budget.interruptions:
        return None
    return failures, interruptions + 1


def fruitless_in_a_row(told: Sequence[dict[str, Any] | None]) -> int:
    """Of the generations' last Progress, oldest first: how many of the newest have saved nothing new."""
    count, best = 0, 0
    for progress in told:
        saved = int((progress or {}).get("saved_step") or 0)
        count = 0 if saved > best else count + 1
        best = max(best, saved)
    return count
