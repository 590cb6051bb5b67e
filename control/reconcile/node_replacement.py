"""What to do about lost nodes of an attempt whose other nodes are well: replace them, or do without them. Pure.

A new attempt means new machines for all; a lost node needs one. So as long as some of the nodes live, only what was
lost is got again, and the program starts anew from its newest checkpoint when all are there. With `nodes: 2..4` it does
not even wait: it goes on with those that are left, and takes the new one in when that is ready.
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
"""So often in a row an attempt's nodes are changed without a new checkpoint in between; then all are got anew."""
JOIN_GRACE_S = 120.0
"""What a program that trains with fewer nodes has to save and end by itself, when a new one is ready."""

LOSSES = frozenset({"lost", "preempted"})


@dataclass(frozen=True, slots=True)
class Replace:
    """Get machines for these, which are numbered as the next incarnations of the lost ones."""

    nodes: tuple[NodeRequest, ...]
    """All that the attempt shall have by now, in rank order."""
    reason: str


@dataclass(frozen=True, slots=True)
class Regroup:
    """The program starts again on these."""

    nodes: tuple[NodeRequest, ...]
    lost: int
    """Interruptions that this costs of the job's budget."""
    node: str
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Machines are to come, or come, in the place of lost ones."""

    idle: bool
    """Nothing trains meanwhile."""


Cure = Replace | Regroup | Wait


def node_requests(offer: Offer) -> tuple[NodeRequest, ...]:
    """The machines of an offer in rank order, each in its first incarnation."""
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
    """The machines that an attempt shall have by now, in rank order: each place once, in its newest incarnation."""
    if attempt.nodes is None:
        return node_requests(attempt.offer)
    return attempt.nodes


def node_records(requests: Sequence[NodeRequest]) -> list[NodeRecord]:
    """As the machines read them; numbered without gaps, and a part of a GPU is one GPU to its program."""
    records: list[NodeRecord] = []
    for rank, request in enumerate(requests):
        index = sum(record.role == request.role for record in records)
        gpus = int(request.count) if request.count >= 1 else int(request.count > 0)
        records.append(NodeRecord(request.node, request.role, index, rank, gpus=gpus))
    return records


def member_names(attempt: Attempt) -> list[str]:
    """The nodes that the program runs on, or would if all of them were well."""
    for record in reversed(attempt.generations):
        if record.nodes is not None:
            return [node["node"] for node in record.nodes]
    return [request.node for request in node_requests(attempt.offer)]


def every_node(attempt: Attempt) -> list[NodeRequest]:
    """The members, and those that are to become members: whoever must be looked at, in rank order."""
    wanted = wanted_nodes(attempt)
    place_of = {place(request.node): request for request in wanted}
    gone = [
        dataclasses.replace(place_of[place(name)], node=name)
        for name in member_names(attempt)
        if name not in [request.node for request in wanted]
    ]
    return sorted([*wanted, *gone], key=lambda request: (request.rank, request.node))


def names_ever(attempt: Attempt) -> list[str]:
    """Return the names of all machines the attempt has had, lost ones included."""
    machines = () if attempt.allocation is None else attempt.allocation.machines
    return list(dict.fromkeys([*machines, *(request.node for request in every_node(attempt))]))


def place(node: str) -> str:
    """`worker-0` of `worker-0.2`."""
    return node.rpartition(".")[0]


def cure(
    attempt: Attempt, nodes: Mapping[str, NodeView], least: int | None, interruptions_left: int | None
) -> Cure | None:
    """What to do next about what was lost; None: nothing was, or it cannot be healed.

    `nodes`: every_node() by name, as they are seen now. `least`: with so many the program may go on; None: with all.
    """
    wanted, names = wanted_nodes(attempt), member_names(attempt)
    if len(wanted) == 1 or any(nodes[name].end is not None and not _is_lost(nodes[name]) for name in names):
        return None  # a member's own end is the program's
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
        return None  # what came to replace a node was lost as well: these machines are not meant to be
    renewed = tuple(_next(request) if request in lost else request for request in wanted)
    return Replace(renewed, _how(nodes[lost[0].node]))


def _join(
    wanted: Sequence[NodeRequest], names: Sequence[str], nodes: Mapping[str, NodeView], gone: Sequence[str]
) -> Cure | None:
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
    """Whether the last changes have all been made at the newest checkpoint that there is."""
    now = newest_saved(nodes.values())
    changes = [record for record in attempt.generations if record.kind == "members"][-FRUITLESS:]
    return len(changes) == FRUITLESS and all(record.saved_step >= now for record in changes)


def forgiven(attempt: Attempt, nodes: Iterable[NodeView]) -> Attempt:
    """The attempt without what its nodes have used of the budgets because others were lost: the loss itself counts.

    A generation of all that a lost node never began was the others' answer to its end.
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
    """Return the steps in the newest checkpoint that any of the nodes has reported."""
    return max((node.progress.saved_step or 0 for node in nodes if node.progress), default=0)
