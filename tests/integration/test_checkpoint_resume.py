"""Tests of resuming real training processes after kills at random points: the final state is bit-identical.

Trainer, writer or both are killed thirty times, with CLOUDGPU_LONG=1 a thousand times. Most kills hit a program without
torch, which starts ten times faster and can be interrupted at the same points. Processes are forked from a zygote that
has imported torch, except where the start itself is tested.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudgpu.tests.standins.long_mode import LONG

pytest.importorskip("torch")
pytest.importorskip("numpy")
psutil = pytest.importorskip("psutil")

from cloudgpu.protocol.jobdir import JobDir, local_url  # noqa: E402
from cloudgpu.protocol.metrics import read_metrics  # noqa: E402
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest  # noqa: E402
from cloudgpu.runtime.launchers import free_port  # noqa: E402
from cloudgpu.tests.standins.zygote import Forked, Zygote  # noqa: E402

Process = subprocess.Popen[str] | Forked
STEPS = 120

TRAIN = """\
import hashlib, os, random, sys
import numpy as np
import torch
from torch import nn
from cloudgpu.runtime import Checkpointer

class Scans(torch.utils.data.Dataset):
    def __len__(self): return 96
    def __getitem__(self, i):
        return torch.full((16,), i / 96) + torch.randn(16) * 0.1 + random.random() + float(np.random.rand()), i % 4

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
world = int(os.environ.get("WORLD_SIZE", "1"))
sampler = None
if world > 1:
    torch.distributed.init_process_group("gloo")
    sampler = torch.utils.data.DistributedSampler(Scans())
torch.manual_seed(7); random.seed(7); np.random.seed(7)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 4))
if world > 1:
    model = nn.parallel.DistributedDataParallel(model)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=120)
