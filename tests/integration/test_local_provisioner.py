"""The local target with real agents: idempotent under kill -9, complete cleanup, each GPU assigned once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import psutil
import pytest

from cloudgpu.jobspecs.plan import LocalGpu
from cloudgpu.jobspecs.planner.local import accelerator_of
from cloudgpu.protocol.jobdir import (
    JOB_KEY,
    AttemptRecord,
    JobDir,
    JobRecord,
    NodeRecord,
    attempt_key,
    local_url,
    node_key,
)
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.provisioners import get_provisioner
from cloudgpu.provisioners.base import Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError, launch_token
from cloudgpu.provisioners.local.gpus import find_gpus, visible
from cloudgpu.provisioners.local.locks import FOLDER_VARIABLE, lock_gpu
from cloudgpu.provisioners.local.machine import MARKER, kill_marked, marked
from cloudgpu.provisioners.local.provisioner import LocalProvisioner, inspect_machine
from cloudgpu.runtime.processes.program import MARKER as AGENTS_MARKER
from cloudgpu.tests.standins.nvidia import install_driver

ME = Owner("test")


class World:
    """A job in a job dir, and the local target to run it on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dir = JobDir(local_url(folder / "job dir"))
        self.root = folder / "local"
        self.target = LocalProvisioner(self.root)
        self.token = launch_token(f"job-{os.getpid()}-{time.monotonic_ns()}", 1, "local", None)

    def request(self, run: str, nodes: int = 1, accelerator: str | None = None, count: int | str = 0) -> LaunchRequest:
        data = JobRecord("job-1", "job", run).to_bytes()
        self.dir.put(JOB_KEY, data)
        records = [NodeRecord(f"worker-{i}.1", "worker", i, i, 0) for i in range(nodes)]
        self.dir.put(attempt_key(1), AttemptRecord(1, {}, [dataclasses.asdict(r) for r in records]).to_bytes())
        wanted = [NodeRequest(r.node, r.role, r.index, r.rank, "local", accelerator, Fraction(count)) for r in records]
        return LaunchRequest(
            job_id="job-1",
            attempt=1,
            token=self.token,
            owner=ME,
            job_dir=self.dir.url,
            job_sha256=hashlib.sha256(data).hexdigest(),
            region="local",
            zone=None,
            market="on-demand",
            disk_gb=0.0,
            nodes=tuple(wanted),
            lifetime_s=None,
        )

    def together(self, run: str, nodes: int) -> str:
        """Return a script that runs the commands and then waits for all nodes, because a node does not begin a job that
        has already ended on another one."""
        (begun := self.folder / "begun").mkdir()
        come = shlex.quote(str(begun))
        return f"{run}; touch {come}/$CLOUDGPU_NODE; until [ $(ls {come} | wc -l) = {nodes} ]; do sleep 0.05; done"

    def allocation(self, nodes: int = 1) -> Allocation:
        machines = {f"worker-{i}.1": f"{self.token}/worker-{i}.1" for i in range(nodes)}
        return Allocation("local", "job-1", 1, self.token, machines)

    def phases(self, allocation: Allocation) -> list[str]:
        return [state.phase for state in self.target.observe(allocation)]

    def texts(self) -> list[str]:
        return [line.text for line in LogReader(self.dir).read()[0] if line.stream == "stdout"]

    def processes(self) -> list[int]:
        return marked(f"{self.token}/")

    def agents(self) -> list[int]:
        return [pid for pid in self.processes() if "cloudgpu.runtime.agent" in psutil.Process(pid).cmdline()]


