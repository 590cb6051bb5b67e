"""Tests of `run` on unmodified programs: killed and rerun, they must end like an undisturbed run by Python alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.tests.standins.long_mode import LONG, in_long_mode

TRAIN = """
import os, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); random.seed(0); np.random.seed(0)
torch.set_num_threads(1)
END_AT, SIGNAL, EVERY, WORKERS = (int(word) for word in sys.argv[1:5])
X = torch.randn(60, 4)
train_loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=5, shuffle=True, num_workers=WORKERS)
val_loader = DataLoader(TensorDataset(X[:20], X[:20].sum(1, keepdim=True)), batch_size=10)
own, generator = random.Random(7), np.random.default_rng(3)

class Meter:
    def __init__(self): self.total = 0.0

def main():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    model[0].weight.data = model[0].weight.data.T.contiguous().T  # not row-major, as channels_last is not
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    per_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    per_batch = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    best, step, meter, losses = 1e9, 0, Meter(), []
    for epoch in range(3):
        model.train()
        for i, (x, y) in enumerate(train_loader):
            x = x + own.random() * generator.random() * random.random() * np.random.rand()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            if (i + 1) % EVERY == 0:
                optimizer.step(); optimizer.zero_grad(); per_batch.step()
            step += 1; meter.total += loss.item(); losses.append(loss.item())
            if step == END_AT and not os.path.exists("ended"):
                open("ended", "w").close()
                os.kill(os.getpid(), SIGNAL)
        per_epoch.step(); model.eval()
        with torch.no_grad():
            error = sum(nn.functional.mse_loss(model(x), y).item() for x, y in val_loader)
        if error < best:
            best = error
            torch.save(model.state_dict(), "best.pt")
        print(f"epoch {epoch}: {loss.item().hex()} {error.hex()} {best.hex()} i={i} step={step}", flush=True)
    weights = sum(p.double().sum().item() for p in model.parameters())
    print("end", weights.hex(), meter.total.hex(), len(losses), own.random(), generator.random())
    print(optimizer.param_groups[0]["lr"])
main()
"""

LOOP = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(40, 2)), batch_size=4)
other = DataLoader(TensorDataset(torch.randn(40, 2)), batch_size=4)
def step(x):
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
"""


def run(folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cloudgpu.runtime", "run", *options, "--", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def alone(folder: Path, *words: str) -> str:
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "ended").touch()
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("end_at", "number", "accumulate", "workers"),
    [
        (20, signal.SIGKILL, 1, 0),
        pytest.param(24, signal.SIGTERM, 1, 0, marks=in_long_mode),
        pytest.param(5, signal.SIGKILL, 1, 0, marks=in_long_mode),
        pytest.param(18, signal.SIGTERM, 4, 0, marks=in_long_mode),
        pytest.param(31, signal.SIGTERM, 1, 2, marks=in_long_mode),
    ],
)
def test_an_unmodified_loop_ends_in_the_same_bits(
    tmp_path: Path, end_at: int, number: signal.Signals, accumulate: int, workers: int
) -> None:
    words = ("train.py", str(end_at), str(int(number)), str(accumulate), str(workers))
    expected = alone(tmp_path / "alone", *words)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    options = ("--every", "1", "--report", "report.json")
    first = run(folder, *words, options=options)
    assert first.returncode == (75 if number == signal.SIGTERM else -9), first.stderr
    second = run(folder, *words, options=options)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[-2:] == expected.splitlines()[-2:]
    assert set((first.stdout + second.stdout).splitlines()) == set(expected.splitlines())
    assert (folder / "best.pt").read_bytes() == (tmp_path / "alone" / "best.pt").read_bytes()
    report = json.loads((folder / "report.json").read_text())
    assert report["resumed_at_step"] > 0
    assert report["objects"].keys() == {"model", "optimizer", "scheduler", "scheduler_1"}
    assert {"__main__.own", "__main__.generator"} <= set(report["generators"])
    third = run(folder, *words, options=options)
    assert (third.returncode, third.stdout) == (0, "")
    assert "nothing left to do" in third.stderr


