"""What is done about lost nodes: table by table, without a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from cloudgpu.control.reconcile.node_replacement import (
    FRUITLESS,
    JOIN_GRACE_S,
    Regroup,
    Replace,
    Wait,
    all_node_names,
    every_node,
    member_names,
    next_repair,
    node_records,
    wanted_nodes,
    without_caused_restarts,
)
from cloudgpu.control.reconcile.outcomes import NodeEnd, NodeView
from cloudgpu.control.store.model import Attempt
from cloudgpu.protocol.jobdir import Generation, GenerationKind, NodeRecord, Progress, Span, Timeline
from cloudgpu.provisioners.base import Allocation
from cloudgpu.tests.standins.control import make_generation, make_offer

W0, W1, W2 = "worker-0.1", "worker-1.1", "worker-2.1"


def attempt(nodes: int = 3, wanted: list[str] | None = None, generations: Sequence[Generation] = ()) -> Attempt:
    blank = {field.name: None for field in dataclasses.fields(Attempt)}
    known = {"job_id": "j", "number": 1, "offer": make_offer(nodes=nodes), "generations": tuple(generations)}
    made = Attempt(**blank | known)  # type: ignore[arg-type]
    if wanted is None:
        return made
    requests = [dataclasses.replace(one, node=name) for one, name in zip(wanted_nodes(made), wanted, strict=True)]
    return dataclasses.replace(made, nodes=tuple(requests))


def members(*names: str, number: int = 2, **more: Any) -> Generation:
    """A record of the supervisor's."""
    return make_generation(number, "members", *names, **more)


def seen(made: Attempt, **ends: str) -> dict[str, NodeView]:
    """Every node: `w1="lost"` by its end, or `w1="waiting"`; the others are well. Second incarnations are `w1_2`."""
    said = {f"worker-{key[1]}.{key[3:] or 1}": word for key, word in ends.items()}
    return {
        request.node: NodeView(
            request.node,
            "worker",
            NodeEnd(said[request.node], "gone") if said.get(request.node, "waiting") != "waiting" else None,
            begun=True,
            progress=None,
            waiting=said.get(request.node) == "waiting",
        )
        for request in every_node(made)
    }


def names(found: Replace | Regroup) -> list[str]:
    return [request.node for request in found.nodes]


@pytest.mark.parametrize("end", ["lost", "preempted"])
def test_what_was_lost_is_got_again(end: str) -> None:
    made = attempt()
    found = next_repair(made, seen(made, w1=end), None, None)
    assert isinstance(found, Replace)
    assert names(found) == [W0, "worker-1.2", W2]
    assert found.reason == f"{W1} {end}: gone"


def test_several_at_once() -> None:
    made = attempt()
    found = next_repair(made, seen(made, w0="lost", w2="preempted"), None, None)
    assert isinstance(found, Replace)
    assert names(found) == ["worker-0.2", W1, "worker-2.2"]


@pytest.mark.parametrize(
    ("nodes", "ends", "least", "left"),
    [
        (3, {}, None, None),  # nothing was lost
        (1, {"w0": "lost"}, None, None),  # there is nobody to wait for it
        (3, {"w0": "lost", "w1": "lost", "w2": "preempted"}, None, None),
        (3, {"w1": "failed"}, None, None),  # the program's own end
        (3, {"w0": "succeeded", "w1": "lost"}, None, None),
        (3, {"w0": "stopped", "w1": "lost"}, 1, None),
        (3, {"w1": "lost"}, None, 0),  # retry.preemption is used up
        (3, {"w1": "lost", "w2": "lost"}, 1, 1),
    ],
)
def test_what_is_not_healed(nodes: int, ends: dict[str, str], least: int | None, left: int | None) -> None:
    made = attempt(nodes)
    assert next_repair(made, seen(made, **ends), least, left) is None


def test_until_the_new_one_is_ready_the_others_wait() -> None:
    made = attempt(wanted=[W0, "worker-1.2", W2])
    assert [request.node for request in every_node(made)] == [W0, W1, "worker-1.2", W2]
    assert next_repair(made, seen(made, w1="lost"), None, None) == Wait(idle=True)
    found = next_repair(made, seen(made, w1="lost", w1_2="waiting"), None, None)
    assert isinstance(found, Regroup)
    assert (names(found), found.lost, found.grace_s) == ([W0, "worker-1.2", W2], 1, 0.0)


def test_a_new_one_that_is_lost_before_it_was_of_use_ends_the_attempt() -> None:
    made = attempt(wanted=[W0, "worker-1.2", W2])
    assert next_repair(made, seen(made, w1="lost", w1_2="lost"), None, None) is None
    assert next_repair(made, seen(made, w1="lost", w1_2="failed"), None, None) is None


