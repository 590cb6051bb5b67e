"""A program that dies is restarted on its machines: agents and real programs, without a supervisor."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from dataclasses import asdict
from typing import Any

import psutil
import pytest

from cloudgpu.protocol.jobdir import Generation, NodeRecord, attempt_key, generation_key, node_key
from cloudgpu.tests.standins.agents import World, until, world

__all__ = ["world"]

# Each argument says what one start does; the last one also holds for all later starts.
PROGRAM = """
import json, os, signal, sys, time
rank, generation = os.environ["CLOUDGPU_RANK"], int(os.environ["CLOUDGPU_GENERATION"])
acts = sys.argv[1:]
act = acts[min(generation, len(acts)) - 1]
print(f"{generation}: {act}", flush=True)
whose, _, what = act.partition("=")
with open(os.environ["CLOUDGPU_PROGRESS"] + rank, "w") as file:
    json.dump({"step": 10 * generation, "saved_step": 10 * generation}, file)
if what.startswith("saved-"):
    os.replace(os.environ["CLOUDGPU_PROGRESS"] + rank, os.environ["CLOUDGPU_PROGRESS"])
    what = what.removeprefix("saved-")
if what.startswith("await-"):
    while not os.path.exists("go"):
        time.sleep(0.05)
    what = what.removeprefix("await-")
if whose not in (rank, "all"):
    time.sleep(0.3 if what == "0" else 300)
    sys.exit(0)
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "sleep":
    time.sleep(300)
sys.exit(int(what))
"""


def start(world: World, *acts: str, nodes: int = 1, gpus: int = 0, **more: Any) -> None:
    world.job(["python", "main.py"], args=list(acts), code={"main.py": PROGRAM}, nodes=nodes, gpus=gpus, **more)
    for index in range(nodes):
        world.start(index)


def finish(world: World) -> list[str]:
    """Return the nodes' outcomes once all agents have ended."""
    assert [agent.wait(120) for agent in world.agents] == [0] * len(world.agents), world.agent_log()
    assert world.processes() == []
    return [world.result(index).outcome for index in range(len(world.agents))]


def generations(world: World) -> list[Generation]:
    found: list[Generation] = []
    while (data := world.dir.find(generation_key(1, len(found) + 2))) is not None:
        found.append(Generation.from_bytes(data))
    return found


def test_a_killed_program_goes_on_in_the_same_attempt(world: World) -> None:
    start(world, "0=kill", "0=0", failures_left=1)
    assert finish(world) == ["succeeded"]
    (record,) = generations(world)
    assert (record.kind, record.node, record.reason[:15]) == ("failure", "worker-0.1", "rank 0: SIGKILL")
    assert (record.failures, record.interruptions, record.pause_s) == (1, 0, 0.0)
    assert world.texts() == ["1: 0=kill", "2: 0=0"]
    assert world.texts("agent")[-1].startswith("rank 0: SIGKILL: ")
    assert world.texts("agent")[-1].endswith("; it starts again in place (generation 2)")