def until(condition: Callable[[], object], limit_s: float = 180.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / 'it\'s; "odd" $(x) ünï'
    folder.mkdir()
    made = World(folder)
    yield made
    made.target.terminate(made.allocation())
    assert made.processes() == []


def test_the_registry_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    assert isinstance(get_provisioner("local"), LocalProvisioner)
    assert get_provisioner("local").find(ME) == []
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_provisioner_and_agent_use_the_same_marker() -> None:
    assert MARKER == AGENTS_MARKER


def test_from_launch_to_gone(world: World) -> None:
    request = world.request(world.together('echo "$CLOUDGPU_NODE gpus=[$CUDA_VISIBLE_DEVICES]"', 2), nodes=2)
    allocation = world.target.launch(request)
    assert allocation == world.allocation(2)
    assert Allocation.from_json(allocation.to_json()) == allocation
    until(lambda: world.phases(allocation) == ["gone", "gone"])
    assert sorted(world.texts()) == ["worker-0.1 gpus=[]", "worker-1.1 gpus=[]"]
    assert [state.detail.split(" ", 1)[1] for state in world.target.observe(allocation)] == ["succeeded:"] * 2
    assert world.target.find(ME) == [allocation], "until it is terminated"
    world.target.terminate(allocation)
    world.target.terminate(allocation)
    assert world.target.find(ME) == []
    assert world.phases(allocation) == ["gone", "gone"]


def test_an_ended_machine_is_not_started_again(world: World) -> None:
    request = world.request("echo once")
    allocation = world.target.launch(request)
    until(lambda: world.phases(allocation) == ["gone"])
    world.target.launch(request)
    assert world.agents() == []
    assert world.phases(allocation) == ["gone"]
    assert world.texts() == ["once"]


def test_nothing_starts_after_terminate(world: World) -> None:
    """The launch was in progress in another process, and comes after the termination."""
    request = world.request("echo never")
    world.target.terminate(world.allocation())
    world.target.launch(request)
    assert world.agents() == []
    assert world.phases(world.allocation()) == ["gone"]


def test_find_is_by_owner(world: World) -> None:
    allocation = world.target.launch(world.request("sleep 300"))
    assert LocalProvisioner(world.root).find(ME) == [allocation]
    assert LocalProvisioner(world.root).find(Owner("somebody else")) == []
    (world.root / "damaged").mkdir()
    (world.root / "damaged" / "allocation.json").write_text("{")
    assert LocalProvisioner(world.root).find(ME) == [allocation]


def test_terminate_kills_all_and_keeps_the_agents_log(world: World) -> None:
    allocation = world.target.launch(
        world.request(
            "trap '' TERM; (setsid setsid sleep 900 &); python -c 'import time; time.sleep(900)' & echo up; wait"
        )
    )
    until(world.texts)
    until(lambda: len(world.processes()) >= 5)
    world.target.terminate(allocation)
    assert world.processes() == []
    machine = world.root / world.token / "worker-0.1"
    assert [path.name for path in machine.iterdir()] == ["agent.log"]


def test_a_killed_agent_is_gone_and_so_is_its_program(world: World) -> None:
    allocation = world.target.launch(world.request("true\nsleep 300\ntrue"))
    until(lambda: len(world.processes()) == 4)
    os.kill(world.agents()[0], signal.SIGKILL)
    until(lambda: world.phases(allocation) == ["gone"])
    assert world.processes() == []


def test_observing_kills_processes_without_agent_and_guard(world: World) -> None:
    allocation = world.target.launch(world.request("echo up\nsleep 300\ntrue"))
    until(lambda: len(world.processes()) == 4)
    names = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in world.processes()}
    guard = next(pid for pid, name in names.items() if "orphan_guard.py" in name)
    os.kill(guard, signal.SIGSTOP)  # it cannot kill the program any more
    os.kill(world.agents()[0], signal.SIGKILL)
    until(lambda: world.phases(allocation) == ["gone"])
    assert world.processes() == []


LAUNCHER = """
import pickle, sys
from cloudgpu.provisioners.local.provisioner import LocalProvisioner
root, request = pickle.load(open(sys.argv[1], "rb"))
print("ready", flush=True)
LocalProvisioner(root).launch(request)
print("launched", flush=True)
import time; time.sleep(60)
"""


@pytest.mark.parametrize("delay_ms", [0, 2, 5, 10, 20, 40])
def test_killing_the_launching_process_at_any_moment(world: World, delay_ms: int) -> None:
    """Another process repeats the launch: every node runs once and succeeds."""
    import pickle

    request = world.request(world.together("echo ran", 2), nodes=2)
    (world.folder / "request").write_bytes(pickle.dumps((world.root, request)))
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(world.folder / "request")], stdout=subprocess.PIPE, start_new_session=True
    )
    assert launcher.stdout is not None
    launcher.stdout.readline()
    time.sleep(delay_ms / 1000)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    allocation = world.target.launch(request)
    until(lambda: world.phases(allocation) == ["gone", "gone"])
    assert world.texts() == ["ran", "ran"]
    for node in allocation.machines:
        assert world.dir.exists(node_key(1, node, "result.json"))