ORDINARY = """
import json, os, pathlib, signal, sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(48, 4)
loader = DataLoader(TensorDataset(X), batch_size=4, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
scale = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.Adam([*net[2].parameters(), scale], lr=0.05)
ema = {name: value.clone() for name, value in net.state_dict().items()}
best, waiting, history = float("inf"), 0, []
log = open("rows.csv", "w")
log.write("epoch,loss\\n")
step = 0
for epoch in range(30):
    if epoch:
        print("before", history[-1])
    if epoch == 2:
        optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.01})
    for (x,) in loader:
        optimizer.zero_grad()
        loss = (net(x) * scale - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward(); optimizer.step(); step += 1
        for name, value in net.state_dict().items():
            ema[name].data.mul_(0.9).add_(0.1 * value)
        if step in map(int, sys.argv[1:]) and not os.path.exists(f"ended-{step}"):
            open(f"ended-{step}", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    history.append(loss.item())
    log.write(f"{epoch},{loss.item().hex()}\\n"); log.flush()
    with open("appended.jsonl", "a") as file:
        file.write(json.dumps(history[-1]) + "\\n")
    waiting += 1
    if loss.item() < best:
        best, waiting = loss.item(), 0
        torch.save({"net": net.state_dict(), "ema": ema, "scale": scale}, "best.tmp")
        os.replace("best.tmp", "best.pt")
    pathlib.Path("last.json").write_text(json.dumps([epoch, best.hex(), scale.item().hex()]))
    if waiting == 4:
        break
print("end", epoch, best.hex(), step)
"""


