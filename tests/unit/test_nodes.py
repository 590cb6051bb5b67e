"""The machines of an offer: their names and ranks."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from cloudgpu.control.members import node_requests
from cloudgpu.jobspecs.plan import Offer, RoleOffer


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
