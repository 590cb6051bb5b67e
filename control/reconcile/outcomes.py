"""Derive the outcome of an attempt from the ends of its nodes. Pure functions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...protocol.jobdir import Progress, Result, Timeline
from ...provisioners.base import ProvisionError
from ..accounting.paid_time import spans_of

_SERVERS = frozenset({"parameter_server"})
"""Roles that serve the others and never end by themselves."""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """How one node ended."""

    outcome: str
    """One of states.OUTCOMES."""
    reason: str
    exit_code: int | None = None
    ended: float = 0.0
    final: bool = False
    """True if the program must not be run again, regardless of the budget."""
    refused: ProvisionError | None = None
    """Error of the provider if the machine never existed; see NodeState."""
    missing_outputs: tuple[str, ...] = ()
    """See Result."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """Current view of one node."""

    node: str
    role: str
    end: NodeEnd | None
    """How the node ended; None: it has not ended."""
    begun: bool
    """True if the node's program runs or has run."""
    progress: Progress | None
    has_gpus: bool = False
    gpu_idle_s: float | None = None
    """Seconds for which none of the node's GPUs has done anything; None: unknown."""
    timeline: Timeline | None = None
    """The newest timeline that the node has written."""
    waiting: bool = False
    """True if the node replaces a lost one and is ready to join."""
    reported: bool = False
    """True if the node has reported at least once: the machine exists or existed, and is paid for."""
    last_report: float | None = None
    """Time of the node's last report, in epoch seconds of its machine's clock; None: never."""

    @property
    def generation(self) -> int:
        """Number of the program's current generation on this node; 0: none yet."""
        spans = spans_of(self.timeline)
        return spans[-1].generation if spans else 0


class HasProgress(Protocol):
    """Protocol of node views that have the program's progress."""

    @property
    def progress(self) -> Progress | None: ...


_N = TypeVar("_N", bound=HasProgress)

AT_DEADLINE = "terminated at the deadline"
"""Reason of a node that cloudgpu terminated."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended."""

    outcome: str
    reason: str
    exit_code: int | None
    progress: Progress | None
    final: bool = False
    """True if the program must not be run again; see NodeEnd."""
    timeline: Timeline | None = None
    """Timeline of the node that has done the most steps."""


def end_by_result(result: Result) -> NodeEnd:
    """Return the end that a node reported in its result."""
    missing = tuple(result.missing_outputs)
    return NodeEnd(result.outcome, result.reason, result.exit_code, result.ended, result.final, missing_outputs=missing)


def end_by_absence(noticed: bool, detail: str, *, taken: bool = False) -> NodeEnd:
    """Return the end of a node that is gone without a result; `taken` as in NodeState."""
    tail = f": {detail}" if detail else ""
    if noticed:
        return NodeEnd("preempted", f"the machine was taken after a notice{tail}")
    if taken:
        return NodeEnd("preempted", f"the provider took the machine back{tail}")
    return NodeEnd("lost", f"the machine vanished without a result{tail}")


def must_stop_peers(nodes: Sequence[NodeView]) -> NodeView | None:
    """Return the node whose end makes the remaining nodes useless; None: continue."""
    if all(node.end is not None for node in nodes):
        return None
    for node in nodes:
        if node.end is not None and node.end.outcome != "succeeded":
            return node
    needed = _needed(nodes)
    return needed[0] if all(node.end is not None for node in needed) else None


def _needed(nodes: Sequence[NodeView]) -> Sequence[NodeView]:
    """Return the nodes that do the training; when these have ended, the other nodes have nothing left to do.

    With a chief and parameter servers, TensorFlow's workers are servers too: they get their steps from the chief.
    """
    roles = {node.role for node in nodes}
    serving = _SERVERS | ({"worker"} if "chief" in roles and roles & _SERVERS else set())
    return [node for node in nodes if node.role not in serving] or nodes


# The attempt gets the first outcome in this list that any node has. A program also fails when its peer vanishes (its
# connection breaks), so ends of machines precede ends of programs; requested stops come last.
_PRECEDENCE = ("error", "preempted", "lost", "failed", "again", "stopped", "succeeded")


def attempt_outcome(nodes: Sequence[NodeView], *, left: str = AT_DEADLINE) -> Verdict:
    """Return the outcome of the attempt from all its nodes. Running nodes count as stopped, for the reason `left`."""
    if not nodes:
        return Verdict("stopped", "it had no machines yet", None, None)
    first = furthest(nodes)
    verdict = functools.partial(Verdict, progress=first.progress, timeline=first.timeline)
    if all(node.end is not None and node.end.outcome == "succeeded" for node in _needed(nodes)):
        return verdict("succeeded", _missing_outputs(nodes), 0)
    ends = [(node.node, node.end or NodeEnd("stopped", left)) for node in nodes]
    for outcome in _PRECEDENCE:
        having = [(name, end) for name, end in ends if end.outcome == outcome]
        if having:
            # A final end takes precedence over earlier ones: it may have broken its peers' connections.
            name, end = min(having, key=lambda pair: (not pair[1].final, pair[1].ended))
            reason = end.reason if len(nodes) == 1 else f"{name}: {end.reason}"
            return verdict(outcome, reason, end.exit_code, final=end.final)
    raise ValueError(f"unknown outcomes: {sorted({end.outcome for _, end in ends})}")


def _missing_outputs(nodes: Sequence[NodeView]) -> str:
    """Return the warning of a job that has succeeded without some of its outputs; "": it has all of them."""
    missing = [name for node in nodes if node.end is not None for name in node.end.missing_outputs]
    return f"outputs are missing: {', '.join(missing)}" if missing else ""


def furthest(nodes: Sequence[_N]) -> _N:
    """Return the node whose program has done the most steps; the first on a tie."""
    return max(nodes, key=lambda node: node.progress.step if node.progress else 0)
