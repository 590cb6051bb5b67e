"""Start-up time of whole commands from an installed wheel, compared with `python -c pass` in the same environment.

Compares user plus system processor time, the minimum of all rounds, which other programs hardly affect.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from cloudgpu.tests.standins.control import World, make_template
from cloudgpu.tests.standins.wheel import installed

from .measure import Row, least, processor_seconds

JOB = """\
name: bench
resources:
  accelerator: [L4:1, T4:1]
  cloud: [aws, gcp, azure]
  market: [spot, on-demand]
run: python train.py
args: [--epochs, "10"]
env: {LR: "0.01"}
limits: {duration: 12h, price: 50 USD/h}
"""
JOBS = 20
"""Number of ended jobs that `status` lists."""
BUDGETS = {"--version": 4.5, "--help": 4.5, "validate job.yaml": 12, "plan job.yaml": 15, "status": 15}


def rows(rounds: int = 25) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.yaml").write_text(JOB)
        env = {**os.environ, "CLOUDGPU_DATABASE_URL": _store(Path(folder))}
        commands = {name: [str(installed() / "bin" / "cloudgpu"), *name.split()] for name in BUDGETS}
        commands["pass"] = [str(installed() / "bin" / "python"), "-c", "pass"]
        calls = {name: partial(processor_seconds, words, env, folder) for name, words in commands.items()}
        took = least(calls, rounds)
    base = took["pass"]
    how = f"processor time, least of {rounds}, in turns with `python -c pass` ({base * 1000:.0f} ms here)"
    what = {"plan job.yaml": ", three clouds", "status": f", {JOBS} jobs"}
    return [
        Row(f"`cloudgpu {name}`{what.get(name, '')}", took[name] / base, budget, "× pass", how)
        for name, budget in BUDGETS.items()
    ]


def _store(folder: Path) -> str:
    """Return the URL of a store with jobs that have ended."""
    world = World(folder / "world", make_template(folder))
    world.finish(*(world.submit() for _ in range(JOBS)))
    world.store.close()
    return world.url
