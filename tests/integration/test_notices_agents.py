"""Whole agents under a metadata server: their programs train until their machines are taken away."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from cloudgpu.runtime.agent import agent as agent_module
from cloudgpu.tests.standins.agents import World, until, world
from cloudgpu.tests.standins.metadata import MetadataServer
from cloudgpu.tests.standins.metadata_aws import AwsMetadata
from cloudgpu.tests.standins.metadata_azure import AzureMetadata
from cloudgpu.tests.standins.metadata_gcp import GcpMetadata

__all__ = ["world"]  # a fixture

TRAINING = """
import time
import numpy as np
from cloudgpu.runtime import Checkpointer

class Model:
    def __init__(self):
        self.weights = np.zeros(4)
    def state_dict(self):
        return {"weights": self.weights}
    def load_state_dict(self, state):
        self.weights = np.array(state["weights"])

model = Model()
ckpt = Checkpointer(model=model)
for step in ckpt.steps(1_000_000):
    x = np.random.default_rng(step).normal(size=(16, 4))
    model.weights -= 0.1 * x.T @ (x @ model.weights - x.sum(1)) / 16
    if step == 3:
        print("training", flush=True)
    time.sleep(0.005)
"""


def agent_on(
    cloud: str, server: MetadataServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> subprocess.Popen[bytes]:
    variable, value = {
        "aws": ("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url),
        "gcp": ("GCE_METADATA_HOST", server.host),
        "azure": ("CLOUDGPU_AZURE_METADATA", server.url),
    }[cloud]
    monkeypatch.setenv(variable, value)
    return world.start(0, "--notices", cloud)


def commits(world: World) -> list[str]:
    return [key for key in world.dir.list("checkpoints") if key.endswith("COMMIT.json")]


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_training_program_is_saved_when_its_machine_is_taken(
    cloud: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job([sys.executable, "main.py"], code={"main.py": TRAINING}, checkpoint_every=3600)
    with {"aws": AwsMetadata, "gcp": GcpMetadata, "azure": AzureMetadata}[cloud]() as server:
        agent = agent_on(cloud, server, world, monkeypatch)
        until(lambda: "training" in world.texts() or agent.poll() is not None, 180)
        server.preempt()
        assert agent.wait(180) == 0, world.agent_log()
        result = world.result()
        assert (result.outcome, result.exit_code) == ("preempted", 75), world.lines()
        assert result.reason.startswith(f"notice from {cloud}")
        assert len(commits(world)) == 1, "it is the notice that had it saved: nothing else was due"
        assert result.progress is not None and result.progress["saved_step"] >= 3
        if isinstance(server, AzureMetadata):
            assert len(server.started) == 1, "this machine is all the event names, and all there is of the attempt"


def test_a_program_saves_and_trains_on_until_the_event_is_near(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job([sys.executable, "main.py"], code={"main.py": TRAINING}, checkpoint_every=3600)
    with AzureMetadata() as server:
        agent = agent_on("azure", server, world, monkeypatch)
        until(lambda: "training" in world.texts() or agent.poll() is not None, 180)
        server.announce("Freeze", 900)
        end = server.announce("Terminate", 900)
        until(lambda: commits(world), 180)
        time.sleep(1)
        assert agent.poll() is None, "it trains on"
        server.announce("Terminate", 100, event_id=end)
        assert agent.wait(180) == 0
        assert (world.result().outcome, world.result().exit_code) == ("preempted", 75)
        assert len(commits(world)) == 2
        assert [text for text in world.texts("agent") if "freeze" in text and "nothing is done" in text]


# Its save lasts until the files that its arguments name exist, and then for a time that depends on the rank.
LEAVING = """
import os, sys, time
open(os.environ["CLOUDGPU_LISTENING"], "w").close()
print("up", flush=True)
while not os.path.exists(os.environ["CLOUDGPU_NOTICE"]):
    time.sleep(0.02)
os.unlink(os.environ["CLOUDGPU_LISTENING"])  # as the Checkpointer does: from here on it only saves
print("saving", flush=True)
while not all(map(os.path.exists, sys.argv[1:])):
    time.sleep(0.02)
time.sleep(1 + int(os.environ["CLOUDGPU_RANK"]))
sys.exit(75)
"""


def test_a_program_that_is_saving_is_not_disturbed_by_a_second_notice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = world.folder / "saved"
    world.job(["python", "main.py", str(saved)], code={"main.py": LEAVING})
    with AzureMetadata() as server:
        agent = agent_on("azure", server, world, monkeypatch)
        until(lambda: "up" in world.texts())
        event = server.announce("Preempt", 240)
        until(lambda: "saving" in world.texts())
        server.announce("Preempt", None, event_id=event)  # it begins early
        until(lambda: any("begun already" in text for text in world.texts("agent")))
        saved.touch()
        assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().exit_code) == ("preempted", 75)


def test_the_first_of_two_nodes_lets_the_event_begin_when_the_second_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("python main.py", code={"main.py": LEAVING}, nodes=2)
    with AzureMetadata("vm_0") as first, AzureMetadata("vm_1") as second:
        agents = []
        for index, server in enumerate((first, second)):
            monkeypatch.setenv("CLOUDGPU_AZURE_METADATA", server.url)
            agents.append(world.start(index, "--notices", "azure"))
        until(lambda: world.texts().count("up") == 2)
        for server in (first, second):
            server.announce("Preempt", 240, "vm_0", "vm_1", event_id="E-1")
        assert [agent.wait(180) for agent in agents] == [0, 0]
        assert [world.result(index).outcome for index in (0, 1)] == ["preempted", "preempted"]
        assert (first.started, second.started) == (["E-1"], []), world.agent_log()


def maintain(world: World, server: GcpMetadata) -> None:
    """Announce maintenance of this machine's host once the program runs; without a GPU that is one minute ahead."""
    until(lambda: "generation 1" in world.texts(), 180)
    server.set("scheduling/automatic-restart", "TRUE")
    server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")


