"""Cost of a save to a training, for cloudgpu and its alternatives, one after another in the same run.

Each way runs in a separate process, so that its memory can be measured. Each process also times one copy of its state
in memory, which is the unit of its times.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from .measure import Row, seconds
from .peers import WAYS, Way
from .training import Copy, Training

SAVES, STEPS_BETWEEN, WARM = 8, 6, 8
OURS, LIMIT = "cloudgpu", "the same, and a thread that copies"
ROUNDS, ROUNDS_OF_LITTLE = 16, 64
"""Number of rounds with and without a save; more for ways with a small cost, below the variation of a step's time."""
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
    more = ours["slower_ms"] - limit["slower_ms"]
    how = f"{ours['megabytes']:.0f} MB, {ours['tensors']:.0f} tensors; median of {SAVES}"
    found = [
        Row("a save blocks training for", ours["blocked"], BLOCKING_BUDGET, "× one copy in memory", how),
        Row("the same, against DCP's best", ours["blocked"] / dcp[best]["blocked"], DCP_BUDGET, f"× {best}", how),
        Row("a save makes training longer by", ours["slower_ms"], SLOWER_BUDGET_MS, "ms per save", _spread(ours)),
        Row("the same, against the limit", more, SLOWER_BUDGET_MS, "ms more per save", _spread(limit)),
        Row("of it, in the call that saves", ours["call_ms"], None, "ms of CPU of the training's thread", _calls(ours)),
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
    return (
        f"a step takes {figure['step_ms']:.0f} ms; ± {figure['noise_ms']:.1f} ms; "
        f"other programs used {figure['others']:.1f} cores meanwhile"
    )


def _calls(figure: dict[str, float]) -> str:
    noise = f"median of {ROUNDS_OF_LITTLE}; ± {figure['call_noise_ms']:.1f} ms"
    return f"{noise}; joining the copy, in the step after, is not in it"


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
    """Measure one way in this process: times in copies of the state, slowdown in ms, memory in sizes of the state."""
    folder = Path(tempfile.mkdtemp(prefix="cloudgpu-bench-"))
    try:
        training = Training()
        training.step()  # creates the optimizer's state
        way = WAYS[name][0](training, folder)
        copy = Copy(training.state())
        before = _memory_mb()
        _warm_up(way)
        blocked, durable, copied = _alone(way, copy)
        memory = (_peak_memory_mb(way) - before) / copy.megabytes
        start, ours, everyone = time.perf_counter(), *_cpu_seconds()
        plain, saving, calls = _in_training(way, ROUNDS_OF_LITTLE if name in (OURS, LIMIT) else ROUNDS)
        ended, ours_then, everyone_then = time.perf_counter(), *_cpu_seconds()
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
        "noise_ms": _noise(per_save),
        "call_ms": statistics.median(calls) * 1e3,
        "call_noise_ms": _noise(calls) * 1e3,
        "others": max(0.0, (everyone_then - everyone) - (ours_then - ours)) / (ended - start),
        "step_ms": step * 1e3,
        "memory": memory,
        "megabytes": copy.megabytes,
        "tensors": len(copy),
    }


def _noise(values: Sequence[float]) -> float:
    """Return the standard error of the values' median."""
    return 1.25 * statistics.stdev(values) / math.sqrt(len(values))


def _warm_up(way: Way) -> None:
    """Save some times: memory and processes are created once, and cloudgpu's Checkpointer learns how to copy best."""
    for _ in range(WARM):
        way.save()
        for _ in range(STEPS_BETWEEN):
            way.training.step()
        way.wait()


def _alone(way: Way, copy: Copy) -> tuple[list[float], list[float], list[float]]:
    """Measure saves while training waits: seconds until training may continue, until durable, and for one copy."""
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


def _in_training(way: Way, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Measure, in turns, steps without a save and rounds of STEPS_BETWEEN steps with one, in seconds.

    The third list has the CPU time of the training's thread in the calls that save, which other programs hardly affect.
    """
    plain, saving, calls = [], [], []
    for _ in range(rounds):
        way.wait()
        plain += [seconds(way.training.step) for _ in range(STEPS_BETWEEN)]
        start, before = time.perf_counter(), time.thread_time()
        way.save()
        calls.append(time.thread_time() - before)
        for _ in range(STEPS_BETWEEN):
            way.training.step()
        saving.append(time.perf_counter() - start)
    return plain, saving, calls


def _peak_memory_mb(way: Way) -> float:
    """Return the peak memory during two more saves, in MB."""
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
    """Return the memory of this process and its children, with shared memory counted once (PSS)."""
    total = 0.0
    for process in _family():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


def _cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds so far of this process and its children, and of all processes of the machine."""
    ours = 0.0
    for process in _family():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            ours += times.user + times.system
    everyone = psutil.cpu_times()
    return ours, everyone.user + everyone.nice + everyone.system + everyone.irq + everyone.softirq


def _family() -> list[psutil.Process]:
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
