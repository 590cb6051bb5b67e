"""Whole commands as a user runs them, from an installed wheel, against `python -c pass` of the same environment."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from cloudgpu.tests.standins.wheel import installed

from .measure import Row, medians, run

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


def rows(rounds: int = 25) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.yaml")
        job.write_text(JOB)
        cloudgpu = str(installed() / "bin" / "cloudgpu")
        commands = {
            "pass": [str(installed() / "bin" / "python"), "-c", "pass"],
            "--version": [cloudgpu, "--version"],
            "--help": [cloudgpu, "--help"],
            "validate": [cloudgpu, "validate", str(job)],
            "plan": [cloudgpu, "plan", str(job)],
        }
        took = medians({name: partial(run, command) for name, command in commands.items()}, rounds)
    base = took["pass"]
    how = f"median of {rounds}, in turns with `python -c pass` ({base * 1000:.0f} ms here)"
    return [
        Row("`cloudgpu --version`", took["--version"] / base, 6, "× pass", how),
        Row("`cloudgpu --help`", took["--help"] / base, 6, "× pass", how),
        Row("`cloudgpu validate job.yaml`", took["validate"] / base, 15, "× pass", how),
        Row("`cloudgpu plan job.yaml`, three clouds", took["plan"] / base, 25, "× pass", how),
    ]
