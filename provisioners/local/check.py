"""Checks of the target `local`: this machine's GPUs, disk and Python."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Iterator
from functools import partial

from ...jobspecs.home import HOME_VARIABLE, home
from ..checks.job_dirs import can_write, check_readable, existing
from ..checks.results import CheckRequest, CheckResult, Step
from .gpus import find_gpus
from .node_slots import cores

_LITTLE_GB = 10.0
"""Free space in GB below which a warning is given: a virtual environment with torch takes 5."""


def steps(request: CheckRequest) -> list[Step]:
    """Return the checks."""
    return [
        Step("machine", _gpus),
        Step("machine", _python),
        Step("job_dir", _folder),
        *(Step("job_dir", partial(_bucket, url)) for url in request.job_dirs),
    ]


def _gpus() -> Iterator[CheckResult]:
    gpus = find_gpus()
    count = cores()
    values = {"gpus": [{"name": gpu.name, "memory_gb": gpu.memory_gb} for gpu in gpus], "cores": count}
    if gpus:
        yield CheckResult("machine", "ok", f"{len(gpus)} GPUs: {', '.join(gpu.name for gpu in gpus)}", "", values)
    else:
        message = f"no GPU is visible; jobs without one run on {count} CPU cores"
        yield CheckResult("machine", "ok", message, "", values)


def _python() -> Iterator[CheckResult]:
    """Yield the interpreter with which jobs run, and its torch."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    version = platform.python_version()
    values = {"python": version, "executable": sys.executable, "torch": torch}
    said = f"torch {torch}" if torch else "without torch, which `setup: pip install torch` adds in a job's environment"
    yield CheckResult("machine", "ok", f"Python {version} ({sys.executable}), {said}", "", values)


def _folder() -> Iterator[CheckResult]:
    """Yield whether the state directory, in which jobs run and keep their files, can be written, and its space."""
    folder = home()
    there = existing(folder)
    free = shutil.disk_usage(there).free / 1e9
    values = {"url": (folder / "jobs").as_uri(), "region": None, "free_gb": round(free, 1)}
    if not can_write(there):
        fix = f"`chmod u+rwx {there}`, or set {HOME_VARIABLE} to another folder"
        yield CheckResult("job_dir", "error", f"{there} cannot be written", fix, values)
    elif free < _LITTLE_GB:
        fix = f"free some space, or set {HOME_VARIABLE} to a folder on another disk"
        yield CheckResult("job_dir", "warning", f"{folder}: only {free:.1f} GB are free", fix, values)
    else:
        yield CheckResult("job_dir", "ok", f"{folder}: {free:.0f} GB are free", "", values)


def _bucket(url: str) -> Iterator[CheckResult]:
    yield check_readable(url)
