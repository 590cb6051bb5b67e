"""From how its nodes ended to how an attempt ended. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...protocol.jobdir import Progress, Result, Timeline
from ...provisioners.base import ProvisionError
from ..accounting.paid_time import spans_of

_SERVERS = frozenset({"parameter_server"})
"""They serve the others and never end by themselves."""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """How one node ended."""

    outcome: str
    """As in states.OUTCOMES."""
    reason: str
    exit_code: int | None = None
    ended: float = 0.0
    final: bool = False
    """Running it again is of no use, whatever the budget allows."""
    refused: ProvisionError | None = None
    """As in NodeState: there never was a machine."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is seen of one node now."""

    node: str
    role: str
    end: NodeEnd | None
    """None: it is still there."""
    begun: bool
    """Its program runs or ran."""
    progress: Progress | None
    has_gpus: bool = False
    gpu_idle_s: float | None = None
    """For how long none of its GPUs has done anything; None: unknown."""
    timeline: Timeline | None = None
    """The newest one that the node has written."""
    waiting: bool = False
    """It came to replace a lost node, and is ready."""
    reported: bool = False
    """It was heard of, ever: a machine was there, and is paid for."""
    told_at: float | None = None
    """When it last told anything, epoch seconds by its machine's clock; None: never."""

    @property
    def generation(self) -> int:
        """Of its program; 0: none yet."""
        spans = spans_of(self.timeline)
        return spans[-1].generation if spans else 0


class HasProgress(Protocol):
    """Any view of a node that has its progress."""

    @property
    def progress(self) -> Progress | None: ...


_N = TypeVar("_N", bound=HasProgress)

AT_DEADLINE = "terminated at the deadline"
"""Why a node ended that we ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended."""

    outcome: str
    reason: str
    exit_code: int | None
    progress: Progress | None
    final: bool = False
    """As in NodeEnd."""
    timeline: Timeline | None = None
    """Of the node that got furthest."""


def end_by_result(result: Result) -> NodeEnd:
    """What a node says of itself."""
    return NodeEnd(result.outcome, result.reason, result.exit_code, result.ended, result.final)


def end_by_absence(noticed: bool, detail: str, *, taken: bool = False) -> NodeEnd:
    """What must be said of a node that is gone without a word; `taken` as in NodeState."""
    tail = f": {detail}" if detail else ""
    if noticed:
        return NodeEnd("preempted", f"the machine was taken after a notice{tail}")
    if taken:
        return NodeEnd("preempted", f"the provider took the machine back{tail}")
    return NodeEnd("lost", f"the machine vanished without a result{tail}")


def must_stop_peers(nodes: Sequence[NodeView]) -> NodeView | None:
    """The node whose end means that those still there are of no more use; None: go on."""
    if all(node.end is not None for node in nodes):
        return None
    for node in nodes:
        if node.end is not None and node.end.outcome != "succeeded":
            return node
    needed = _needed(nodes)
    return needed[0] if all(node.end is not None for node in needed) else None


def _needed(nodes: Sequence[NodeView]) -> Sequence[NodeView]:
    """The nodes whose work makes the job's; when they have ended, the others have nothing left to do.

    With a chief and parameter servers, TensorFlow's workers are servers too: the chief hands them their steps.
    """
    roles = {node.role for node in nodes}
    serving = _SERVERS | ({"worker"} if "chief" in roles and roles & _SERVERS else set())
    return [node for node in nodes if node.role not in serving] or nodes


# The first that any node has decides. A program whose peer vanished fails too (its connection breaks), so what the
# machines did goes before what the programs did, and what was ordered comes last.
_PRECEDENCE = ("error", "preempted", "lost", "failed", "again", "stopped", "succeeded")


def judge(nodes: Sequence[NodeView], *, left: str = AT_DEADLINE) -> Verdict:
    """How the attempt ended, from all its nodes; one that is still there is taken as stopped by us, for the reason
    `left`."""
    if not nodes:
        return Verdict("stopped", "it had no machines yet", None, None)
    first = furthest(nodes)
    verdict = functools.partial(Verdict, progress=first.progress, timeline=first.timeline)
    if all(node.end is not None and node.end.outcome == "succeeded" for node in _needed(nodes)):
        return verdict("succeeded", "", 0)
    ends = [(node.node, node.end or NodeEnd("stopped", left)) for node in nodes]
    for outcome in _PRECEDENCE:
        having = [(name, end) for name, end in ends if end.outcome == outcome]
        if having:
            # A final one decides whatever came before it: what broke its peers' connections may have been its end.
            name, end = min(having, key=lambda pair: (not pair[1].final, pair[1].ended))
            reason = end.reason if len(nodes) == 1 else f"{name}: {end.reason}"
            return verdict(outcome, reason, end.exit_code, final=end.final)
    raise ValueError(f"unknown outcomes: {sorted({end.outcome for _, end in ends})}")


def furthest(nodes: Sequence[_N]) -> _N:
    """Return the node whose program has done the most steps; the first of several."""
    return max(nodes, key=lambda node: node.progress.step if node.progress else 0)
