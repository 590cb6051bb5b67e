"""Size of a base install: packages and megabytes in a fresh environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cloudgpu.tests.standins.wheel import installed

from .measure import Row

_WITH_EVERY_VENV = {"pip", "setuptools"}


def rows() -> list[Row]:
    command = [str(installed() / "bin" / "python"), "-m", "pip", "list", "--format", "json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    packages = {item["name"].lower() for item in json.loads(listed.stdout)} - _WITH_EVERY_VENV
    how = "the wheel in a fresh venv, pip and setuptools not counted"
    return [
        Row("base install, packages", len(packages), 30, "packages", how),
        Row("base install, size", _megabytes(installed()), 100, "MB", how),
    ]


def _megabytes(environment: Path) -> float:
    """Return the size of all packages except those of an empty environment, with the byte code that pip compiled."""
    (site,) = environment.glob("lib/python*/site-packages")
    ours = [entry for entry in site.iterdir() if entry.name.split("-")[0] not in (*_WITH_EVERY_VENV, "pkg_resources")]
    files = (file for entry in ours for file in (entry.rglob("*") if entry.is_dir() else [entry]))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6
