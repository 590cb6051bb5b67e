"""Decide about lost nodes of an attempt whose other nodes run: replace them, or continue without them. Pure functions.

A new attempt would replace all machines. While some nodes run, only the lost machines are replaced, and the program
restarts from its newest checkpoint when all are ready. With `nodes: 2..4` the program continues on the remaining
nodes at once, and includes the new node when it is ready.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...jobspecs.plan import Offer
from ...protocol.jobdir import Generation, NodeRecord
from ...provisioners.base import NodeRequest
from ..store.model import Attempt
from .outcomes import NodeView

FRUITLESS = 3
"""Maximum number of consecutive node changes without a new checkpoint in an attempt; then all machines are replaced."""
JOIN_GRACE_S = 120.0
"""Seconds in which a program that trains with fewer nodes may save and end by itself when a new node is ready."""

LOSSES = frozenset({"lost", "preempted"})


@dataclass(frozen=True, slots=True)
class Replace:
    """Decision to launch machines for nodes, named as the next incarnations of the lost ones."""

    nodes: tuple[NodeRequest, ...]
    """All nodes that the attempt should have, in rank order."""
    reason: str


@dataclass(frozen=True, slots=True)
class Regroup:
    """Decision to restart the program on these nodes."""

    nodes: tuple[NodeRequest, ...]
    lost: int
    """Interruptions that this deducts from the job's budget."""
    node: str
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Decision to wait for replacement machines that have been requested."""

    idle: bool
    """No program trains meanwhile."""


Repair = Replace | Regroup | Wait


def node_requests(offer: Offer) -> tuple[NodeRequest, ...]:
    """Return the machines of an offer in rank order, each in its first incarnation."""
    nodes = [(role, index) for role in offer.roles for index in range(role.nodes)]
    return tuple(
        NodeRequest(
            node=f"{role.role}-{index}.1",
            role=role.role,
            index=index,
            rank=rank,
            machine_type=role.machine_type,
            accelerator=role.accelerator,
            count=role.count,
        )
        for rank, (role, index) in enumerate(nodes)
    )


def wanted_nodes(attempt: Attempt) -> tuple[NodeRequest, ...]:
    """Return the machines that an attempt should have, in rank order: the newest incarnation of each node."""
    if attempt.nodes is None:
        return node_requests(attempt.offer)
    return attempt.nodes


def node_records(requests: Sequence[NodeRequest]) -> list[NodeRecord]:
    """Return the node records that the machines read. Indices have no gaps; a fraction of a GPU counts as one GPU."""
    records: list[NodeRecord] = []
    for rank, request in enumerate(requests):
        index = sum(record.role == request.role for record in records)
        gpus = int(request.count) if request.count >= 1 else int(request.count > 0)
        records.append(NodeRecord(request.node, request.role, index, rank, gpus=gpus))
    return records


def member_names(attempt: Attempt) -> list[str]:
    """Return the nodes that the program runs on, or should run on if some of them are lost."""
    for record in reversed(attempt.generations):
        if record.nodes is not None:
            return [node["node"] for node in record.nodes]
    return [request.node for request in node_requests(attempt.offer)]


def every_node(attempt: Attempt) -> list[NodeRequest]:
    """Return all nodes to observe, in rank order: current members and future ones."""
    wanted = wanted_nodes(attempt)
    place_of = {node_without_incarnation(request.node): request for request in wanted}
    gone = [
        dataclasses.replace(place_of[node_without_incarnation(name)], node=name)
        for name in member_names(attempt)
        if name not in [request.node for request in wanted]
    ]
    return sorted([*wanted, *gone], key=lambda request: (request.rank, request.node))


def all_node_names(attempt: Attempt) -> list[str]:
    """Return the names of all machines the attempt has had, lost ones included."""
    machines = () if attempt.allocation is None else attempt.allocation.machines
    return list(dict.fromkeys([*machines, *(request.node for request in every_node(attempt))]))


def node_without_incarnation(node: str) -> str:
    """Return the name without the incarnation: `worker-0` for `worker-0.2`."""
    return node.rpartition(".")[0]


def next_repair(
    attempt: Attempt, nodes: Mapping[str, NodeView], least: int | None, interruptions_left: int | None
) -> Repair | None:
    """Return the next action on lost nodes; None: no node is lost, or the attempt cannot be repaired.

    `nodes`: the current view of each of every_node(), by name. `least`: minimum number of nodes to continue with;
    None: all.
    """
    wanted, names = wanted_nodes(attempt), member_names(attempt)
    if len(wanted) == 1 or any(nodes[name].end is not None and not _is_lost(nodes[name]) for name in names):
        return None  # a member whose program ended ends the whole program
    gone = [name for name in names if nodes[name].end is not None]
    lost = [request for request in wanted if _is_lost(nodes[request.node])]
    if not gone and not lost:
        return _join(wanted, names, nodes, gone)
    well = tuple(request for request in wanted if request.node in names and nodes[request.node].end is None)
    if not well or _is_fruitless(attempt, nodes) or _exceeds(len(gone), interruptions_left):
        return None
    if gone and least is not None and len(well) >= least:
        reason = f"{_how(nodes[gone[0]])}; {len(well)} of {len(wanted)} nodes go on"
        return Regroup(well, len(gone), gone[0], reason, 0.0)
    if not lost:
        return _join(wanted, names, nodes, gone)
    return _replace(wanted, names, nodes, lost, least)


def _replace(
    wanted: Sequence[NodeRequest],
    names: Sequence[str],
    nodes: Mapping[str, NodeView],
    lost: Sequence[NodeRequest],
    least: int | None,
) -> Replace | None:
    if least is None and any(request.node not in names for request in lost):
        return None  # a replacement was lost too: give up on these machines
    renewed = tuple(_next(request) if request in lost else request for request in wanted)
    return Replace(renewed, _how(nodes[lost[0].node]))


def _join(
    wanted: Sequence[NodeRequest], names: Sequence[str], nodes: Mapping[str, NodeView], gone: Sequence[str]
) -> Repair | None:
    newcomers = [request for request in wanted if request.node not in names and nodes[request.node].end is None]
    if not newcomers:
        return None
    if not all(nodes[request.node].waiting for request in newcomers):
        return Wait(idle=bool(gone))
    names = ", ".join(request.node for request in newcomers)
    grace = 0.0 if gone else JOIN_GRACE_S
    return Regroup(tuple(wanted), len(gone), newcomers[0].node, f"{names} joins", grace)


def _is_lost(node: NodeView) -> bool:
    return node.end is not None and node.end.outcome in LOSSES


def _how(node: NodeView) -> str:
    return f"{node.node} {node.end.outcome}: {node.end.reason}" if node.end else node.node


def _next(request: NodeRequest) -> NodeRequest:
    name, _, incarnation = request.node.rpartition(".")
    return dataclasses.replace(request, node=f"{name}.{int(incarnation) + 1}")


def _exceeds(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit


def _is_fruitless(attempt: Attempt, nodes: Mapping[str, NodeView]) -> bool:
    """Return whether the last FRUITLESS changes were all made without a new checkpoint since."""
    now = newest_saved(nodes.values())
    changes = [record for record in attempt.generations if record.kind == "members"][-FRUITLESS:]
    return len(changes) == FRUITLESS and all(record.saved_step >= now for record in changes)


def without_caused_restarts(attempt: Attempt, nodes: Iterable[NodeView]) -> Attempt:
    """Return the attempt without the restarts that other nodes made in reaction to a lost node: only the loss counts.

    A restart of the whole group that the lost node never began is such a reaction.
    """
    known, names = attempt.generations, member_names(attempt)
    begun = [node.generation for node in nodes if node.node in names and _is_lost(node)]
    counted = len(known)
    while counted and _is_answer(known[counted - 1], begun):
        counted -= 1
    if counted == len(known):
        return attempt
    failures, interruptions = (known[counted - 1].failures, known[counted - 1].interruptions) if counted else (0, 0)
    last = dataclasses.replace(known[-1], failures=failures, interruptions=interruptions)
    return dataclasses.replace(attempt, generations=(*known[:-1], last))


def _is_answer(record: Generation, begun: Sequence[int]) -> bool:
    return record.kind != "members" and record.group and any(own < record.generation for own in begun)


def newest_saved(nodes: Iterable[NodeView]) -> int:
    """Return the step of the newest checkpoint that any of the nodes has reported."""
    return max((node.progress.saved_step or 0 for node in nodes if node.progress), default=0)
