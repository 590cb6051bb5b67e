"""kill -9 of the supervisor, the agent and the training process at random moments of a real job on the local target.

Each job must end correctly, once: succeeded, final weights bit-identical to an undisturbed run, no process left, and no
rank running twice at the same time. CLOUDGPU_LONG=1 kills at over fifty points, otherwise at six.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cloudgpu.tests.standins.long_mode import LONG

pytest.importorskip("torch")

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
SEEDS = range(10) if LONG else range(1)
KILLS = 6
"""Kills per job: each victim twice, in random order."""
VICTIMS = {
    "supervisor": ("supervise",),
    "agent": ("cloudgpu.runtime.agent",),
    "training": ("train.py",),
}

TRAIN = """\
import fcntl, hashlib, os, sys, time
import torch
from cloudgpu.runtime import Checkpointer

# The kernel frees this lock when its holder dies, however it dies: a second holder is a rank that runs twice.
lock = open(os.path.join(sys.argv[1], "rank.lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(os.path.join(sys.argv[1], "TWICE"), "w").close()
    raise
torch.manual_seed(7)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(0, 2, (96,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
checkpointer = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, every=8)
for inputs, labels in checkpointer.batches(epochs=20):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    time.sleep(float(sys.argv[2]))
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
with open(os.path.join(sys.argv[1], "weights.sha256"), "w") as file:
    file.write(hashlib.sha256(weights).hexdigest())
"""


class Bench:
    """A separate home, one job, and their processes."""

    def __init__(self, folder: Path, step_seconds: float) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.out = folder / "out"
        code = folder / "code"
        self.out.mkdir(parents=True)
        code.mkdir()
        (code / "train.py").write_text(TRAIN)
        (folder / "job.yaml").write_text(
            f"name: survivor\nresources: {{cloud: local, accelerator: none}}\ncode: code\n"
            f"run: {json.dumps([sys.executable, 'train.py', str(self.out), str(step_seconds)])}\n"
            f"retry: {{failure: 1000}}\n"
        )
        self.env = {**os.environ, "CLOUDGPU_HOME": str(self.home)}

    def cloudgpu(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CLOUDGPU, *words], env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return this folder's processes whose command lines contain all the words."""
        found = []
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
                ours = any(str(self.folder) in part for part in (*line, *process.environ().values()))
                if ours and all(any(word in part for part in line) for word in words):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return [process for process in found if process.pid != os.getpid()]

    def kill(self, words: tuple[str, ...]) -> bool:
        """Kill the processes that match; return whether there were any."""
        killed = 0
        for process in self.processes(*words):
            with contextlib.suppress(psutil.NoSuchProcess):
                if not {"wait", "submit"} & set(process.cmdline()):
                    process.kill()
                    killed += 1
        return killed > 0

    @property
    def weights(self) -> str:
        return (self.out / "weights.sha256").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the weights' hash of an undisturbed run by hand, without supervisor and agent."""
    bench = Bench(tmp_path_factory.mktemp("undisturbed"), 0)
    command = [sys.executable, "train.py", str(bench.out), "0"]
    subprocess.run(command, cwd=bench.folder / "code", timeout=120, check=True)
    return bench.weights


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_random_moments_the_job_ends_right(tmp_path: Path, undisturbed: str, seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(tmp_path, 0.08)
    submitted = bench.cloudgpu("submit", "--detach", "--json", str(tmp_path / "job.yaml"))
    assert submitted.returncode == 0, submitted.stderr
    job = json.loads(submitted.stdout)["id"]
    # Users leave `wait` running: it also replaces a supervisor that was killed.
    with subprocess.Popen([CLOUDGPU, "wait", job], env=bench.env, stderr=subprocess.PIPE, text=True) as waiting:
        order = [name for name in VICTIMS for _ in range(KILLS // len(VICTIMS))]
        chance.shuffle(order)
        killed = 0
        for name in order:
            time.sleep(chance.uniform(0.2, 3.5))  # the test is about the random moment
            deadline = time.monotonic() + 180
            while waiting.poll() is None and time.monotonic() < deadline:
                if bench.kill(VICTIMS[name]):
                    killed += 1
                    break
                time.sleep(0.02)
        _, said = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, f"seed {seed}, order {order}: {said}\n{bench.cloudgpu('events', job).stdout}"
    assert killed == KILLS, "the job was over before it was disturbed as often as this test says: make it longer"
    assert bench.weights == undisturbed
    assert not (bench.out / "TWICE").exists()
    with (bench.out / "rank.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no rank holds it any more
    assert bench.processes("train.py") == []
    assert bench.processes("cloudgpu.runtime.agent") == []
    bench.kill(VICTIMS["supervisor"])
