"""Runs of tests/standins/interrupted.py, and what must be true of them for every framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONG = os.environ.get("CLOUDGPU_LONG") == "1"


def results(program: str, folder: Path, kills: Sequence[int]) -> list[dict[str, Any]]:
    path = folder / "program.py"
    path.write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    env["OMP_NUM_THREADS"] = "1"  # a pool of threads that is there before a fork does not answer after it
    command = [sys.executable, "-m", "cloudgpu.tests.standins.interrupted", str(path), str(folder), *map(str, kills)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(runs: list[dict[str, Any]], batches: int, misfit: str) -> None:
    """Interrupted by kill, SIGTERM and a notice, it ends as if it had not been; a finished one stays finished."""
    by_name = {run["run"]: run for run in runs}
    undisturbed, resumed, finished = by_name["undisturbed"], by_name["resumed"], by_name["finished"]
    assert undisturbed["code"] == 0, undisturbed["output"]
    assert undisturbed["batches"] == batches
    assert [run["code"] for run in runs if run["run"] == "killed"] == [-9] * (len(runs) - 6), runs
    assert by_name["terminated"]["code"] == 75, by_name["terminated"]["output"]
    assert "SIGTERM: stopped at step" in by_name["terminated"]["output"]
    assert by_name["noticed"]["code"] == 75, by_name["noticed"]["output"]
    assert "preempted" in by_name["noticed"]["output"]
    assert by_name["changed"]["code"] == 1
    assert misfit in by_name["changed"]["output"]
    assert resumed["code"] == 0, resumed["output"]
    assert 0 < resumed["batches"] < batches
    assert resumed["digest"] == undisturbed["digest"]
    assert (finished["code"], finished["batches"]) == (0, 0), finished["output"]
    assert finished["digest"] == undisturbed["digest"]
