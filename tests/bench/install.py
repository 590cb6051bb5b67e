"""What a base install weighs: packages and megabytes in a fresh environment."""

from __future__ import annotations

import json
import subprocess
import tempfile
import venv
from pathlib import Path

from .measure import Row

ROOT = Path(__file__).parents[2]


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        python = str(Path(name, "bin", "python"))
        empty = megabytes(Path(name))
        constraints = str(ROOT / "tests" / "constraints.txt")
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, str(ROOT)], check=True)
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
        )
        packages = {item["name"].lower() for item in json.loads(listed.stdout)} - {"pip", "setuptools"}
        added = megabytes(Path(name)) - empty
    how = "fresh venv, `pip install .`, pip and setuptools not counted"
    return [
        Row("base install, packages", len(packages), 30, "packages", how),
        Row("base install, size", added, 100, "MB", how),
    ]