def test_the_agent_survives_its_launcher(world: World) -> None:
    import pickle

    request = world.request("sleep 1; echo survived")
    (world.folder / "request").write_bytes(pickle.dumps((world.root, request)))
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(world.folder / "request")], stdout=subprocess.PIPE, start_new_session=True
    )
    assert launcher.stdout is not None
    assert [launcher.stdout.readline(), launcher.stdout.readline()] == [b"ready\n", b"launched\n"]
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    until(lambda: world.texts() == ["survived"])
    until(lambda: world.phases(world.allocation()) == ["gone"])


def test_an_agent_that_cannot_start_says_why(world: World) -> None:
    request = world.request("true")
    world.dir.delete(JOB_KEY)
    allocation = world.target.launch(request)
    until(lambda: world.phases(allocation) == ["gone"])
    (state,) = world.target.observe(allocation)
    assert "there is no such object" in state.detail


def test_a_home_that_cannot_be_written(tmp_path: Path, world: World) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProvisionError, match="cannot start the machines") as caught:
        LocalProvisioner(tmp_path / "file" / "local").launch(world.request("true"))
    assert caught.value.error_class == "invalid"


def test_a_process_that_becomes_another_is_found_and_killed(tmp_path: Path) -> None:
    """While a process calls exec, its environment, by which a machine's processes are identified, reads as empty."""
    program = tmp_path / "again"
    program.write_text(f"#!/bin/sh\nexec {program}\n")
    program.chmod(0o700)
    with subprocess.Popen([str(program)], env={MARKER: "a-launch/worker-0.1"}) as process:
        looks = [marked("a-launch/") for _ in range(200)]
        assert kill_marked("a-launch/", 10.0) == []
        assert process.wait(10.0) == -signal.SIGKILL
    assert looks.count([process.pid]) == 200


def test_old_folders_are_removed(world: World) -> None:
    old = world.root / ("0" * 32)
    (old / "worker-0.1").mkdir(parents=True)
    (old / "ended").touch()
    os.utime(old / "ended", (1, 1))
    world.target.launch(world.request("true"))
    assert not old.exists()


# --- GPUs ---

GPUS = [
    LocalGpu("GPU-aa1", "NVIDIA L4", 24.0),
    LocalGpu("GPU-ab2", "NVIDIA L4", 24.0),
    LocalGpu("GPU-c", "Tesla T4", 16.0),
]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, "012"),
        ("", ""),
        ("1", "1"),
        ("2,0", "20"),
        ("0,0", "0"),
        ("0,7,1", "0"),
        ("-1", ""),
        ("GPU-c, GPU-aa1", "20"),
        ("GPU-a", ""),
        ("NoDevFiles", ""),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting: str | None, expected: str) -> None:
    assert [str(GPUS.index(gpu)) for gpu in visible(GPUS, setting)] == list(expected)


@pytest.mark.skipif(bool(find_gpus()), reason="this machine has GPUs")
@pytest.mark.parametrize("count", [1, "1/2"])
def test_gpus_that_are_not_there_are_refused(world: World, count: int | str) -> None:
    with pytest.raises(ProvisionError) as caught:
        world.target.launch(world.request("true", accelerator="L4", count=count))
    assert caught.value.error_class == "invalid"
    if count == 1:
        assert str(caught.value) == "the job needs L4:1, this machine has no GPU"
    assert world.target.find(ME) == []
    assert not (world.root / world.token).exists(), "a refused launch leaves nothing"


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate folder for lock files, because other tests use the same GPUs."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def gpus(locks: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalGpu, ...]:
    """Return this machine's GPUs; if it has none, two L4s and a T4 of a stand-in for the driver."""
    if not find_gpus():
        install_driver(GPUS, monkeypatch)
    return find_gpus()