def test_an_ordinary_program_delivers_the_same_files(tmp_path: Path) -> None:
    """It has early stopping, atomic saves, CSV rows, moving averages, unfrozen layers, a parameter without module."""
    for name in ("alone", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(ORDINARY)
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path / "alone", capture_output=True, text=True, check=True
    )
    steps = int(plain.stdout.split()[-1])
    kills = [str(step) for step in ((7, steps // 2, steps - 2) if LONG else (7, steps - 2))]
    for _ in kills:
        done = run(tmp_path / "run", "train.py", *kills, options=("--every", "5"))
        assert done.returncode == -9, done.stderr
    done = run(tmp_path / "run", "train.py", *kills, options=("--every", "5"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == plain.stdout.splitlines()[-1:]
    for name in ("rows.csv", "appended.jsonl", "best.pt", "last.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


RANKS = """
import os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(96, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        step += 1
        if step == 20 and dist.get_rank() == 1 and not os.path.exists("ended"):
            open("ended", "w").close()
            os.kill(os.getpid(), int(sys.argv[1]))
weights = sum(p.double().sum().item() for p in model.parameters()).hex()
os.write(1, f"end {dist.get_rank()} {step} {weights}\\n".encode())  # both write into one pipe
dist.destroy_process_group()
"""


@in_long_mode
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_of_torchrun_end_in_the_same_bits(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(RANKS)

    def start(*words: str) -> tuple[int, list[str], str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
        command += ["train.py", str(int(number))]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
        return done.returncode, sorted(re.findall(r"end \d .*", done.stdout)), done.stderr

    attached = ("-m", "cloudgpu.runtime", "run", "--every", "5", "--report", "report.json", "--")
    code, ends, says = start(*attached)
    assert (code, ends) == (1, []), says  # torchrun's exit code, which hides that of the ranks
    assert number == signal.SIGKILL or "stopped at step 20, saved as" in says
    code, ends, says = start(*attached)
    assert (code, len(ends)) == (0, 2), says
    assert says.count("run: saved are model") == 1
    assert json.loads((tmp_path / "report.json").read_text())["resumed_at_step"] == {9: 15, 15: 20}[number]
    assert (0, ends) == start()[:2]


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ("for n in range(5): step(torch.randn(4, 2))", "outside of a `for` loop over a DataLoader"),
        pytest.param("it = iter(loader)\nfor n in range(5): step(next(it)[0])", "next()", marks=in_long_mode),
        pytest.param("for (x,), (y,) in zip(loader, other): step(x + y)", "several loaders", marks=in_long_mode),
        pytest.param("for e in {1, 2}:\n  for (x,) in loader: step(x)", "a set", marks=in_long_mode),
        pytest.param(
            "start = 0\nfor e in range(3):\n  if e < start: continue\n  for (x,) in loader: step(x)",
            "a resume of its own",
            marks=in_long_mode,
        ),
    ],
)
def test_what_cannot_be_resumed_is_refused_at_the_start(tmp_path: Path, loop: str, reason: str) -> None:
    (tmp_path / "train.py").write_text(f"{LOOP}\n{loop}\nprint('done')\n")
    options = ("--report", "report.json", "--every", "1")
    done = run(tmp_path, "train.py", options=options)
    assert (done.returncode, done.stdout) == (70, ""), done.stderr
    assert "cannot be resumed exactly" in done.stderr
    assert "for batch in ckpt.batches(epochs=EPOCHS):" in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["resumable"] is False
    assert reason in report["reason"]
    done = run(tmp_path, "train.py", options=(*options, "--unsaved"))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert not list(tmp_path.glob("checkpoints/*/COMMIT.json"))


@in_long_mode
def test_another_program_is_refused(tmp_path: Path) -> None:
    loop = (
        "for epoch in range(3):\n  for (x,) in loader:\n    step(x)\n    if epoch and len(sys.argv) > 1: sys.exit(3)\n"
    )
    (tmp_path / "train.py").write_text(LOOP + loop.replace("sys.exit(3)", "import os; os.kill(os.getpid(), 15)"))
    assert run(tmp_path, "train.py", "end").returncode == 75
    (tmp_path / "train.py").write_text(LOOP.replace("Linear(2, 1)", "Linear(2, 3)") + loop)
    done = run(tmp_path, "train.py")
    assert done.returncode == 70
    assert "does not fit the model" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('sorry')", 1, "sorry\n"),
        ("{}['a']", 70, "KeyError: 'a'\n"),
        ("raise ConnectionResetError('gone')", 1, "ConnectionResetError: gone\n"),
        ("x = (", 70, "SyntaxError: '(' was never closed\n"),
        ("import atexit; atexit.register(print, 'end'); raise SystemExit", 0, ""),
    ],
)
def test_exit_codes(tmp_path: Path, text: str, code: int, says: str) -> None:
    (tmp_path / "train.py").write_text(text)
    done = run(tmp_path, "train.py")
    assert done.returncode == code
    assert done.stderr.endswith(says)
    assert "cloudgpu" not in done.stderr, "a traceback shows the program alone"
    assert done.stdout == ("end\n" if "atexit" in text else "")


def test_a_program_sees_itself_as_under_python(tmp_path: Path) -> None:
    text = "import sys; print(__name__, __file__, sys.argv, sys.path[0], sys.modules['__main__'].__file__)"
    (tmp_path / "train.py").write_text(text)
    words = ["train.py", "--epochs", "3"]
    plain = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run(tmp_path, *words).stdout == plain.stdout
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "other.py").write_text("value = 5")
    (tmp_path / "package" / "train.py").write_text("from .other import value\nimport sys; print(value, sys.argv)")
    words = ["-m", "package.train", "a"]
    plain = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run(tmp_path, *words).stdout == plain.stdout


CHECKPOINTED = """
import os, sys
def main():
    from cloudgpu.runtime import Checkpointer
    ckpt = Checkpointer(every=1)
    ckpt.state.setdefault("total", 0)
    for step in ckpt.steps(6):
        ckpt.state["total"] += step
        if step == 3 and len(sys.argv) > 1: os.kill(os.getpid(), 15)
    print(ckpt.state["total"])
main()
"""

WITH_TORCH = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
def main():
    from cloudgpu.runtime import Checkpointer
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(12, 2)), batch_size=4)
    ckpt = Checkpointer(model=model, optimizer=optimizer, loader=loader, every=1)
    for (x,) in ckpt.batches(epochs=2):
        model(x).sum().backward(); optimizer.step()
    print(ckpt.step)
main()
"""


def test_a_finished_program_that_is_run_again_keeps_its_files(tmp_path: Path) -> None:
    """The second run truncates the log before it finds that the program has finished; the log is restored."""
    (tmp_path / "p.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "open('log.csv', 'w').write('epoch\\n')\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = DataLoader(torch.ones(6, 1), batch_size=2)\n"
        "for epoch in range(2):\n"
        "    for batch in loader:\n"
        "        optimizer.zero_grad()\n"
        "        model(batch).sum().backward()\n"
        "        optimizer.step()\n"
        "    open('log.csv', 'a').write(f'{epoch}\\n')\n"
    )
    for _ in range(2):
        done = run(tmp_path, "p.py")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "log.csv").read_text() == "epoch\n0\n1\n"
    assert "nothing left to do" in done.stderr


def test_a_program_with_its_own_checkpointer_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHECKPOINTED)
    options = ("--folder", str(tmp_path / "there"))
    assert run(tmp_path, "train.py", "end", options=options).returncode == 75
    done = run(tmp_path, "train.py", options=options)
    assert (done.returncode, done.stdout) == (0, "15\n")
    assert "restored from" in done.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_a_torch_program_with_its_own_checkpointer_is_not_attached_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_TORCH)
    done = run(tmp_path, "train.py", options=("--report", "report.json"))
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    assert "uses cloudgpu's Checkpointer itself" in json.loads((tmp_path / "report.json").read_text())["reason"]
    assert len(list((tmp_path / "checkpoints" / "fences").iterdir())) == 1, "one attempt: nobody else has claimed one"
