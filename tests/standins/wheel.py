"""The package as users install it: a wheel, and an environment with it."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import venv
from functools import cache
from pathlib import Path

from cloudgpu.cli.image.build import own_wheel

ROOT = Path(__file__).parents[2]


@cache
def installed() -> Path:
    """Return a new environment with the wheel installed, one per process, without the effects of an editable
    install."""
    folder = Path(tempfile.mkdtemp(prefix="cloudgpu-wheel-"))
    atexit.register(shutil.rmtree, folder)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    constraints = str(ROOT / "tests" / "constraints.txt")
    wheel = str(own_wheel(folder))
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel], check=True)
    return folder / "venv"
