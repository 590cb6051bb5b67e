"""verify-resume on real programs: one that resumes exactly, and others with one mistake each.

Only the tests of the long mode need torch; the others kill, resume and compare in the same way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.tests.standins.long_mode import in_long_mode

PROGRAM = """
import json, os, random, sys, time
import numpy as np
from cloudgpu.runtime import Checkpointer

class Weights:
    def __init__(self): self.values = np.zeros(8)
    def state_dict(self): return {"values": self.values}
    def load_state_dict(self, state): self.values[:] = state["values"]

random.seed(1); np.random.seed(2)
kind = sys.argv[1]
own, generator, average = random.Random(3), np.random.default_rng(4), [0.0]
history, largest, begun = [], 0.0, time.time()
model = Weights()
if kind == "crashes":
    raise KeyError("nothing here")
if kind == "saves-nothing":
    sys.exit(0)
ckpt = Checkpointer(model=model, folder="mine", every=1)
for step in ckpt.steps(12):
    drawn = random.random() + np.random.rand()
    if kind == "own-random": drawn += own.random()
    if kind == "own-numpy": drawn += generator.random()
    if kind == "by-chance": drawn += os.urandom(1)[0]
    if kind == "forgets-average":
        drawn += average[0]
        average[0] = 0.9 * average[0] + 0.1 * drawn
    if kind == "is-slow": time.sleep(600)
    if kind == "delivers":
        history.append({"drawn": drawn, "seconds": time.time() - begun})
        with open("rows.csv", "a") as rows: rows.write(f"{step},{drawn},{time.time()}\\n")
        largest, drawn = max(largest, drawn), 0.0
    model.values[step % 8] += drawn
    ckpt.log(drawn=drawn)
if kind in ("delivers", "exact"):
    with open("result.json", "w") as file:
        json.dump({"history": history, "first": float(model.values[0]), "at": time.time()}, file)
"""

TORCH = """
import copy, sys, torch
from cloudgpu.runtime import Checkpointer
torch.manual_seed(0)
torch.set_num_threads(1)
kind = sys.argv[1]
model = torch.nn.Linear(4, 1)
ema = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
objects = {"scheduler": sched, "ema": ema}
objects.pop(kind, None)
ckpt = Checkpointer(model=model, optimizer=opt, loader=loader, **objects)
for x, y in ckpt.batches(epochs=3):
    loss = torch.nn.functional.mse_loss(model(x) + 0.01 * ema(x).detach(), y)
    opt.zero_grad(); loss.backward(); opt.step(); sched.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters()): a.lerp_(b, 0.1)
"""


def verify(folder: Path, kind: str, *options: str, text: str = PROGRAM) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "cloudgpu", "verify-resume", "--json", *options, "--", "train.py", kind]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.mark.parametrize(
    "how", ["kill", pytest.param("term", marks=in_long_mode), pytest.param("notice", marks=in_long_mode)]
)
def test_an_exact_resume_agrees(tmp_path: Path, how: str) -> None:
    code, found = verify(tmp_path, "exact", "--kill", how)
    assert (code, found["outcome"]) == (0, "agree"), found
    assert found["comparison"]["compared"] >= 3
    assert found["comparison"]["resumed_at"] is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"], "the folder it names itself is untouched"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("own-random", "generator __main__.own"),
        pytest.param("own-numpy", "generator __main__.generator", marks=in_long_mode),
        pytest.param("forgets-average", "variable __main__.average", marks=in_long_mode),
    ],
)
def test_unsaved_state_is_named(tmp_path: Path, kind: str, cause: str) -> None:
    code, found = verify(tmp_path, kind, "--at", "6")
    assert (code, found["outcome"]) == (1, "differ")
    assert found["causes"][0].startswith(cause)
    assert found["comparison"]["first_step"] == 5, "saved after 4 steps, the fifth is the first that differs"
    assert found["comparison"]["first_keys"][0] == "objects/model/values"
    assert [one["key"] for one in found["comparison"]["final"]] == ["objects/model/values"]
    assert found["comparison"]["metrics"]


def test_different_files_and_variables_have_a_separate_verdict(tmp_path: Path) -> None:
    """The checkpoint is right, but the program loses its history and writes rows twice."""
    code, found = verify(tmp_path, "delivers", "--at", "6")
    assert (code, found["outcome"]) == (7, "not-all-saved"), found
    assert "file result.json" in found["text"] and "variable __main__.history" in found["text"]
    says = {one["name"]: one["says"] for one in found["delivered"]["files"]}
    assert says["result.json"] == "length of history: 8 instead of 12"
    assert says.keys() == {"result.json", "rows.csv"}
    assert found["delivered"]["held"] == ["variable __main__.history"]
    assert {"file result.json", "file rows.csv", "variable __main__.history"} <= set(found["delivered"]["left_out"])
    assert found["causes"][0].startswith("variable __main__.history is not saved"), found["causes"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"], "runs have copies of their own"


@pytest.mark.parametrize(
    ("kind", "outcome", "says"),
    [
        ("by-chance", "not-deterministic", "two undisturbed runs differ"),
        ("crashes", "program-failed", "exit code 70"),
        ("saves-nothing", "nothing-saved", "saves nothing"),
    ],
)
def test_a_missing_verdict_is_explained(tmp_path: Path, kind: str, outcome: str, says: str) -> None:
    code, found = verify(tmp_path, kind)
    assert (code, found["outcome"]) == (4, outcome)
    assert says in found["text"]


def test_it_ends_in_time(tmp_path: Path) -> None:
    code, found = verify(tmp_path, "is-slow", "--timeout", "2")
    assert (code, found["outcome"]) == (5, "timeout")


def test_a_step_that_is_not_there_is_a_mistake_of_usage(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "cloudgpu", "verify-resume", "--at", "99", "--", "train.py", "exact"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "makes 11 steps" in done.stderr


def test_interrupted_it_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "cloudgpu", "verify-resume", "--", "train.py", "is-slow"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(tmp_path.glob("cloudgpu-verify-*/first/checkpoints/fences/*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert not list(tmp_path.glob("cloudgpu-verify-*"))
    assert not _running_in(tmp_path)


def _running_in(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@in_long_mode
@pytest.mark.parametrize(("kind", "cause"), [("scheduler", "scheduler __main__.sched"), ("ema", "model __main__.ema")])
def test_objects_that_were_forgotten_are_named(tmp_path: Path, kind: str, cause: str) -> None:
    code, found = verify(tmp_path, kind, "--at", "6", text=TORCH)
    assert (code, found["outcome"]) == (1, "differ"), found
    assert found["causes"][0].startswith(cause), found


@pytest.mark.parametrize(("kind", "code", "outcome"), [("exact", 0, "agree"), ("uses", 4, "not-deterministic")])
def test_an_unseeded_generator_matters_only_if_it_is_used(tmp_path: Path, kind: str, code: int, outcome: str) -> None:
    program = PROGRAM.replace("random.seed(1); np.random.seed(2)", "")
    program = program.replace(
        "drawn = random.random() + np.random.rand()", "drawn = step if kind == 'exact' else random.random()"
    )
    got, found = verify(tmp_path, kind, text=program)
    assert (got, found["outcome"]) == (code, outcome), found
    assert found["comparison"]["unseeded"] == ["random/numpy", "random/python"]
    assert not found["causes"] or "Python's random" in found["causes"][0]
