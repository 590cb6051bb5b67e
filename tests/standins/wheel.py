"""The package as its users get it: a wheel, and an environment into which it is installed."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Built from a copy, so that nothing is left in the tree and nothing stale in the tree gets in."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, timeout=240, check=True)
    (built,) = folder.glob("cloudgpu-*.whl")
    return built


@cache
def installed() -> Path:
    """A fresh environment with the wheel in it, one per process; what an editable install adds is not there."""
    folder = Path(tempfile.mkdtemp(prefix="cloudgpu-wheel-"))
    atexit.register(shutil.rmtree, folder)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    constraints = str(ROOT / "tests" / "constraints.txt")
    wheel = str(build_wheel(folder))
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel], check=True)
    return folder / "venv"