loader = torch.utils.data.DataLoader(Scans(), batch_size=8 // world, shuffle=sampler is None, sampler=sampler)
folder, every = sys.argv[1], int(sys.argv[2])
ckpt = Checkpointer(model=model, optimizer=opt, scheduler=sched, loader=loader, folder=folder, every=every)
print("begin", ckpt.step, flush=True)
for inputs, labels in ckpt.batches(epochs=10 // world):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print("step", ckpt.step + 1, flush=True)
    if "WAIT" in os.environ:
        ckpt.wait()
digest = hashlib.sha256()
for tensor in [*model.state_dict().values(), *(t for s in opt.state_dict()["state"].values() for t in s.values())]:
    digest.update(tensor.numpy().tobytes())
digest.update(repr((sched.state_dict(), random.random(), np.random.rand(), torch.rand(1).item())).encode())
print("end", digest.hexdigest(), flush=True)
"""

SMALL = """\
import hashlib, random, sys, time
import numpy as np
from cloudgpu.runtime import Checkpointer

class Model:
    def __init__(self):
        self.weights, self.moments = np.zeros((120, 120)), np.zeros((120, 120))
    def state_dict(self): return {"weights": self.weights, "moments": self.moments}
    def load_state_dict(self, state): self.weights, self.moments = state["weights"], state["moments"]

random.seed(7); np.random.seed(7)
model, losses = Model(), hashlib.sha256()
ckpt = Checkpointer(model=model, folder=sys.argv[1], every=int(sys.argv[2]))
ckpt.state.setdefault("losses", [])
print("begin", ckpt.step, flush=True)
for step in ckpt.steps(STEPS):
    model.moments *= 0.9
    model.moments += np.random.normal(size=(120, 120)) * random.random()
    model.weights -= 0.1 * model.moments
    loss = float((model.weights**2).sum())
    ckpt.state["losses"].append(loss)
    ckpt.log(loss=loss)
    print("step", step + 1, flush=True)
digest = hashlib.sha256(model.weights.tobytes() + model.moments.tobytes())
digest.update(repr((ckpt.state, random.random(), np.random.rand())).encode())
print("end", digest.hexdigest(), flush=True)
"""


ZYGOTES: dict[Path, Zygote] = {}
"""Zygote of each program."""


def forked(folder: Path, text: str, *modules: str) -> Iterator[Path]:
    path = folder / "train.py"
    path.write_text(text)
    ZYGOTES[path] = Zygote("numpy", "cloudgpu.runtime.checkpoint.checkpointer", *modules)
    yield path
    ZYGOTES.pop(path).close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from forked(tmp_path_factory.mktemp("program"), TRAIN, "torch", "torch._dynamo", "torch.distributed")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from forked(tmp_path_factory.mktemp("program"), SMALL.replace("STEPS", str(20 * STEPS)))


@pytest.fixture(scope="module")
def undisturbed(program: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    process = start(program, tmp_path_factory.mktemp("undisturbed"), every=1000)
    return finish(process)


def start(
    program: Path, folder: Path, *, every: int = 3, wait: bool = False, rank: int = 0, port: int = 0, anew: bool = False
) -> Process:
    """Start a training process.

    `wait` makes it wait for each save, so that a checkpoint exists after some steps even if steps are shorter than a
    save. `anew` starts a new interpreter instead of forking the zygote.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    if port:
        env |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if wait:
        env["WAIT"] = "1"
    arguments = [str(program), str(folder), str(every)]
    if not anew:
        return ZYGOTES[program].start(arguments, env)
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: Process) -> str:
    """Wait for success and return the last line, which has the digest of the final state."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    last = out.splitlines()[-1]
    assert last.startswith("end "), out
    return last


def lines(process: Process) -> Iterator[str]:
    assert process.stdout is not None
    while line := process.stdout.readline():  # `yield from` would close the pipe together with this generator
        yield line


def run_until(process: Process, step: int) -> int | None:
    """Read output until this many steps after its first one; return the step reached, or None if the run ended."""
    begun: int | None = None
    for line in lines(process):
        word, value = line.split()
        if word == "begin":
            begun = int(value)
        elif word == "step" and begun is not None and int(value) - begun >= step:
            return int(value)
    return None


def run_until_step(process: Process, count: int) -> bool:
    """Read `count` more lines; return False if the run ended meanwhile."""
    return all(next(lines(process), "end").startswith("step") for _ in range(count))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 180
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def kill(process: Process) -> None:
    process.kill()
    process.communicate()


def kill_writer(process: Process) -> bool:
    """Kill a trainer's writer process with SIGKILL; return False if it had none."""
    children = psutil.Process(process.pid).children()
    writers = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    for child in writers:
        child.kill()
    return bool(writers)


def is_tidy(folder: Path) -> bool:
    """True if the background cleanup is done: three complete checkpoints and no partial ones."""
    names = [path for path in folder.iterdir() if path.name not in {"fences", "metrics"}]
    return len(names) == 3 and all((path / "COMMIT.json").exists() for path in names)


def kill_at_random(program: Path, folder: Path, chance: random.Random, kills: int, steps: int) -> list[str]:
    """Run and kill the program repeatedly, mostly during saves; return which process each kill hit."""
    victims: list[str] = []
    while len(victims) < kills:
        process = start(program, folder)
        # Few enough steps that all kills happen before the end of the training.
        if run_until(process, chance.randrange(1, steps // (kills + 2))) is None:
            break
        for _ in range(chance.randrange(3)):  # a short delay that varies with pipes and scheduler
            next(lines(process), None)
        victims.append(chance.choice(["trainer", "writer", "both"]))
        if victims[-1] != "trainer" and not kill_writer(process):
            victims.pop()
        if victims and victims[-1] == "writer" and run_until_step(process, chance.randrange(1, 6)):
            victims.append("trainer")
        kill(process)
    return victims


@pytest.mark.parametrize("seed", range(40 if LONG else 1))
def test_killed_at_random_points(seed: int, small: Path, tmp_path: Path) -> None:
    """SIGKILL of trainer, writer or both. Every third step saves, and a save takes longer than three steps."""
    expected = finish(start(small, tmp_path / "a", every=100000))
    victims = kill_at_random(small, tmp_path / "b", random.Random(seed), 24, 20 * STEPS)
    assert len(victims) >= 24
    assert finish(start(small, tmp_path / "b")) == expected
    until(lambda: is_tidy(tmp_path / "b"))
    rows = read_metrics(JobDir(local_url(tmp_path)), "b")
    assert [row.step for row in rows] == list(range(20 * STEPS))


@pytest.mark.parametrize("seed", range(4 if LONG else 1))
def test_killed_at_random_points_with_torch(seed: int, program: Path, undisturbed: str, tmp_path: Path) -> None:
    victims = kill_at_random(program, tmp_path, random.Random(seed), 6, STEPS)
    assert len(victims) >= 6
    assert finish(start(program, tmp_path)) == undisturbed
    until(lambda: is_tidy(tmp_path))


def test_killed_while_starting(program: Path, undisturbed: str, tmp_path: Path) -> None:
    """The kills hit imports, the restore and the claim of the attempt; a good checkpoint exists."""
    process = start(program, tmp_path, wait=True)
    assert run_until(process, 20)
    kill(process)
    chance = random.Random(1)
    for _ in range(20 if LONG else 2):
        process = start(program, tmp_path, anew=True)
        try:
            process.wait(timeout=chance.uniform(0.5, 2.5))
        except subprocess.TimeoutExpired:
            kill(process)
        else:
            process.communicate()
    assert finish(start(program, tmp_path)) == undisturbed
    assert finish(start(program, tmp_path)) == undisturbed, "what follows a training that is done finds its end"


def test_damaged_after_each_kill(program: Path, undisturbed: str, tmp_path: Path) -> None:
    chance = random.Random(5)
    process = start(program, tmp_path, wait=True)
    for damage in (flip, cut, Path.unlink):
        assert run_until(process, 20)
        kill(process)
        newest = max(path.parent for path in tmp_path.glob("*/COMMIT.json"))
        damage(chance.choice([newest / "rank-00000.bin", newest / "rank-00000.json"]))
        process = start(program, tmp_path, wait=True)
        warning = process.stderr.readline() if process.stderr else ""
        assert warning.startswith(f"cloudgpu: checkpoint {newest.name} is passed over"), warning
    assert finish(process) == undisturbed


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_sigterm_saves_and_ends(program: Path, undisturbed: str, tmp_path: Path) -> None:
    process = start(program, tmp_path, every=1000)
    reached = run_until(process, 30)
    process.terminate()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 75, err
    saved = [int(path.parent.name[:8]) for path in tmp_path.glob("*/COMMIT.json")]
    assert len(saved) == 1
    assert reached is not None
    assert saved[0] >= reached
    assert "SIGTERM: stopped at step" in err
    assert finish(start(program, tmp_path)) == undisturbed


WITH_WORKERS = """
import time
import torch
from torch.utils.data import DataLoader
from cloudgpu.runtime import Checkpointer

class Data:
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        return torch.zeros(1)

if __name__ == "__main__":
    loader = DataLoader(Data(), num_workers=2, multiprocessing_context=METHOD)
    for batch in Checkpointer(loader=loader, every=100_000).batches(epochs=1):
        print("a step", flush=True)
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("method", "number"), [("fork", signal.SIGTERM), ("spawn", signal.SIGUSR1)])
def test_a_signal_to_all_processes_of_a_rank_saves(method: str, number: signal.Signals, tmp_path: Path) -> None:
    """torchrun and Slurm signal all processes: DataLoader workers must survive, or the training would fail."""
    script = tmp_path / "train.py"
    script.write_text(WITH_WORKERS.replace("METHOD", repr(method)))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["a step\n"] * 3  # both DataLoader workers have started
    workers = psutil.Process(process.pid).children(recursive=True)
    for child in workers:
        child.send_signal(number)
    assert [process.stdout.readline() for _ in range(50)] == ["a step\n"] * 50  # the trainer gets its signal later
    process.send_signal(number)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 75, err
    assert f"{number.name}: stopped at step" in err
    assert psutil.wait_procs(workers, timeout=60)[1] == []


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


def read_only(folder: Path) -> list[str]:
    """Return a command prefix under which the folder is read-only."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return []
    # File modes do not bind root, so the folder is mounted read-only in a separate mount namespace.
    prefix = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("READ-ONLY FOLDER NOT TESTED: this root may not mount; run the test as another user")
    return prefix


def test_read_only_folder(program: Path, undisturbed: str, tmp_path: Path) -> None:
    """The Checkpointer fails before the first step, since nothing could be saved."""
    folder = tmp_path / "checkpoints"
    process = start(program, folder, wait=True)
    assert run_until(process, 30)
    kill(process)
    command = [*read_only(folder), sys.executable, str(program), str(folder), "50"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    folder.chmod(0o755)
    assert result.returncode == 1, result.stderr
    assert re.fullmatch(r"begin \d+\n", result.stdout)
    assert f"nothing can be saved in {folder}: " in result.stderr
    assert "Read-only file system" in result.stderr or "Permission denied" in result.stderr
    assert finish(start(program, folder)) == undisturbed  # writable again: resumes from the kept checkpoint


def pair(program: Path, folder: Path, every: int = 3) -> list[Process]:
    port = free_port()
    return [start(program, folder, every=every, wait=True, rank=rank, port=port) for rank in (0, 1)]


def saved_keys(manifest: Path) -> set[str]:
    return {piece.key for piece in RankManifest.from_bytes(manifest.read_bytes()).pieces}


def test_two_ranks(program: Path, tmp_path: Path) -> None:
    """Both ranks are killed, then one shard is damaged, then one rank gets SIGTERM: the ranks agree each time."""
    undisturbed = [finish(process) for process in pair(program, tmp_path / "a", every=1000)]
    folder = tmp_path / "b"
    processes = pair(program, folder)
    assert run_until(processes[1], 20)
    for process in processes:
        kill(process)

    newest = max(path.parent for path in folder.glob("*/COMMIT.json"))
    keys = [saved_keys(newest / f"rank-0000{rank}.json") for rank in (0, 1)]
    assert {key for key in keys[0] & keys[1] if key.startswith("objects/optimizer/state")} == set()
    both = {key.rpartition(".")[2] for key in keys[0] & keys[1] if key.startswith("objects/model")}
    assert both == {"running_mean", "running_var", "num_batches_tracked"}  # buffers that each rank saves itself
    assert len(keys[0] | keys[1]) > 20
    (newest / "rank-00001.bin").write_bytes(b"")
    processes = pair(program, folder, every=1000)
    reached = run_until(processes[0], 10)
    processes[1].terminate()
    errors = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [75, 75], errors
    assert "is passed over (rank 0): rank-00001.bin has 0 bytes" in errors[0]  # rank 0 needs that shard, too
    assert "another rank received a notice to stop" in errors[0]
    saved = max(int(path.parent.name[:8]) for path in folder.glob("*/COMMIT.json"))
    assert reached is not None
    assert saved >= reached

    assert [finish(process) for process in pair(program, folder)] == undisturbed
