"""One of N training ranks is killed: training continues in place, in the same attempt, to the same bits as undisturbed.

CLOUDGPU_LONG=1 repeats this for more ranks, twenty times each.
"""

from __future__ import annotations

import functools
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cloudgpu.protocol.jobdir import Generation, generation_key
from cloudgpu.tests.standins.agents import World, until, world
from cloudgpu.tests.standins.ddp import TRAIN, beginnings
from cloudgpu.tests.standins.long_mode import LONG

pytest.importorskip("torch")

__all__ = ["world"]

STEPS = 120


def train(world: World, nodes: int, per_node: int, step_s: float) -> None:
    world.job(
        [sys.executable, "train.py", str(STEPS), str(step_s), str(undisturbed_from(world))],
        code={"train.py": TRAIN},
        nodes=nodes,
        gpus=per_node,
        launcher="torchrun",
        failures_left=1,
    )
    for index in range(nodes):
        world.start(index)


def undisturbed_from(world: World) -> Path:
    """Return the path of a file: once the file exists, nothing interrupts the training any more; see ddp.py."""
    return world.folder / "undisturbed"


def finish(world: World) -> str:
    """Wait until all nodes have succeeded; return the checksum of the weights."""
    assert [agent.wait(300) for agent in world.agents] == [0] * len(world.agents), world.texts("stderr")
    outcomes = [world.result(index) for index in range(len(world.agents))]
    assert [result.outcome for result in outcomes] == ["succeeded"] * len(outcomes), "\n".join(
        world.texts("agent") + world.texts("stderr")
    )
    assert world.processes() == []
    return world.dir.get("outputs/weights.sha256").decode()


@functools.cache
def undisturbed(ranks: int, make: Callable[[], World]) -> str:
    alone = make()
    undisturbed_from(alone).touch()
    train(alone, 1, ranks, 0.0)
    return finish(alone)


@pytest.fixture(scope="module")
def new_world(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    return lambda: World(tmp_path_factory.mktemp("undisturbed"))


def trainers(world: World) -> dict[int, psutil.Process]:
    """Return the training processes by rank, without their guards."""
    found = {}
    for process in world.processes():
        try:
            line = process.cmdline()
            if line[1:2] == ["train.py"]:
                found[int(process.environ()["RANK"])] = process
        except psutil.Error:
            continue
    return found


def steps_begun(world: World) -> list[int]:
    """Return the first step of every process."""
    return [step for _, step in beginnings(world.texts())]


def furthest(world: World) -> int:
    beats = [world.heartbeat(index) for index in range(len(world.agents))]
    return max(int((beat.progress or {}).get("saved_step") or 0) for beat in beats if beat) if any(beats) else 0


CASES = [(1, 2), (2, 1), (1, 4), (2, 2)] if LONG else [(1, 2), (2, 1)]


@pytest.mark.parametrize("seed", range(20 if LONG else 1))
@pytest.mark.parametrize(("nodes", "per_node"), CASES)
def test_one_rank_is_killed(world: World, new_world: Callable[[], World], nodes: int, per_node: int, seed: int) -> None:
    ranks, chance = nodes * per_node, random.Random(f"{nodes} {per_node} {seed}")
    expected = undisturbed(ranks, new_world)
    train(world, nodes, per_node, 0.03)
    until(lambda: furthest(world) > 0, 180)
    time.sleep(chance.uniform(0, 1.5))
    victim = chance.randrange(ranks)
    trainers(world)[victim].send_signal(signal.SIGKILL)
    undisturbed_from(world).touch()
    assert finish(world) == expected
    record = Generation.from_bytes(world.dir.get(generation_key(1, 2)))
    assert (record.kind, record.failures) == ("failure", 1)
    begun = steps_begun(world)
    assert len(begun) == 2 * ranks, begun
    assert begun[:ranks] == [0] * ranks
    assert len(set(begun[ranks:])) == 1 and begun[-1] > 0, begun