REPORTS = """
import json, os, signal
print(os.environ["CLOUDGPU_INTERRUPTIONS"], flush=True)
with open(os.environ["CLOUDGPU_PROGRESS"], "w") as file:
    json.dump({"cost": 4.5}, file)
if os.environ["CLOUDGPU_GENERATION"] != "3":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_start_knows_earlier_interruptions_and_cost(world: World) -> None:
    """Starts that never saved count too, in earlier attempts and of this program on the same machines."""
    earlier = {"markets": {"spot": [5000.0, 4], "on-demand": [70.0, 1]}, "cost": 3.0}
    world.job(["python", "main.py"], code={"main.py": REPORTS}, failures_left=2, earlier=earlier)
    world.start(0)
    assert finish(world) == ["succeeded"]
    starts = [json.loads(text) for text in world.texts()]
    assert [start["markets"]["spot"][1] for start in starts] == [4, 5, 6]
    seconds = [start["markets"]["spot"][0] for start in starts]
    assert seconds == sorted(seconds)
    assert 5000 < seconds[0] < seconds[-1] < 5600
    assert all(start["markets"]["on-demand"] == [70.0, 1] for start in starts)
    assert [start["cost"] for start in starts] == [3.0, 4.5, 4.5]


def test_the_timeline_has_every_generation(world: World) -> None:
    start(world, "0=saved-kill", "0=saved-0", failures_left=1, setup="true")
    finish(world)
    timeline = world.result().timeline
    assert timeline is not None
    first, second = timeline["spans"]
    times = [timeline["claimed"], timeline["setup"], timeline["ready"]]
    times += [first["started"], first["ended"], second["started"], second["ended"], timeline["ended"]]
    assert times == sorted(times)
    assert (first["reason"][:15], second["reason"]) == ("rank 0: SIGKILL", "")
    assert [span["progress"]["saved_step"] for span in (first, second)] == [10, 20]
    assert all(span["first_step"] for span in (first, second))


@pytest.mark.parametrize(("launcher", "nodes"), [("torchrun", 1), ("torchrun", 2), ("mpi", 2)])
def test_all_processes_of_the_group_start_again(world: World, launcher: str, nodes: int) -> None:
    if launcher == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("mpi needs Open MPI")
    start(world, "1=kill", "all=0", nodes=nodes, gpus=2 // nodes, launcher=launcher, failures_left=1)
    assert finish(world) == ["succeeded"] * nodes
    (record, *rest) = generations(world)
    assert (record.kind, record.reason[:15], record.group) == ("failure", "rank 1: SIGKILL", True)
    assert [one.kind for one in rest] in ([], ["closed"])
    assert world.texts().count("2: all=0") == 2, "the one that lived, too"


def test_only_the_node_itself_where_nodes_are_on_their_own(world: World) -> None:
    start(world, "1=kill", "1=0", nodes=2, launcher="none", failures_left=1)
    until(lambda: world.has_result(1))
    assert world.result(1).outcome == "succeeded"
    assert world.agents[0].poll() is None
    until(lambda: len(world.texts()) == 3)
    assert sorted(world.texts()) == ["1: 1=kill", "1: 1=kill", "2: 1=0"]
    assert [record.group for record in generations(world)] == [False]
    world.stop(5)
    finish(world)


@pytest.mark.parametrize(
    ("acts", "left", "outcome", "starts"),
    [
        (["0=3"], 0, "failed", 1),
        (["0=saved-3"], 1, "failed", 2),
        (["0=saved-3"], 3, "failed", 4),
        (["0=3"], 9, "failed", 3),  # nothing is saved: other machines are to try it
        (["0=70"], 9, "failed", 1),
        (["0=73"], 9, "error", 1),
        (["0=saved-74", "0=0"], 1, "succeeded", 2),
        (["0=75"], 9, "again", 1),
    ],
)
def test_the_budget_of_failures(world: World, acts: list[str], left: int, outcome: str, starts: int) -> None:
    start(world, *acts, failures_left=left)
    assert finish(world) == [outcome]
    assert len(world.texts()) == starts
    assert [record.failures for record in generations(world)] == list(range(1, starts))


@pytest.mark.parametrize(("left", "outcome", "starts"), [(0, "again", 1), (2, "again", 3), (None, "succeeded", 5)])
def test_interruptions_have_a_budget_of_their_own(world: World, left: int | None, outcome: str, starts: int) -> None:
    acts = ["0=saved-75", "0=saved-76", "0=saved-77", "0=saved-75", "0=0"]
    start(world, *acts, failures_left=0, interruptions_left=left)
    assert finish(world) == [outcome]
    assert len(world.texts()) == starts
    assert [record.interruptions for record in generations(world)] == list(range(1, starts))


def test_a_crash_loop_slows_down(world: World) -> None:
    start(world, "0=3", failures_left=9)
    finish(world)
    assert [record.pause_s for record in generations(world)] == [0.0, 1.0]


def test_nodes_that_fail_at_once_count_once(world: World) -> None:
    start(world, "all=3", "all=0", nodes=2, launcher="torchrun", failures_left=9)
    assert finish(world) == ["succeeded"] * 2
    assert [record.failures for record in generations(world) if record.kind != "closed"] == [1]


def test_a_users_error_on_one_node_is_not_restarted_by_the_other(world: World) -> None:
    start(world, "1=70", nodes=2, launcher="torchrun", failures_left=9)
    until(lambda: world.has_result(1))
    assert (world.result(1).outcome, world.result(1).final) == ("failed", True)
    assert [record.kind for record in generations(world)] == ["closed"]
    world.stop(5)
    finish(world)


@pytest.mark.parametrize(("order", "outcome"), [("stop", "stopped"), ("notice", "preempted")])
def test_a_stopped_or_preempted_program_is_not_restarted(world: World, order: str, outcome: str) -> None:
    start(world, "0=sleep", failures_left=9, interruptions_left=None)
    until(world.texts)
    getattr(world, order)(20)
    assert finish(world) == [outcome]
    assert world.result().exit_code == -15, "by itself it would count as a failure"
    assert generations(world) == []


def test_a_node_that_is_ordered_to_end_keeps_its_peers_from_starting_without_it(world: World) -> None:
    start(world, "all=sleep", nodes=2, launcher="torchrun", failures_left=9)
    until(lambda: len(world.texts()) == 2)
    world.notice(20)
    until(lambda: world.has_result(0))
    assert world.result(0).outcome == "preempted"
    assert [record.kind for record in generations(world)] == ["closed"]
    for process in world.processes():
        with contextlib.suppress(psutil.Error):  # a process of the first node, which is ending
            if process.environ().get("CLOUDGPU_RANK") == "1" and "main.py" in process.cmdline():
                process.kill()
    until(lambda: world.has_result(1))
    assert world.result(1).outcome == "failed"
    finish(world)


def test_a_node_that_sees_a_restart_late_takes_part_in_it(world: World) -> None:
    """The late node has succeeded meanwhile, but its peers need it again."""
    start(world, "1=kill", "all=0", nodes=2, launcher="torchrun", failures_left=1)
    assert finish(world) == ["succeeded"] * 2
    ports = {world.dir.get(node_key(1, "worker-0.1", name)) for name in ("address.json", "address-0002.json")}
    assert len({json.loads(data)["port"] for data in ports}) == 2, "a new rendezvous"
    assert world.dir.exists(attempt_key(1))


# --- nodes that return, are lost or are replaced (test_node_replacement.py and test_lost_node.py test the decision)


def members(world: World, number: int, *names: str, **more: Any) -> None:
    """Write the record with which a supervisor sets the members of a generation."""
    records = [NodeRecord(name, "worker", rank, rank, 0) for rank, name in enumerate(names)]
    record = Generation(
        number,
        "members",
        names[0],
        True,
        "others go on",
        0.0,
        0,
        1,
        time.time(),
        "supervisor",
        list(map(asdict, records)),
        **more,
    )
    assert world.dir.create(generation_key(1, number), record.to_bytes())


def replacement(world: World, index: int) -> None:
    """Start an agent in place of a lost one: the next incarnation."""
    world.start(index, "--node", f"worker-{index}.2", home=world.folder / "homes" / f"{index}.2", machine=f"{index}.2")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_machine_that_was_restarted_begins_a_generation_with_all(world: World, nodes: int) -> None:
    start(world, "all=sleep", "all=0", nodes=nodes, launcher="torchrun", interruptions_left=None)
    until(lambda: len(world.texts()) == nodes)
    last = nodes - 1
    world.lose_power(last)
    world.agents[last] = world.start(last)
    world.agents.pop()
    assert finish(world) == ["succeeded"] * nodes
    record = generations(world)[0]
    assert (record.kind, record.node, record.group) == ("interruption", f"worker-{last}.1", True)
    assert world.texts().count("2: all=0") == nodes


def test_remaining_nodes_wait_for_new_members_and_continue(world: World) -> None:
    """The program on the remaining node failed because of the loss, although no failure is allowed."""
    start(world, "0=await-3", "0=0", nodes=2, launcher="torchrun", heals=True)
    until(lambda: len(world.texts()) == 2)
    world.lose_power(1)
    (world.home(0) / "code" / "go").touch()
    until(lambda: "worker-1.1 seems to be lost: waiting for its replacement" in world.texts("agent"), 180)
    members(world, 2, "worker-0.1")
    assert world.agents[0].wait(180) == 0
    assert world.result(0).outcome == "succeeded"
    assert "2: 0=0" in world.texts()


def test_a_failure_among_nodes_that_are_well_is_one(world: World) -> None:
    start(world, "1=3", nodes=2, launcher="torchrun", heals=True)
    assert world.agents[1].wait(180) == 0
    assert world.result(1).outcome == "failed"
    world.stop(5, "peer")
    finish(world)


@pytest.mark.parametrize("launcher", ["torchrun", "tensorflow", "none", "mpi"])
def test_a_new_machine_waits_until_it_is_named(world: World, launcher: str) -> None:
    if launcher == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("mpi needs Open MPI")
    start(world, "all=sleep", "all=0", nodes=2, launcher=launcher, heals=True, interruptions_left=None)
    until(lambda: len(world.texts()) == 2)
    world.lose_power(1)
    replacement(world, 1)
    until(lambda: "ready to take a lost node's place" in world.texts("agent"))
    members(world, 2, "worker-0.1", "worker-1.2")
    assert world.agents[2].wait(180) == 0
    if launcher == "none":  # nodes are independent: the first one is not affected
        assert not world.has_result(0)
        world.stop(5)
    assert world.agents[0].wait(180) == 0
    assert world.result(0).outcome == ("stopped" if launcher == "none" else "succeeded")
    began = sorted(line.node for line in world.lines() if line.text == "2: all=0")
    assert began == (["worker-1.2"] if launcher == "none" else ["worker-0.1", "worker-1.2"])


def test_a_node_that_is_no_member_ends(world: World) -> None:
    start(world, "all=sleep", "all=0", nodes=2, launcher="torchrun", heals=True)
    until(lambda: len(world.texts()) == 2)
    members(world, 2, "worker-0.1")
    assert finish(world) == ["succeeded", "again"]
    assert "no member" in world.result(1).reason


def test_a_program_may_save_before_others_join(world: World) -> None:
    """The program is asked to save as by a notice, and killed if it does not end."""
    start(world, "all=sleep", "all=0", nodes=1, launcher="torchrun", heals=True)
    until(lambda: len(world.texts()) == 1)
    begun = time.monotonic()
    members(world, 2, "worker-0.1", grace_s=240.0)
    assert finish(world) == ["succeeded"]
    assert time.monotonic() - begun < 120, "SIGTERM ended it"


def test_remaining_nodes_wait_for_one_that_is_leaving(world: World) -> None:
    """The leaving node's machine is about to be taken: its program still saves, and its heartbeats continue."""
    slow = (
        "import os, signal, time\n"
        "def save(*_):\n while not os.path.exists('saved'): time.sleep(0.1)\n raise SystemExit(75)\n"
        "signal.signal(15, save); print('up'); time.sleep(300)"
    )
    fails = "until [ -e fail ]; do sleep 0.1; done; [ $CLOUDGPU_GENERATION = 2 ] || exit 3"
    run = f'[ $CLOUDGPU_NODE = worker-0.1 ] && exec python -c "{slow}"; {fails}'
    world.job(run, nodes=2, launcher="torchrun", heals=True)
    world.start(0)
    until(lambda: "up" in world.texts())
    world.start(1)
    until(lambda: (beat := world.heartbeat(1)) is not None and beat.phase == "running")
    world.notice(240)
    until(lambda: (beat := world.heartbeat(0)) is not None and beat.phase == "stopping")
    (world.home(1) / "code" / "fail").touch()
    until(lambda: "worker-0.1 seems to be lost: waiting for its replacement" in world.texts("agent"))
    (world.home(0) / "code" / "saved").touch()
    until(lambda: world.has_result(0), 180)
    assert world.result(0).outcome == "preempted"
    assert not world.has_result(1), "its program failed while the other one was leaving"
    members(world, 2, "worker-1.1")
    assert world.agents[1].wait(180) == 0
    assert world.result(1).outcome == "succeeded"


