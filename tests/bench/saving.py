"""What a save costs a training, by us and by every peer, one after another in the same run.

Each way runs in a process of its own, so that memory can be told apart; each process measures one copy of its state
too, to which its times are put in relation.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from .measure import Row, seconds
from .peers import WAYS, Way
from .training import Copy, Training

SAVES, STEPS_BETWEEN, WARM = 8, 6, 8
ROUNDS = 16
"""With a save and without: a step's time varies by more than what a save costs it."""
OURS, LIMIT = "cloudgpu", "no save, a process that writes"
BLOCKING_BUDGET, DCP_BUDGET, SLOWER_BUDGET_MS, MEMORY_BUDGET = 1.3, 0.5, 5.0, 1.3
SLOTS = 2


def rows() -> list[Row]:
    figures = {}
    for name in WAYS:
        print(f"  {name} …", file=sys.stderr)
        figures[name] = _in_a_process(name)
    ours, limit = figures[OURS], figures[LIMIT]
    dcp = {name: f for name, f in figures.items() if name.startswith("DCP")}
    best = min(dcp, key=lambda name: dcp[name]["blocked"])
    how = f"{ours['megabytes']:.0f} MB, {ours['tensors']:.0f} tensors; median of {SAVES}"
    found = [
        Row("a save blocks training for", ours["blocked"], BLOCKING_BUDGET, "× one copy in memory", how),
        Row("the same, against DCP's best", ours["blocked"] / dcp[best]["blocked"], DCP_BUDGET, f"× {best}", how),
        Row("a save makes training longer by", ours["slower_ms"], SLOWER_BUDGET_MS, "ms per save", _spread(ours)),
        Row("the same, against the limit", ours["slower_ms"] - limit["slower_ms"], None, "ms more", _spread(limit)),
        Row(
            "memory for saving",
            ours["memory"] - SLOTS,
            MEMORY_BUDGET,
            "× state beyond the two slots",
            "all processes, PSS",
        ),
    ]
    return found + [_row(name, figure) for name, figure in figures.items()]


def _spread(figure: dict[str, float]) -> str:
    return f"a step takes {figure['step_ms']:.0f} ms; ± {figure['noise_ms']:.1f} ms"


def _row(name: str, figure: dict[str, float]) -> Row:
    how = (
        f"durable after {figure['durable']:.1f}×; training {figure['slower_ms']:+.0f} ms per save "
        f"(± {figure['noise_ms']:.0f}); memory {figure['memory']:.1f}× state; {WAYS[name][1]}"
    )
    return Row(name, figure["blocked"], None, "× one copy in memory", how)


def _in_a_process(name: str) -> dict[str, float]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONUNBUFFERED",)}
    command = [sys.executable, "-m", __spec__.name, name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(name: str) -> dict[str, float]:
    """Blocking and durable time in copies of the state, what training loses in ms, memory in sizes of the state."""
    folder = Path(tempfile.mkdtemp(prefix="cloudgpu-bench-"))
    try:
        training = Training()
        training.step()  # the optimizer's state is there from here on
        way = WAYS[name][0](training, folder)
        copy = Copy(training.state())
        before = _memory_mb()
        _warm_up(way)
        blocked, durable, copied = _alone(way, copy)
        memory = (_peak_memory_mb(way) - before) / copy.megabytes
        plain, saving = _in_training(way)
        way.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    base = statistics.median(copied)
    step = statistics.median(plain)
    before_each = [sum(plain[at : at + STEPS_BETWEEN]) for at in range(0, len(plain), STEPS_BETWEEN)]
    per_save = [(block - without) * 1e3 for block, without in zip(saving, before_each, strict=True)]
    return {
        "blocked": statistics.median(blocked) / base,
        "durable": statistics.median(durable) / base,
        "slower_ms": statistics.median(per_save),
        "noise_ms": 1.25 * statistics.stdev(per_save) / ROUNDS**0.5,  # of a median: standard error
        "step_ms": step * 1e3,
        "memory": memory,
        "megabytes": copy.megabytes,
        "tensors": len(copy),
    }


def _warm_up(way: Way) -> None:
    """Pages, plans and processes are made once; and ours finds out by some saves of a training how it copies best."""
    for _ in range(WARM):
        way.save()
        for _ in range(STEPS_BETWEEN):
            way.training.step()
        way.wait()


def _alone(way: Way, copy: Copy) -> tuple[list[float], list[float], list[float]]:
    """Saves with nothing else going on: how long until training may go on, until durable; one copy of the state."""
    blocked, durable, copied = [], [], []
    for _ in range(SAVES):
        way.training.step()
        copied.append(min(seconds(copy), seconds(copy)))
        start = time.perf_counter()
        way.save()
        blocked.append(time.perf_counter() - start)
        way.wait()
        durable.append(time.perf_counter() - start)
    return blocked, durable, copied


def _in_training(way: Way) -> tuple[list[float], list[float]]:
    """Seconds of steps without a save, and of rounds of STEPS_BETWEEN steps with one, in turns."""
    plain, saving = [], []
    for _ in range(ROUNDS):
        way.wait()
        plain += [seconds(way.training.step) for _ in range(STEPS_BETWEEN)]
        start = time.perf_counter()
        way.save()
        for _ in range(STEPS_BETWEEN):
            way.training.step()
        saving.append(time.perf_counter() - start)
    return plain, saving


def _peak_memory_mb(way: Way) -> float:
    """While two more saves are made."""
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, _memory_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        way.training.step()
        way.save()
        way.wait()
    done.set()
    watcher.join()
    return peak


def _memory_mb() -> float:
    """Of this process and its children, what is shared counted once (PSS)."""
    import psutil

    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    total = 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
