"""A machine that was frozen, given up and replaced wakes up: nothing that it does may count any more."""

from __future__ import annotations

import contextlib
import signal
import sys

import psutil
import pytest

from cloudgpu.protocol.jobdir import Result, node_key
from cloudgpu.runtime.agent import agent as agent_module
from cloudgpu.tests.standins.agents import World, until, world

pytest.importorskip("numpy")

__all__ = ["world"]

# Saves and writes an output at every step. The first attempt pauses, with all its saves written, until the file `go`
# exists; the second one ends by itself.
TRAIN = """\
import contextlib, os, time
import numpy as np
from cloudgpu.runtime import Checkpointer, write_output
from cloudgpu.protocol.jobdir import JobDirError

class Box:
    def __init__(self): self.data = np.zeros(1 << 20, np.uint8)
    def state_dict(self): return {"data": self.data}
    def load_state_dict(self, state): self.data[:] = state["data"]

attempt = int(os.environ["CLOUDGPU_ATTEMPT"])
box = Box()
ckpt = Checkpointer(box=box, every=1)
for step in ckpt.steps(10_000):
    if attempt == 1 and step == 5:
        ckpt.wait()
        print("waits", flush=True)
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
    with contextlib.suppress(JobDirError):  # goes on, to save
        write_output("latest", f"attempt {attempt}")
    if attempt == 2 and step % 100 >= 60:
        ckpt.finish()
"""


def newest_commits(world: World) -> list[str]:
    """Return the names of the checkpoints (step, attempt, nonce), oldest first."""
    return sorted(key.split("/")[1] for key in world.dir.list("checkpoints") if key.endswith("/COMMIT.json"))


def first_machine_processes(world: World) -> list[psutil.Process]:
    """Return all processes on the first attempt's machine, parents first."""
    found = []
    for process in sorted(world.processes(), key=lambda process: process.pid):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("CLOUDGPU_MACHINE", "").endswith("/0"):
                found.append(process)
    return found


def send_to_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def is_training(world: World) -> bool:
    """Return whether the first attempt's program runs."""
    for process in first_machine_processes(world):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.cmdline()[1:] == ["train.py"]:
                return True
    return False


def test_a_zombie_changes_nothing_and_ends_itself(world: World) -> None:
    """The first attempt is frozen between two writes, because a write in flight cannot be stopped. Its program wakes
    before its agent, which would end it: the program's writes are refused, and its first save ends it."""
    go = world.folder / "go"
    world.job([sys.executable, "train.py"], code={"train.py": TRAIN}, env={"GO": str(go)})
    zombie = world.start()
    until(lambda: "waits" in world.texts(), 180)
    assert is_training(world)
    send_to_all(first_machine_processes(world), signal.SIGSTOP)
    world.attempt(2)
    successor = world.start(0, attempt=2, home=world.folder / "homes" / "second")
    assert successor.wait(180) == 0
    assert Result.from_bytes(world.dir.get(node_key(2, "worker-0.1", "result.json"))).outcome == "succeeded"
    before = newest_commits(world), world.dir.get("outputs/latest")
    assert before[1] == b"attempt 2"
    go.touch()
    send_to_all([one for one in first_machine_processes(world) if one.pid != zombie.pid], signal.SIGCONT)
    until(lambda: not is_training(world), 180)
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(180) == agent_module.SUPERSEDED
    assert world.processes() == []
    assert (newest_commits(world), world.dir.get("outputs/latest")) == before
    assert not world.has_result()
    assert "attempt 2 has begun" in world.agent_log()


def test_an_agent_alone_that_was_given_up_ends_its_program(world: World) -> None:
    """The program ignores SIGTERM. The agent was not frozen, but lost the connection to the job dir."""
    world.job("trap '' TERM; echo up; while :; do sleep 0.1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    world.attempt(2)
    assert agent.wait(180) == agent_module.SUPERSEDED
    assert world.processes() == []
    assert not world.has_result()


def test_an_output_of_an_older_attempt_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudgpu.protocol.jobdir import JobDirError
    from cloudgpu.runtime import write_output

    world.job("true")
    monkeypatch.setenv("CLOUDGPU_JOB_DIR", world.dir.url)
    monkeypatch.setenv("CLOUDGPU_ATTEMPT", "1")
    assert write_output("a/b", "one") == f"{world.dir.url}/outputs/a/b"
    world.attempt(2)
    with pytest.raises(JobDirError, match="superseded"):
        write_output("a/b", "two")
    monkeypatch.setenv("CLOUDGPU_ATTEMPT", "2")
    write_output("a/b", "three")
    assert world.dir.get("outputs/a/b") == b"three"
