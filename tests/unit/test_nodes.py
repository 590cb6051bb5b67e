"""The machines of an offer: their names and ranks, and what is said of those that are gone."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from cloudgpu.control.members import node_requests
from cloudgpu.control.nodes import Watches, look
from cloudgpu.control.outcomes import NodeEnd
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.provisioners.base import NodeState
from cloudgpu.runtime.jobdir import JobDir
from cloudgpu.runtime.objects import local_url


def role(name: str, nodes: int) -> RoleOffer:
    return RoleOffer(name, nodes, "local", None, Fraction(0), 2, 4.0, Decimal(0))


def test_ranks_count_through_all_roles() -> None:
    roles = (role("chief", 1), role("worker", 3), role("evaluator", 2))
    offer = Offer("local", "local", None, "on-demand", roles, 0.0, Decimal(0), Decimal(0), None)
    assert [(node.node, node.index, node.rank) for node in node_requests(offer)] == [
        ("chief-0.1", 0, 0),
        ("worker-0.1", 0, 1),
        ("worker-1.1", 1, 2),
        ("worker-2.1", 2, 3),
        ("evaluator-0.1", 0, 4),
        ("evaluator-1.1", 1, 5),
    ]


def look_at_gone(tmp_path: Path, state: NodeState) -> NodeEnd | None:
    """How a node ended that left no word behind."""
    [node] = node_requests(Offer("aws", "r", "z", "spot", (role("worker", 1),), 0.0, Decimal(0), Decimal(0), None))
    [view] = look(JobDir(local_url(tmp_path)), Watches(1), [node], {node.node: state}, 0.0)
    return view.end


def test_a_machine_that_the_provider_took_was_preempted_though_no_notice_came(tmp_path: Path) -> None:
    detail = "terminated: Server.SpotInstanceTermination: Instance terminated"
    end = look_at_gone(tmp_path, NodeState("worker-0.1", "gone", detail, taken=True))
    assert end is not None
    assert (end.outcome, end.reason) == ("preempted", f"the provider took the machine back: {detail}")


def test_a_machine_that_vanished_is_lost(tmp_path: Path) -> None:
    end = look_at_gone(tmp_path, NodeState("worker-0.1", "gone", "terminated: Server.InternalError"))
    assert end is not None and end.outcome == "lost"