def test_a_gpu_is_handed_out_once_and_freed_by_death(world: World, gpus: tuple[LocalGpu, ...]) -> None:
    name = accelerator_of(gpus[0])
    mine = [gpu.uuid for gpu in gpus if accelerator_of(gpu) == name]
    run = "echo $CUDA_VISIBLE_DEVICES; sleep 300"
    request = world.request(run, accelerator=name, count=len(mine))
    allocation = world.target.launch(request)
    until(world.texts)
    assert world.texts() == [",".join(mine)]
    assert lock_gpu(mine[0]) is None
    assert world.target.launch(request) == allocation, "needs none: its machine runs"
    other = World(world.folder / "other").request(run, accelerator=name, count=len(mine))  # has no machine yet
    with pytest.raises(ProvisionError, match="0 are free on this machine") as caught:
        world.target.launch(other)
    assert caught.value.error_class == "capacity"
    assert world.target.find(ME) == [allocation]
    os.kill(world.agents()[0], signal.SIGKILL)
    until(lambda: world.phases(allocation) == ["gone"])
    again = world.target.launch(other)
    assert world.phases(again) == ["running"]
    world.target.terminate(again)


def test_cores_are_freed_by_the_death_of_all_agents_of_a_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_LOCAL_SLOTS", "2")
    request = world.request("sleep 300", nodes=3)
    allocation = world.target.launch(request)
    until(lambda: len(world.agents()) == 3)
    other = World(world.folder / "other")
    other.target, other.root = world.target, world.root
    short = "needs 1 of this machine's 2 slots for jobs without GPUs, 0 are free"
    asked = other.request("sleep 300")
    assert world.target.shortage(asked.nodes, {}) == short
    with pytest.raises(ProvisionError, match=short) as caught:
        world.target.launch(asked)
    assert caught.value.error_class == "capacity"
    assert world.target.launch(request) == allocation, "needs none: its machines run"
    first, second, last = world.agents()
    for agent in (first, second):
        os.kill(agent, signal.SIGKILL)
    until(lambda: world.phases(allocation).count("gone") == 2)
    lost = {state.node for state in world.target.observe(allocation) if state.phase == "gone"}
    nodes = tuple(
        dataclasses.replace(one, node=one.node.replace(".1", ".2")) if one.node in lost else one
        for one in request.nodes
    )
    replaced = world.target.launch(dataclasses.replace(request, nodes=nodes))
    assert world.phases(replaced) == ["running"] * 3, "the job has its slots"
    assert world.target.shortage(asked.nodes, {}) == short
    os.kill(last, signal.SIGKILL)
    world.target.terminate(replaced)
    assert world.target.shortage(asked.nodes, {}) == ""
    assert world.target.shortage(asked.nodes, {"cpu": 2}) != ""
    again = world.target.launch(asked)
    assert world.phases(again) == ["running"]
    world.target.terminate(again)


def test_two_state_directories_never_get_the_same_gpu(world: World, gpus: tuple[LocalGpu, ...]) -> None:
    name = accelerator_of(gpus[0])
    mine = [gpu.uuid for gpu in gpus if accelerator_of(gpu) == name]
    one, other = (World(world.folder / home) for home in ("one", "other"))
    run = "echo $CUDA_VISIBLE_DEVICES; sleep 300"
    allocation = one.target.launch(one.request(run, accelerator=name, count=len(mine)))
    until(one.texts)
    request = other.request(run, accelerator=name, count=1)
    with pytest.raises(ProvisionError, match="0 are free on this machine") as caught:
        other.target.launch(request)
    assert caught.value.error_class == "capacity"
    one.target.terminate(allocation)
    allocation = other.target.launch(request)
    until(other.texts)
    other.target.terminate(allocation)


