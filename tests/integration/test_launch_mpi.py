"""Real mpirun, real daemons, mpi4py programs: several agents on this machine, each a node of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time

import pytest

from cloudgpu.runtime import agent as agent_module
from cloudgpu.tests.standins.agents import World, until, world

__all__ = ["world"]

pytest.importorskip("mpi4py", reason="pip install mpi4py, to run MPI programs")
pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="Open MPI is missing: apt-get install openmpi-bin libopenmpi-dev"
)

ALLREDUCE = """
import json, os
from mpi4py import MPI
world = MPI.COMM_WORLD
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "CLOUDGPU_RANK", "CLOUDGPU_NODE"]
print(json.dumps([world.Get_rank(), world.Get_size(), world.allreduce(world.Get_rank()), *(os.environ[n] for n in names)]))
"""


def run_all(world: World, nodes: int, limit_s: float = 60.0) -> list[tuple[str, int | None]]:
    """Start every node's agent, wait, and return (outcome, exit code) of each."""
    for index in range(nodes):
        world.start(index)
    for index, agent in enumerate(world.agents):
        assert agent.wait(limit_s) == agent_module.DONE, world.agent_log(index)
    assert world.processes() == []
    return [(world.result(index).outcome, world.result(index).exit_code) for index in range(nodes)]


def test_ranks_of_several_nodes_are_one_world(world: World) -> None:
    world.job([sys.executable, "main.py"], code={"main.py": ALLREDUCE}, nodes=3, gpus=2, launcher="mpi")
    assert run_all(world, 3) == [("succeeded", 0)] * 3, world.texts("stderr")
    rows = sorted(json.loads(text) for text in world.texts())
    assert rows == [
        [rank, 6, 15, str(rank), str(rank % 2), "6", "2", str(rank // 2), str(rank), f"worker-{rank // 2}.1"]
        for rank in range(6)
    ]
    assert {line.rank for line in world.lines() if line.stream == "stdout"} == set(range(6))
