"""Real training processes, killed, damaged and starved at random points: the end is the same, bit for bit.

CLOUDGPU_LONG=1 kills at over fifty points, otherwise at eight.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpy")

LONG = os.environ.get("CLOUDGPU_LONG") == "1"
STEPS, KILLS = 120, 6

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
digest = hashlib.sha256()
for tensor in [*model.state_dict().values(), *(t for s in opt.state_dict()["state"].values() for t in s.values())]:
    digest.update(tensor.numpy().tobytes())
digest.update(repr((sched.state_dict(), random.random(), np.random.rand(), torch.rand(1).item())).encode())
print("end", digest.hexdigest(), flush=True)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="module")
def undisturbed(program: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    process = start(program, tmp_path_factory.mktemp("undisturbed"), every=1000)
    return finish(process)


def start(program: Path, folder: Path, *, every: int = 3, rank: int = 0, port: int = 0) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    if port:
        env |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(program), str(folder), str(every)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """The digest that a run prints at its end."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    last = out.splitlines()[-1]
    assert last.startswith("end "), out
    return last


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    while line := process.stdout.readline():  # `yield from` would close the pipe together with this generator
        yield line


def run_until(process: subprocess.Popen[str], step: int) -> int | None:
    """Read what it prints up to this step, counted from where it began; None if it came to its end before."""
    begun: int | None = None
    for line in lines(process):
        word, value = line.split()
        if word == "begin":
            begun = int(value)
        elif word == "step" and begun is not None and int(value) - begun >= step:
            return int(value)
    return None


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("seed", range(9 if LONG else 1))
def test_killed_at_random_points(seed: int, program: Path, undisturbed: str, tmp_path: Path) -> None:
    """kill -9, mostly within a save: every third step saves, and a save takes longer than three steps."""
    chance = random.Random(seed)
    kills = 0
    while kills < KILLS:
        process = start(program, tmp_path)
        # So few steps each time that all the kills come before the end.
        if run_until(process, chance.randrange(1, STEPS // (KILLS + 2))) is None:
            break
        for _ in range(chance.randrange(3)):  # some moments later, as pipes and the scheduler have it
            next(lines(process), None)
        kill(process)
        kills += 1
    assert kills == KILLS
    assert finish(start(program, tmp_path)) == undisturbed
    left = [path.name for path in tmp_path.iterdir() if path.name != "fences" and not (path / "COMMIT.json").exists()]
    assert left == []
    assert len(list(tmp_path.glob("*/COMMIT.json"))) == 3


def test_killed_while_starting(program: Path, undisturbed: str, tmp_path: Path) -> None:
    """While it imports, restores and claims its attempt, with a good checkpoint in place."""
    process = start(program, tmp_path)
    assert run_until(process, 20)
    kill(process)
    chance = random.Random(1)
    for _ in range(20 if LONG else 2):
        process = start(program, tmp_path)
        try:
            process.wait(timeout=chance.uniform(0.5, 2.5))
        except subprocess.TimeoutExpired:
            kill(process)
        else:
            process.communicate()
    assert finish(start(program, tmp_path)) == undisturbed


def test_damaged_after_each_kill(program: Path, undisturbed: str, tmp_path: Path) -> None:
    chance = random.Random(5)
    process = start(program, tmp_path)
    for damage in (flip, cut, Path.unlink):
        assert run_until(process, 20)
        kill(process)
        newest = max(path.parent for path in tmp_path.glob("*/COMMIT.json"))
        damage(chance.choice([newest / "rank-00000.pt", newest / "rank-00000.json"]))
        process = start(program, tmp_path)
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
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    saved = [int(path.parent.name[:8]) for path in tmp_path.glob("*/COMMIT.json")]
    assert len(saved) == 1
    assert reached is not None
    assert saved[0] >= reached
    assert "SIGTERM: stopped at step" in err
    assert finish(start(program, tmp_path)) == undisturbed


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


def read_only(folder: Path) -> list[str]:
    """What to put before a command so that the folder is read-only to it."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return []
    # Nothing is forbidden to root but by the mount itself, here in a namespace of the command's own.
    prefix = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("READ-ONLY FOLDER NOT TESTED: this root may not mount; run the test as another user")
    return prefix


def test_read_only_folder(program: Path, undisturbed: str, tmp_path: Path) -> None:
    """Training goes on from the checkpoints there are, and says that it cannot save."""
    folder = tmp_path / "checkpoints"
    process = start(program, folder)
    assert run_until(process, 30)
    kill(process)
    command = [*read_only(folder), sys.executable, str(program), str(folder), "50"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    folder.chmod(0o755)
    assert result.returncode == 74, result.stderr
    assert "cannot be written, nothing may be saved" in result.stderr
    assert "training goes on at step" in result.stderr
    assert "training is done, but its end could not be saved: the newest checkpoint is" in result.stderr
    assert "Traceback" not in result.stderr
    assert finish(start(program, folder)) == undisturbed  # allowed to write again, it goes on from what was kept


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def pair(program: Path, folder: Path, every: int = 3) -> list[subprocess.Popen[str]]:
    port = free_port()
    return [start(program, folder, every=every, rank=rank, port=port) for rank in (0, 1)]


def test_two_ranks(program: Path, tmp_path: Path) -> None:
    """Both ranks killed, then one rank's shard damaged, then one rank told to stop: all agree each time."""
    undisturbed = [finish(process) for process in pair(program, tmp_path / "a", every=1000)]
    folder = tmp_path / "b"
    processes = pair(program, folder)
    assert run_until(processes[1], 20)
    for process in processes:
        kill(process)

    newest = max(path.parent for path in folder.glob("*/COMMIT.json"))
    (newest / "rank-00001.pt").write_bytes(b"")
    processes = pair(program, folder, every=1000)
    reached = run_until(processes[0], 10)
    processes[1].terminate()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [75, 75], errors
    assert "is passed over (rank 1): rank-00001.pt has 0 bytes" in errors[0]
    assert "another rank was told to stop" in errors[0]
    saved = max(int(path.parent.name[:8]) for path in folder.glob("*/COMMIT.json"))
    assert reached is not None
    assert saved >= reached

    assert [finish(process) for process in pair(program, folder)] == undisturbed
