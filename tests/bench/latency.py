"""Latency from `cloudgpu submit` to the first line of the user's program, minus that of running it by hand."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from cloudgpu.tests.standins.wheel import installed

from .measure import Row

PROGRAM = "import sys, time; open(sys.argv[1], 'w').write(repr(time.time())); print('first line')"


def first_line(command: list[str], said: Path, env: dict[str, str], folder: Path) -> float:
    """Return the seconds from the command's start to the time that the program wrote to `said`."""
    said.unlink(missing_ok=True)
    start = time.time()
    subprocess.run(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return float(said.read_text()) - start


def rows(rounds: int = 7) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python, cloudgpu = (str(installed() / "bin" / program) for program in ("python", "cloudgpu"))
        said = folder / "said"
        (folder / "code").mkdir()
        (folder / "code" / "main.py").write_text(PROGRAM)
        (folder / "job.yaml").write_text(
            f"name: latency\nresources: {{cloud: local, accelerator: none}}\ncode: code\n"
            f"run: [{python}, main.py, {said}]\n"
        )
        env = {**os.environ, "CLOUDGPU_HOME": str(folder / "home")}
        submit = [cloudgpu, "submit", "--yes", str(folder / "job.yaml")]
        by_hand = [python, str(folder / "code" / "main.py"), str(said)]
        first_line(submit, said, env, folder)  # starts the supervisor and creates the store
        over = statistics.median(
            first_line(submit, said, env, folder) - first_line(by_hand, said, env, folder) for _ in range(rounds)
        )
    return [Row("submit → first line, local, warm", over, 1.0, "s over running it by hand", f"median of {rounds}")]
