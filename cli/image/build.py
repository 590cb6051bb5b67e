"""Build context of an image: the Containerfile, and wheels of cloudgpu and its dependencies for the base's Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..exit_codes import Exit
from ..shared.errors import CommandError
from .containers import output_of

_GLIBC = ("_2_28", "_2_17", "2014", "2010", "_2_5", "1")
"""Platform tags of Linux wheels that run on the distributions of common base images, newest first."""
_PROBE = 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())'
_IGNORED = (".*", "build", "dist", "*.egg-info", "__pycache__")


class Base(NamedTuple):
    """Properties of a base image."""

    python: str
    """Python version, such as `3.11`."""
    machine: str
    """Architecture: `x86_64` or `aarch64`."""


def probe(engine: str, base: str, python: str) -> Base:
    """Run the Python of a base image, and return its version and the architecture. Pulls the image if necessary."""
    command = [engine, "run", "--rm", "--network=none", "--entrypoint", python, base, "-c", _PROBE]
    words = output_of(command, f"looking for {python} in {base}").split()
    if len(words) != 2:
        raise CommandError(f"{base}: {python} did not print its version", exit_code=Exit.FAILED)
    return Base(*words)


def make_context(folder: Path, base: Base, *, wheel: Path | None = None, constraints: Path | None = None) -> None:
    """Write the image's build context: the Containerfile, and wheels/ with cloudgpu and what it depends on.

    `wheel`: wheel of cloudgpu; None: build or download it. `constraints`: pip's constraints file with versions.
    """
    containerfile = resources.files("cloudgpu.runtime.image") / "Containerfile"
    (folder / "Containerfile").write_text(containerfile.read_text())
    wheels = folder / "wheels"
    wheels.mkdir()
    own = own_wheel(wheels) if wheel is None else Path(shutil.copy(wheel, wheels))
    pinned = [f"--constraint={constraints}"] if constraints else []
    platforms = [f"--platform=manylinux{glibc}_{base.machine}" for glibc in _GLIBC]
    wanted = [f"--python-version={base.python}", "--implementation=cp", *platforms]
    _pip("download", "--only-binary=:all:", *wanted, *pinned, "--dest", str(wheels), str(own))


def own_wheel(folder: Path) -> Path:
    """Create the wheel of the installed cloudgpu, built from the source tree or downloaded from the index; return its
    path."""
    source = _source_tree()
    if source is None:
        _pip("download", "--no-deps", "--dest", str(folder), f"cloudgpu=={metadata.version('cloudgpu')}")
    else:  # built from a copy, so that the tree stays unchanged and stale build outputs in it are left out
        copy = folder / "source"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*_IGNORED))
        _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(copy))
        shutil.rmtree(copy)
    (wheel,) = folder.glob("cloudgpu-*.whl")
    return wheel


def _source_tree() -> Path | None:
    """Return the source tree if cloudgpu is installed in editable mode, else None."""
    # Try all distributions of this name: build leftovers in the tree are found first, and lack direct_url.json.
    for found in metadata.distributions(name="cloudgpu"):
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            return Path(unquote(urlsplit(origin["url"]).path))
    return None


def _pip(*arguments: str) -> None:
    verb, *rest = arguments
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *rest]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise CommandError(
            f"the packages for the image cannot be downloaded: {lines[0] if lines else 'pip failed'}",
            hint="the image's Python must have wheels of every dependency; is the package index reachable?",
            exit_code=Exit.UNAVAILABLE,
        )