def test_with_a_range_those_that_are_left_go_on_first() -> None:
    made = attempt()
    found = next_repair(made, seen(made, w1="lost"), 2, None)
    assert isinstance(found, Regroup)
    assert (names(found), found.lost, found.grace_s) == ([W0, W2], 1, 0.0)
    assert found.reason == f"{W1} lost: gone; 2 of 3 nodes go on"
    fewer = attempt(generations=[members(W0, W2)])
    assert isinstance(replaced := next_repair(fewer, seen(fewer, w1="lost"), 2, None), Replace)
    assert names(replaced) == [W0, "worker-1.2", W2]


def test_too_few_wait_although_there_is_a_range() -> None:
    made = attempt()
    found = next_repair(made, seen(made, w0="lost", w1="lost"), 2, None)
    assert isinstance(found, Replace)


def test_one_that_joins_lets_the_others_save_first() -> None:
    made = attempt(wanted=[W0, "worker-1.2", W2], generations=[members(W0, W2)])
    assert next_repair(made, seen(made), 2, None) == Wait(idle=False), "they train, it boots"
    found = next_repair(made, seen(made, w1_2="waiting"), 2, 0)
    assert isinstance(found, Regroup)
    assert (names(found), found.lost, found.grace_s) == ([W0, "worker-1.2", W2], 0, JOIN_GRACE_S)


def test_with_a_range_a_lost_newcomer_is_got_again_and_a_failed_one_is_not() -> None:
    made = attempt(wanted=[W0, "worker-1.2", W2], generations=[members(W0, W2)])
    found = next_repair(made, seen(made, w1_2="lost"), 2, None)
    assert isinstance(found, Replace)
    assert names(found) == [W0, "worker-1.3", W2]
    assert next_repair(made, seen(made, w1_2="failed"), 2, None) is None


def test_changes_without_a_new_checkpoint_come_to_an_end() -> None:
    changes = [members(W0, W1, W2, number=number, saved_step=7) for number in range(2, 2 + FRUITLESS)]
    made = attempt(generations=changes)
    nodes = seen(made, w1="lost")
    nodes[W0] = dataclasses.replace(nodes[W0], progress=Progress(saved_step=7))
    assert next_repair(made, nodes, None, None) is None
    nodes[W0] = dataclasses.replace(nodes[W0], progress=Progress(saved_step=8))
    assert isinstance(next_repair(made, nodes, None, None), Replace)
    made = attempt(generations=changes[1:])
    assert isinstance(next_repair(made, seen(made, w1="lost"), None, None), Replace)


def _began(view: NodeView, generation: int) -> NodeView:
    return dataclasses.replace(view, timeline=Timeline(0.0, spans=[dataclasses.asdict(Span(generation, 0.0))]))


def own(number: int, kind: GenerationKind, failures: int, interruptions: int, *, group: bool = True) -> Generation:
    """A record of the nodes'."""
    return make_generation(number, kind, failures=failures, interruptions=interruptions, group=group)


@pytest.mark.parametrize(
    ("records", "lost_began", "expected"),
    [
        ([], 1, []),
        ([own(2, "failure", 1, 0)], 1, [(0, 0)]),  # died of the loss
        ([own(2, "failure", 1, 0)], 2, [(1, 0)]),  # was lost after it
        ([own(2, "interruption", 0, 1)], 1, [(0, 0)]),
        ([own(2, "interruption", 0, 1), own(3, "failure", 1, 1)], 1, [(0, 1), (0, 0)]),  # again and again
        ([own(2, "failure", 1, 0), own(3, "failure", 2, 0)], 2, [(1, 0), (1, 0)]),
        ([own(2, "failure", 1, 0, group=False)], 1, [(1, 0)]),  # that node's own
        ([members(W0, W1, failures=1, interruptions=4)], 1, [(1, 4)]),
    ],
)
def test_what_the_others_did_because_of_a_loss_does_not_count(
    records: list[Generation], lost_began: int, expected: list[tuple[int, int]]
) -> None:
    made = attempt(generations=records)
    nodes = seen(made, w1="lost")
    nodes[W1] = _began(nodes[W1], lost_began)
    found = without_caused_restarts(made, nodes.values()).generations
    assert [(record.failures, record.interruptions) for record in found] == expected
    well = seen(made)
    assert without_caused_restarts(made, well.values()) == made, "nothing was lost"


def test_records_are_numbered_without_gaps() -> None:
    requests = [request for request in wanted_nodes(attempt(4)) if request.node != W1]
    assert node_records(requests) == [
        NodeRecord(W0, "worker", 0, 0, 0),
        NodeRecord(W2, "worker", 1, 1, 0),
        NodeRecord("worker-3.1", "worker", 2, 2, 0),
    ]


def test_the_newest_word_says_who_is_a_member() -> None:
    later = [members(W0), make_generation(3, "failure")]
    made = attempt(wanted=[W0, "worker-1.2", W2], generations=later)
    assert member_names(made) == [W0]
    machines = Allocation("local", "j", 1, "t", {W0: "a", W1: "b", W2: "c", "worker-1.2": "d"})
    assert all_node_names(dataclasses.replace(made, allocation=machines)) == [W0, W1, W2, "worker-1.2"]