def test_no_new_members_are_awaited_for_a_node_that_has_returned(world: World) -> None:
    waits = "echo up; until [ -e fail ]; do sleep 0.1; done; exit 3"
    world.job(f"[ $CLOUDGPU_RANK = 1 ] && exec sleep 300; {waits}", nodes=2, launcher="torchrun", heals=True)
    for index in range(2):
        world.start(index)
    until(lambda: "up" in world.texts() and (beat := world.heartbeat(1)) is not None and beat.phase == "running")
    world.agents[1].send_signal(signal.SIGSTOP)
    (world.home(0) / "code" / "fail").touch()
    until(lambda: "worker-1.1 seems to be lost: waiting for its replacement" in world.texts("agent"), 180)
    world.agents[1].send_signal(signal.SIGCONT)
    assert world.agents[0].wait(180) == 0
    assert (world.result(0).outcome, [record.kind for record in generations(world)]) == ("failed", ["closed"])
    world.stop(5, "peer")
    finish(world)


def test_independent_nodes_keep_their_ranks(world: World) -> None:
    """One node is lost, and the others get a new list of members. Then another node's program dies, which counts as a
    failure, and restarts with its old rank."""
    run = "echo $CLOUDGPU_GENERATION: rank $CLOUDGPU_RANK; [ $CLOUDGPU_GENERATION = 1 ] && exec sleep 300; true"
    world.job(run, nodes=3, launcher="none", heals=True, failures_left=1)
    for index in range(3):
        world.start(index)
    until(lambda: len(world.texts()) == 3)
    members(world, 2, "worker-0.1", "worker-2.1")
    assert world.agents[1].wait(180) == 0
    assert "no member" in world.result(1).reason
    for process in world.processes():
        with contextlib.suppress(psutil.Error):  # a process of the second node, which is ending
            if process.environ().get("CLOUDGPU_MACHINE", "").endswith("/2") and process.name() == "sleep":
                process.kill()
    assert world.agents[2].wait(180) == 0
    assert "3: rank 2" in world.texts(), "nobody else is rank 2, though it is the second of two"
    assert [(record.kind, record.failures) for record in generations(world)] == [("members", 0), ("failure", 1)]
    world.stop(5)
    finish(world)


def test_outputs_are_those_of_the_first_remaining_node(world: World) -> None:
    run = "echo $CLOUDGPU_NODE > made; [ $CLOUDGPU_GENERATION = 2 ] || sleep 300"
    world.job(run, nodes=2, launcher="torchrun", heals=True, outputs=["made"], code={"x": ""})
    for index in range(2):
        world.start(index)
    until(lambda: all(beat is not None and beat.phase == "running" for beat in map(world.heartbeat, range(2))))
    members(world, 2, "worker-1.1")
    assert finish(world) == ["again", "succeeded"]
    assert world.dir.get("outputs/made").split() == [b"worker-1.1"]
    assert not world.dir.exists("outputs/nodes/worker-0/made"), "it was left out"
