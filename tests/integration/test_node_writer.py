"""The node's checkpoint writer beside a real program: it outlives the program, and ends with the agent."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloudgpu.runtime.agent import agent as agent_module
from cloudgpu.tests.standins.agents import World, until, world

pytest.importorskip("numpy")

__all__ = ["world"]

MEGABYTES = 64

# Saves every third step; in the middle of step END it does what ACT says.
TRAIN = """\
import os, signal, sys, time
import numpy as np
from cloudgpu.runtime import Checkpointer

class Box:
    def __init__(self): self.data = np.zeros(int(sys.argv[1]) << 20, np.uint8)
    def state_dict(self): return {"data": self.data}
    def load_state_dict(self, state): self.data[:] = state["data"]

box, act, end = Box(), sys.argv[2], int(sys.argv[3])
ckpt = Checkpointer(box=box, every=3)
print("from", ckpt.step, flush=True)
for step in ckpt.steps(10_000):
    box.data[:] = step % 256
    time.sleep(0.05)
    if step == end:
        print(act, flush=True)
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif act == "hang":
            time.sleep(300)
        else:
            ckpt.finish()
"""


def train(world: World, act: str, end: int, megabytes: int = MEGABYTES, **more: Any) -> None:
    program = [sys.executable, "train.py", str(megabytes), act, str(end)]
    world.job(program, code={"train.py": TRAIN}, **more)


def committed(world: World) -> list[int]:
    """Return the steps of the committed checkpoints."""
    names = [re.search(r"checkpoints/(\d+)-.*/COMMIT.json", key) for key in world.dir.list("checkpoints")]
    return sorted(int(name[1]) for name in names if name)


def writers(world: World) -> list[psutil.Process]:
    """Return the writers that serve the whole node, without their guards."""
    found = []
    for process in world.processes():
        try:
            line = process.cmdline()
            if "--socket" in line and not any("orphan_guard.py" in word for word in line):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_data_staged_by_a_killed_program_is_committed_before_the_result(world: World) -> None:
    train(world, "kill", 6)  # the sixth step was staged just now: its 64 MB are not written yet
    result = world.run()
    assert (result.outcome, result.exit_code) == ("failed", -9)
    assert committed(world)[-1] == 6
    assert world.processes() == []


def test_a_program_that_starts_again_finds_what_it_had_staged(world: World) -> None:
    train(world, "kill", 6, failures_left=1)
    agent = world.start()
    until(lambda: "from 6" in world.texts(), 180)
    world.stop(20)
    assert agent.wait(180) == 0
    assert world.texts()[0] == "from 0"


def test_a_writer_that_dies_is_replaced_and_the_training_saved(world: World) -> None:
    train(world, "finish", 60)
    agent = world.start()
    until(lambda: len(committed(world)) > 0, 180)
    for _ in range(2):
        until(lambda: writers(world), 180)
        writers(world)[0].kill()
        until(lambda: not writers(world) or agent.poll() is not None, 180)
    assert agent.wait(120) == 0
    assert world.result().outcome == "succeeded", world.texts("stderr")
    assert committed(world)[-1] == 61
    assert any("the checkpoint writer has died" in text for text in world.texts("agent"))
    assert world.processes() == []


def test_a_hung_program_is_ended_early_enough_and_its_last_slot_is_written(world: World) -> None:
    train(world, "hang", 6, megabytes=8)
    agent = world.start()
    until(lambda: "hang" in world.texts(), 180)
    world.notice(25)
    # It did not wait for the deadline, at which the machine would be gone.
    assert agent.wait(180) == agent_module.DONE, (world.texts("agent"), world.texts("stderr"), world.heartbeat())
    assert world.result().outcome == "preempted"
    assert committed(world)[-1] == 6
    assert world.processes() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_writer_ends_with_the_agent(world: World, number: signal.Signals) -> None:
    train(world, "hang", 3, megabytes=1)
    agent = world.start()
    until(lambda: writers(world) and "hang" in world.texts(), 180)
    agent.send_signal(number)
    if number == signal.SIGTERM:
        time.sleep(0.3)
        agent.send_signal(number)  # a second signal ends it at once
    agent.wait(180)
    until(lambda: world.processes() == [], 180)


def test_a_program_that_is_over_at_once_needs_no_writer(world: World) -> None:
    world.job("true")
    world.run()
    assert not (world.home() / "state" / "writer.sock").exists()


def test_no_program_of_the_job_decides_what_the_writer_runs(world: World) -> None:
    code = {"train.py": TRAIN, "json.py": "raise SystemExit('not this one')"}
    program = f'cd /; env -u PYTHONPATH {sys.executable} -P "$OLDPWD"/train.py 1 finish 20'
    world.job(program, code=code, env={"PYTHONPATH": str(world.home() / "code")})
    assert world.run().outcome == "succeeded", world.texts("stderr")
    assert "not this one" not in world.agent_log()
    assert committed(world)[-1] == 21


AGENT = """
import os, signal, sys, time
from pathlib import Path
from cloudgpu.runtime.agent.node.writer import NodeWriter

writer = NodeWriter(Path(sys.argv[1]), os.environ, print)
writer.begin()
while writer.process is None:
    time.sleep(writer.keep_up())
children = f"/proc/{writer.process}/task/{writer.process}/children"
while not open(children).read():
    pass
for process in (writer.process, os.getpid()):
    os.kill(process, signal.SIGKILL)
"""


def test_it_ends_with_an_agent_that_is_killed_with_its_keeper_while_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "writer.sock"
    subprocess.run([sys.executable, "-c", AGENT, str(path)], check=False, timeout=180)

    def alive() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if str(path) in (one.info["cmdline"] or ())]

    until(lambda: not alive())