COUNTING = """
import os, sys, time
generation = int(os.environ["CLOUDGPU_GENERATION"])
if generation == 1:
    open(os.environ["CLOUDGPU_LISTENING"], "w").close()
print(f"generation {generation}", flush=True)
while generation == 1 and not os.path.exists(os.environ["CLOUDGPU_NOTICE"]):
    time.sleep(0.02)
sys.exit(75 if generation == 1 else 0)
"""


def test_a_node_goes_on_on_the_machine_that_is_restarted_after_maintenance(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("python main.py", code={"main.py": COUNTING}, interruptions_left=1)
    with GcpMetadata() as server:
        agent = agent_on("gcp", server, world, monkeypatch)
        maintain(world, server)
        until(lambda: "waiting for the machine's restart" in world.texts("agent"), 180)
        beat = world.heartbeat()
        assert beat is not None
        until(lambda: (world.heartbeat() or beat).sequence > beat.sequence + 1)
        assert agent.poll() is None, "it tells that it is there until the machine goes"
        (world.home() / agent_module.REBOOTING).touch()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(180) == agent_module.VANISHED
        assert not world.has_result(), "it has not ended"
        server.set("maintenance-event", "NONE")
        (world.home() / agent_module.REBOOTING).unlink()
        assert world.start(0, "--notices", "gcp").wait(180) == 0
    assert world.result().outcome == "succeeded"
    assert world.texts() == ["generation 1", "generation 2"]


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
def test_a_reboot_begins_once_all_is_saved_and_the_node_goes_on(
    kind: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("python main.py", code={"main.py": COUNTING}, interruptions_left=1)
    with AzureMetadata() as server:
        agent = agent_on("azure", server, world, monkeypatch)
        until(lambda: "generation 1" in world.texts(), 180)
        event = server.announce(kind, 900)  # acknowledged before that
        until(lambda: server.started, 180)
        until(lambda: "waiting for the machine's restart" in world.texts("agent"))
        assert agent.poll() is None, "it tells that it is there until the machine goes"
        (world.home() / agent_module.REBOOTING).touch()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(180) == agent_module.VANISHED
        assert not world.has_result(), "it has not ended"
        (world.home() / agent_module.REBOOTING).unlink()
        again = world.start(0, "--notices", "azure")  # while the event is still reported as started
        until(lambda: "generation 2" in world.texts(), 180)
        server.over(event)
        assert again.wait(180) == 0
        assert server.started == [event]
    assert world.result().outcome == "succeeded"
    assert world.texts() == ["generation 1", "generation 2"]


def test_a_node_goes_on_where_the_announced_restart_does_not_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("python main.py", code={"main.py": COUNTING}, interruptions_left=1)
    with GcpMetadata() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        agent = world.start(0, "--notices", "gcp", "--restart-late-s", "-50")  # late 50 s before the restart is due
        maintain(world, server)
        assert agent.wait(180) == agent_module.STAYED, world.agent_log()
        assert not world.has_result()
        server.set("maintenance-event", "NONE")
        assert world.start(0, "--notices", "gcp").wait(180) == 0
    assert world.result().outcome == "succeeded"
    assert world.texts() == ["generation 1", "generation 2"]


def test_a_machine_that_awaits_its_restart_and_goes_for_good_has_been_preempted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("python main.py", code={"main.py": COUNTING})
    with GcpMetadata() as server:
        agent = agent_on("gcp", server, world, monkeypatch)
        maintain(world, server)
        until(lambda: "waiting for the machine's restart" in world.texts("agent"), 180)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().reason) == ("preempted", "the machine is shut down")


def test_a_job_that_is_cancelled_while_a_restart_is_awaited_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job("python main.py", code={"main.py": COUNTING})
    with GcpMetadata() as server:
        agent = agent_on("gcp", server, world, monkeypatch)
        maintain(world, server)
        until(lambda: "waiting for the machine's restart" in world.texts("agent"), 180)
        world.stop(5)
        assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().reason) == ("stopped", "cancelled")


def test_a_schedulers_warning_to_the_agent(world: World) -> None:
    world.job("python main.py", code={"main.py": LEAVING})
    agent = world.start()
    until(lambda: "up" in world.texts())
    agent.send_signal(signal.SIGUSR1)
    assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().reason) == ("preempted", "the scheduler's warning (SIGUSR1)")


def test_a_metadata_server_that_hangs_does_not_touch_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job("echo done")
    with AzureMetadata() as server:
        server.fault = "hang"
        assert agent_on("azure", server, world, monkeypatch).wait(100) == 0, "the first answer may take two minutes"
    assert world.result().outcome == "succeeded"
