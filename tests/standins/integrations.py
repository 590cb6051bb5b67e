"""Interrupted training runs of a framework, by tests/standins/interrupted.py, and the assertions that hold for all of
them.

CLOUDGPU_LONG=1: more interruptions, and all changes that a checkpoint must reject. CLOUDGPU_SEED=… reproduces the
batches at which an earlier test run interrupted the training.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from .interrupted import Run
from .long_mode import LONG

HANG = 280
"""Timeout in seconds for all runs of one test together, below pytest's timeout."""


def results(
    program: str, folder: Path, *, batches: int = 28, world: int = 1, plan: list[Run] | None = None
) -> dict[str, dict[str, Any]]:
    """Run the plan; return the results by run name. `batches`: length of the full training of 4 epochs; `plan`: other
    runs than the default ones."""
    path = folder / "program.py"
    path.write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    env["OMP_NUM_THREADS"] = "1"  # otherwise NumPy and torch start thread pools when they are imported
    runs = json.dumps([asdict(run) for run in plan or _plan(batches, world)])
    command = [sys.executable, "-m", "cloudgpu.tests.standins.interrupted", str(path), str(folder), runs]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=HANG)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return {run["run"]: run for run in map(json.loads, output.splitlines())}


def _plan(batches: int, world: int) -> list[Run]:
    seed = int(os.environ.get("CLOUDGPU_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"CLOUDGPU_SEED={seed}")
    chance = random.Random(seed)
    most = batches // 4 - 1
    again = range(3 if LONG else 1)
    plan = [
        Run("undisturbed", folder="plain"),
        *(Run(f"killed {i}", every=1, how="kill", after=chance.randint(2, most)) for i in again),
        Run("terminated", how="term", after=chance.randint(1, most // 2)),
    ]
    if LONG:
        plan += [Run("noticed", how="notice", after=chance.randint(1, most // 2))]
    plan += [Run("resumed"), Run("finished")]
    if LONG:
        plan += [
            Run("longer", changed="longer"),
            Run("longer undisturbed", folder="longer", changed="longer"),
            Run("begun", folder="changed", how="term", after=3),
            Run("changed model", folder="changed", changed="model"),
            Run("changed data", folder="changed", changed="data"),
        ]
    everywhere = [Run(**{**asdict(run), "world": world}) for run in plan]
    return [*everywhere, Run("changed world", folder="changed")] if LONG and world > 1 else everywhere


def check(runs: dict[str, dict[str, Any]], *, misfit: str, batches: int = 28, longer_is_exact: bool = True) -> None:
    """Assert that interrupted runs end in the undisturbed run's state, and that a finished run does no further work."""
    undisturbed, resumed, finished = _of(runs, "undisturbed", 0), _of(runs, "resumed", 0), _of(runs, "finished", 0)
    assert undisturbed["batches"] == batches
    for name, run in runs.items():
        if name.startswith("killed"):
            assert run["ranks"][-1]["code"] == -9, run["output"]
    _of(runs, "terminated", 75)
    assert "SIGTERM: stopped at step" in runs["terminated"]["output"]
    assert 0 < resumed["batches"] < batches
    assert resumed["digests"] == undisturbed["digests"]
    assert finished["batches"] == 0
    # Only the first rank: DistributedDataParallel broadcasts its buffers to the others when a model is wrapped.
    assert finished["digests"][0] == undisturbed["digests"][0]
    if LONG:
        _of(runs, "noticed", 75)
        assert "preempted" in runs["noticed"]["output"]
        longer, anew = _of(runs, "longer", 0), _of(runs, "longer undisturbed", 0)
        assert (longer["batches"], anew["batches"]) == (batches // 2, batches + batches // 2)
        assert not longer_is_exact or longer["digests"] == anew["digests"]
        _of(runs, "begun", 75)
        _refused(runs, "changed model", misfit)
        _refused(runs, "changed data", "changed")
        if "changed world" in runs:
            _refused(runs, "changed world", "processes")


def needs(framework: str) -> None:
    """Skip the importing module unless the framework is installed; it is not imported, since that takes seconds."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed", allow_module_level=True)


def _of(runs: dict[str, dict[str, Any]], name: str, code: int) -> dict[str, Any]:
    """Assert that all ranks of a run ended with this exit code; return the number of batches and the ranks' digests."""
    run = runs[name]
    assert [rank["code"] for rank in run["ranks"]] == [code] * len(run["ranks"]), f"{name}: {run['output']}"
    return {"batches": run["ranks"][0]["batches"], "digests": [rank["digest"] for rank in run["ranks"]]}


def _refused(runs: dict[str, dict[str, Any]], name: str, words: str) -> None:
    run = runs[name]
    assert run["ranks"][0]["code"] not in {0, 75}, f"{name}: {run['output']}"
    assert "CheckpointError" in run["output"], f"{name}: {run['output']}"
    assert words in run["output"].rpartition("CheckpointError")[2], f"{name}: {run['output']}"


def said(runs: dict[str, dict[str, Any]], name: str, start: str) -> list[str]:
    """Return the lines of a run's output that begin with `start`."""
    return [line for line in runs[name]["output"].splitlines() if line.startswith(start)]
