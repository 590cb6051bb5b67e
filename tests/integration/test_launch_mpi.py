"""Real mpirun, daemons and mpi4py programs: several agents on this machine, each as a separate node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.runtime.agent import agent as agent_module
from cloudgpu.tests.standins.agents import World, until, world
from cloudgpu.tests.standins.long_mode import in_long_mode

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
own = [world.Get_rank(), world.Get_size(), world.allreduce(world.Get_rank())]
print(json.dumps([*own, *(os.environ[name] for name in names)]))
"""

STUCK = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
print("ready", os.getpid(), flush=True)
if world.Get_rank() == int(sys.argv[1]):
    exec(sys.argv[2])
world.recv(source=MPI.ANY_SOURCE)  # for ever: nobody sends
"""

LISTENER = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
open(os.environ["CLOUDGPU_LISTENING"], "w").close()
print("ready", flush=True)
while not world.allreduce(os.path.exists(os.environ["CLOUDGPU_NOTICE"]), op=MPI.LOR):
    time.sleep(0.02)
print("saved", flush=True)
sys.exit(75)
"""

HANDLER = """
import signal, sys, time
from mpi4py import MPI
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
while not asked:
    time.sleep(0.02)
time.sleep(2)  # saves
MPI.COMM_WORLD.Barrier()
print("saved", flush=True)
sys.exit(75)
"""

TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist
from mpi4py import MPI
from cloudgpu.runtime import Checkpointer

world, steps = MPI.COMM_WORLD, int(sys.argv[1])
torch.set_num_threads(1)

def fresh():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)

def gradients(model, step, rank):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    return torch.autograd.grad(model(inputs).square().mean(), list(model.parameters()))

def update(model, optimizer, sums):
    for parameter, gradient in zip(model.parameters(), sums):
        parameter.grad = gradient / world.size
    optimizer.step()

model, optimizer = fresh()
ckpt = Checkpointer(model=model, optimizer=optimizer, every=5)
if "MASTER_ADDR" in os.environ:  # the Checkpointer has left torch's default group alone
    dist.init_process_group("gloo")
    assert dist.get_world_size() == world.size
print("from step", ckpt.step, flush=True)
for step in ckpt.steps(steps):
    own = gradients(model, step, world.rank)
    update(model, optimizer, [torch.from_numpy(world.allreduce(one.numpy())) for one in own])
    if step == 12 and world.rank == 1:
        exec(sys.argv[2])
if world.rank == 0:  # the same training by one process
    expected, optimizer = fresh()
    for step in range(steps):
        both = [gradients(expected, step, rank) for rank in range(world.size)]
        update(expected, optimizer, [sum(ones) for ones in zip(*both)])
    same = all(torch.equal(one, other) for one, other in zip(model.parameters(), expected.parameters()))
    print("the same" if same else "different", flush=True)
"""


def run_all(world: World, nodes: int, limit_s: float = 60.0) -> list[tuple[str, int | None]]:
    """Start every node's agent, wait, and return (outcome, exit code) of each."""
    start_all(world, nodes)
    return results(world, nodes, limit_s)


def start_all(world: World, nodes: int) -> None:
    for index in range(nodes):
        world.start(index)


def results(world: World, nodes: int, limit_s: float = 60.0) -> list[tuple[str, int | None]]:
    for index, agent in enumerate(world.agents):
        assert agent.wait(limit_s) == agent_module.DONE, world.agent_log(index)
    assert world.processes() == []
    return [(world.result(index).outcome, world.result(index).exit_code) for index in range(nodes)]


def ready(world: World) -> dict[int | None, int]:
    """Return the process ids, by rank, of the ranks that have printed `ready`."""
    return {line.rank: int(line.text.split()[1]) for line in world.lines() if line.text.startswith("ready ")}