def test_a_gpu_that_a_foreign_process_uses_is_not_handed_out(
    world: World, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: dict[str, list[int] | None] = {"GPU-aa1": [4711, 4712], "GPU-ab2": None}
    install_driver(GPUS, monkeypatch, processes)
    both = world.request("echo $CUDA_VISIBLE_DEVICES; sleep 300", accelerator="L4", count=2)
    with pytest.raises(ProvisionError) as caught:
        world.target.launch(both)
    assert caught.value.error_class == "capacity"
    message = "worker-0.1 needs L4:2, 1 are free on this machine; GPU-aa1 is used by process 4711, 4712"
    assert str(caught.value) == message
    assert lock_is_free("GPU-ab2"), "what was got of a launch that failed is given back"
    processes.clear()
    allocation = world.target.launch(both)
    until(world.texts)
    assert world.texts() == ["GPU-aa1,GPU-ab2"]
    world.target.terminate(allocation)
    assert sorted(path.name for path in locks.iterdir()) == [f"cloudgpu-gpu-GPU-a{n}.lock" for n in ("a1", "b2")]


def lock_is_free(uuid: str) -> bool:
    descriptor = lock_gpu(uuid)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def test_more_gpus_than_there_are_or_of_another_name(world: World, gpus: tuple[LocalGpu, ...]) -> None:
    name = accelerator_of(gpus[0])
    have = sum(accelerator_of(gpu) == name for gpu in gpus)
    with pytest.raises(
        ProvisionError, match=f"the job needs {name}:{have + 1}, this machine has .*{name}:{have}"
    ) as caught:
        world.target.launch(world.request("true", nodes=have + 1, accelerator=name, count=1))
    assert caught.value.error_class == "invalid"
    with pytest.raises(ProvisionError, match="the job needs B300-288GB:1, this machine has"):
        world.target.launch(world.request("true", accelerator="B300-288GB", count=1))
    with pytest.raises(ProvisionError, match="this machine hands out whole GPUs, not 1/2"):
        world.target.launch(world.request("true", accelerator=name, count="1/2"))


def test_each_node_gets_its_own_gpu(world: World, gpus: tuple[LocalGpu, ...]) -> None:
    name = accelerator_of(gpus[0])
    mine = [gpu.uuid for gpu in gpus if accelerator_of(gpu) == name]
    run = world.together("echo $CUDA_VISIBLE_DEVICES", len(mine))
    allocation = world.target.launch(world.request(run, len(mine), name, 1))
    until(lambda: set(world.phases(allocation)) == {"gone"})
    assert sorted(world.texts()) == sorted(mine)


def test_a_silent_node_is_removed_alone_and_its_gpu_is_the_next_ones(world: World, gpus: tuple[LocalGpu, ...]) -> None:
    name = accelerator_of(gpus[0])
    mine = [gpu.uuid for gpu in gpus if accelerator_of(gpu) == name]
    if len(mine) < 2:
        pytest.skip("needs two GPUs of a kind")
    request = world.request("echo $CUDA_VISIBLE_DEVICES; sleep 300", len(mine), name, 1)
    allocation = world.target.launch(request)
    until(lambda: len(world.texts()) == len(mine))
    for process in marked(f"{world.token}/worker-1.1"):
        os.kill(process, signal.SIGSTOP)
    nodes = tuple(dataclasses.replace(one, node=one.node.replace("1.1", "1.2")) for one in request.nodes)
    with pytest.raises(ProvisionError, match="0 are free on this machine"):
        world.target.launch(dataclasses.replace(request, nodes=nodes))
    for _ in range(2):
        world.target.remove(allocation, ["worker-1.1"])
    assert [state.node for state in world.target.observe(allocation) if state.phase == "gone"] == ["worker-1.1"]
    replaced = world.target.launch(dataclasses.replace(request, nodes=nodes))
    assert set(world.phases(replaced)) == {"running"}
    assert world.phases(allocation).count("gone") == 1, "what was removed stays so"


def test_inspect_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = inspect_machine()
    assert machine.cpus == len(os.sched_getaffinity(0))
    assert 0 < machine.memory_gb <= psutil.virtual_memory().total / 1e9 + 0.1
    assert machine.price == 0
    monkeypatch.setenv("CLOUDGPU_LOCAL_PRICE", "1.25")
    assert str(inspect_machine().price) == "1.25"


@pytest.mark.parametrize("text", ["", "free", "-1", "NaN", "Infinity", "1e40"])
def test_an_invalid_price_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CLOUDGPU_LOCAL_PRICE", text)
    with pytest.raises(ProvisionError, match="CLOUDGPU_LOCAL_PRICE"):
        inspect_machine()
