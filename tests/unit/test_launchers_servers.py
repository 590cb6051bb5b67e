"""When a TensorFlow cluster has ended: servers never end by themselves."""

from __future__ import annotations

import pytest

from cloudgpu.control.reconcile.outcomes import NodeEnd, NodeView, attempt_outcome, must_stop_peers

DONE, FAILED, THERE = NodeEnd("succeeded", "", 0), NodeEnd("failed", "exit code 1", 1), None


def views(**ends: NodeEnd | None) -> list[NodeView]:
    return [NodeView(node=f"{role}-0.1", role=role, end=end, begun=True, progress=None) for role, end in ends.items()]


@pytest.mark.parametrize(
    ("nodes", "stop", "outcome"),
    [
        (views(chief=DONE, worker=THERE), None, "stopped"),
        (views(chief=DONE, worker=THERE, parameter_server=THERE), "chief-0.1", "succeeded"),
        (views(chief=DONE, worker=DONE, parameter_server=THERE), "chief-0.1", "succeeded"),
        (views(chief=THERE, worker=DONE, parameter_server=THERE), None, "stopped"),
        (views(chief=DONE, worker=THERE, parameter_server=THERE, evaluator=THERE), None, "stopped"),
        (views(chief=DONE, worker=THERE, parameter_server=THERE, evaluator=DONE), "chief-0.1", "succeeded"),
        (views(worker=THERE, parameter_server=THERE), None, "stopped"),
        (views(worker=DONE, parameter_server=THERE), "worker-0.1", "succeeded"),
        (views(chief=THERE, worker=THERE, parameter_server=FAILED), "parameter_server-0.1", "failed"),
        (views(parameter_server=DONE), None, "succeeded"),
    ],
)
def test_servers_end_with_those_they_serve(nodes: list[NodeView], stop: str | None, outcome: str) -> None:
    useless = must_stop_peers(nodes)
    assert (None if useless is None else useless.node) == stop
    assert attempt_outcome(nodes).outcome == outcome