def test_ranks_of_several_nodes_are_one_world(world: World) -> None:
    world.job([sys.executable, "main.py"], code={"main.py": ALLREDUCE}, nodes=3, gpus=2, launcher="mpi")
    assert run_all(world, 3) == [("succeeded", 0)] * 3, world.texts("stderr")
    rows = sorted(json.loads(text) for text in world.texts())
    assert rows == [
        [rank, 6, 15, str(rank), str(rank % 2), "6", "2", str(rank // 2), str(rank), f"worker-{rank // 2}.1"]
        for rank in range(6)
    ]
    assert {line.rank for line in world.lines() if line.stream == "stdout"} == set(range(6))


def test_horovods_program_runs_the_same(world: World) -> None:
    text = """
import os
from mpi4py import MPI
names = [f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
own = [MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size(), *(int(os.environ[name]) for name in names)]
print(*own, os.environ["HOROVOD_CONTROLLER"])
"""
    world.job([sys.executable, "main.py"], code={"main.py": text}, nodes=2, gpus=2, launcher="horovod")
    assert run_all(world, 2) == [("succeeded", 0)] * 2, world.texts("stderr")
    assert sorted(world.texts()) == [f"{r} 4 {r} 4 {r % 2} 2 {r // 2} 2 mpi" for r in range(4)]


def test_one_node_and_a_program_that_knows_no_mpi(world: World) -> None:
    world.job("sleep 0.$RANK; exit $((RANK / 2 * 3))", gpus=3, launcher="mpi")
    assert run_all(world, 1) == [("failed", 3)]
    assert world.result().reason == "rank 2: exit code 3"


@in_long_mode
@pytest.mark.parametrize(
    ("deed", "outcome", "code"),
    [
        ("world.Abort(3)", "failed", 3),
        ("os._exit(75)", "again", 75),  # sys.exit() would wait in MPI_Finalize for the others
    ],
)
def test_the_end_of_one_rank_is_reported_and_ends_all(world: World, deed: str, outcome: str, code: int) -> None:
    world.job([sys.executable, "main.py"], args=["1", deed], code={"main.py": STUCK}, nodes=2, launcher="mpi")
    start_all(world, 2)
    until(lambda: world.has_result(1), limit_s=180)
    world.stop(1.0, "peer")  # as the supervisor does when one node has failed
    first, second = results(world, 2)
    assert second == (outcome, code)
    assert world.result(1).reason.startswith("rank 1: ")
    assert first[0] in ("stopped", "failed")  # stopped, unless it loses its peer first


def test_a_kill_from_outside(world: World) -> None:
    world.job([sys.executable, "main.py"], args=["-1", ""], code={"main.py": STUCK}, nodes=2, launcher="mpi")
    start_all(world, 2)
    until(lambda: len(ready(world)) == 2, limit_s=180)
    os.kill(ready(world)[0], signal.SIGKILL)
    until(lambda: world.has_result(0), limit_s=180)
    world.stop(1.0, "peer")
    assert results(world, 2)[0] == ("failed", -signal.SIGKILL)


def test_a_notice_reaches_every_rank_and_every_node_reports_75(world: World) -> None:
    world.job([sys.executable, "main.py"], code={"main.py": LISTENER}, nodes=2, gpus=2, launcher="mpi")
    start_all(world, 2)
    until(lambda: world.texts().count("ready") == 4, limit_s=180)
    world.stop(60.0)
    assert results(world, 2) == [("stopped", 75)] * 2
    assert world.texts().count("saved") == 4


def test_sigterm_is_for_the_ranks_and_leaves_them_time(world: World) -> None:
    world.job([sys.executable, "main.py"], code={"main.py": HANDLER}, nodes=2, launcher="mpi")
    start_all(world, 2)
    until(lambda: world.texts().count("ready") == 2, limit_s=180)
    world.stop(60.0)
    assert results(world, 2) == [("stopped", 75)] * 2
    assert world.texts().count("saved") == 2


@pytest.mark.parametrize("victim", ["mpirun", "orted"])
def test_a_dead_daemon_ends_its_node(world: World, victim: str) -> None:
    world.job([sys.executable, "main.py"], args=["-1", ""], code={"main.py": STUCK}, nodes=2, launcher="mpi")
    start_all(world, 2)
    until(lambda: len(ready(world)) == 2, limit_s=180)
    (daemon,) = [process for process in world.processes() if process.name() == victim]
    daemon.kill()
    assert [outcome for outcome, _ in results(world, 2)] == ["failed", "failed"]


RESTARTED = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
if os.environ["CLOUDGPU_GENERATION"] == "1" and world.Get_rank() == 1:
    os.kill(os.getpid(), 9)
print("sum", world.allreduce(world.Get_rank()))
"""


def test_a_killed_rank_is_followed_by_a_new_world(world: World) -> None:
    code = {"main.py": RESTARTED}
    world.job([sys.executable, "main.py"], code=code, nodes=2, failures_left=1)  # launcher: auto
    assert run_all(world, 2) == [("succeeded", 0)] * 2, world.texts("stderr")
    assert world.texts() == ["sum 1"] * 2
    assert "launcher: mpi; main.py imports mpi4py; there are 2 processes" in world.texts("agent")


def beginnings(lines: list[str]) -> set[int]:
    """Return the first steps of a generation's ranks, after checking that they are the same."""
    found = {int(line.split()[2]) for line in lines if line.startswith("from step ")}
    assert len(found) == 1, lines
    return found


def test_a_training_that_knows_no_torch_distributed_goes_on_after_a_kill(world: World) -> None:
    """Rank 1 kills itself at step 12; the next generation resumes from a checkpoint."""
    deed = "if os.environ['CLOUDGPU_GENERATION'] == '1': os.kill(os.getpid(), 9)"
    code = {"main.py": TRAINING}
    command = [sys.executable, "main.py"]
    world.job(command, args=["20", deed], code=code, nodes=2, failures_left=1, launcher="mpi")
    assert run_all(world, 2, limit_s=180.0) == [("succeeded", 0)] * 2, world.texts("stderr")
    assert beginnings(world.texts()[:2]) == {0}
    assert beginnings(world.texts()[2:]) < {*range(5, 13)}
    assert world.texts()[-1] == "the same"


def run_alone(tmp_path: Path, deed: str) -> subprocess.CompletedProcess[str]:
    """Run the training with mpirun alone, as on a user's own cluster."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    command = ["mpirun", "-n", "2", "--oversubscribe", sys.executable, "-c", TRAINING, "20", deed]
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)


def test_mpirun_without_an_agent(tmp_path: Path) -> None:
    done = run_alone(tmp_path, "sys.exit(0)")  # mpirun does not stop the other rank, which detects the end itself
    assert "TransientError: another rank has ended" in done.stderr, done.stderr
    done = run_alone(tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert beginnings(done.stdout.splitlines()) < {*range(5, 13)}
    assert done.stdout.splitlines()[-1] == "the same"


def test_no_mpirun(world: World, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "env"):
        (bare / name).symlink_to(shutil.which(name) or name)
    world.job([sys.executable, "-c", "pass"], launcher="mpi", search_path=str(bare))
    result = world.run()
    assert (result.outcome, result.exit_code) == ("failed", 127)
    assert "mpirun was not found: install Open MPI" in "".join(world.texts("stderr"))
