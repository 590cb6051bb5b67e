"""Build the agent file: cloudgpu.runtime and its dependencies in one zip file, for machines of one architecture.

The build is reproducible: the file is built once, cached in the state directory by a hash of its content, and uploaded
once. When the file is executed, agent_main.py runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

from ...jobspecs.home import home, private
from ...storage import durable
from . import shipped

PYTHONS_VARIABLE = "CLOUDGPU_AGENT_PYTHONS"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Python versions for which the file contains dependencies: the image's (3.12), and others that a job's
`setup` commands may install."""
ARCHITECTURES = {"x86_64": "x86_64", "arm64": "aarch64"}
"""Architecture as in the tables of machine types -> as in the names of wheels and in Linux."""

_PACKAGE = Path(__file__).parents[2]
_FOLDERS = ("runtime", "protocol", "storage")
"""Folders of the package that run on machines."""
_GLIBCS = (17, 24, 26, 27, 28, 31, 34)  # minor versions in tags of manylinux wheels; Ubuntu 24.04 has 2.39
_KEPT_S = 30 * 86_400.0
_PIP_S = 600.0

# Python runs this module of a zip file.
_MAIN = b"""\
import sys

from agent_main import main

main(sys.argv[1:])
"""
# Appended to sys.path, so that the program's versions of the same packages take precedence.
_FIND_NEEDS = b"""
# Added by the agent file.
import sys as _sys  # noqa: E402
from pathlib import Path as _Path  # noqa: E402

_sys.path.append(str(_Path(__file__).parents[2] / "needs"))
"""


class AgentFileError(Exception):
    """The agent file cannot be built; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Built:
    """An agent file on this computer."""

    path: Path
    sha256: str
    size: int
    architecture: str


@dataclass(frozen=True, slots=True)
class _Need:
    """A distribution that cloudgpu.runtime depends on."""

    name: str
    abi3: bool
    """True if one wheel (stable ABI) works with every Python version."""


# pynacl and its need cffi open the job's secrets.
_NEEDS = (
    _Need("obstore", abi3=True),
    _Need("xxhash", abi3=False),
    _Need("pynacl", abi3=True),
    _Need("cffi", abi3=False),
)


def build_agent_file(architecture: str) -> Built:
    """Return the agent file for an architecture (a key of ARCHITECTURES), built or cached. Raises AgentFileError."""
    if architecture not in ARCHITECTURES:
        raise AgentFileError(f"there is no agent for {architecture}, only for {', '.join(ARCHITECTURES)}")
    folder = home() / "agents"
    try:
        private(folder)
        content = dict(sorted(_content(architecture, folder / "wheels").items()))
        inputs = hashlib.sha256()
        for name, data in content.items():
            inputs.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        path = folder / f"{inputs.hexdigest()}.pyz"
        if not path.exists():
            _write(path, content)
        os.utime(path)
        _prune(folder)
        data = path.read_bytes()
    except OSError as error:
        raise AgentFileError(f"{error.filename or folder}: {error.strerror or error}") from error
    return Built(path, hashlib.sha256(data).hexdigest(), len(data), architecture)


def pythons() -> Sequence[str]:
    """Return the Python versions whose dependencies the file contains. Raises AgentFileError for a bad
    PYTHONS_VARIABLE."""
    given = os.environ.get(PYTHONS_VARIABLE)
    if not given:
        return PYTHONS
    names = given.split(",")
    if not all(name.startswith("3.") and name[2:].isdecimal() and int(name[2:]) >= 11 for name in names):
        raise AgentFileError(f"{PYTHONS_VARIABLE}={given}: expected versions from 3.11 on, as in 3.12,3.13")
    return names


def _content(architecture: str, wheels: Path) -> dict[str, bytes]:
    """Return the content of the agent file: name in the zip file -> data."""
    content = {"__main__.py": _MAIN, "agent_main.py": resources.files(shipped).joinpath("agent_main.py").read_bytes()}
    content["lib/cloudgpu/__init__.py"] = (_PACKAGE / "__init__.py").read_bytes() + _FIND_NEEDS
    for path in sorted(path for folder in _FOLDERS for path in (_PACKAGE / folder).rglob("*.py")):
        content[f"lib/cloudgpu/{path.relative_to(_PACKAGE).as_posix()}"] = path.read_bytes()
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    is_own = platform.system() == "Linux" and platform.machine() == ARCHITECTURES[architecture]
    for need in _NEEDS:
        for python in pythons()[:1] if need.abi3 else pythons():
            installed = is_own and (need.abi3 or python == own)
            files = _installed(need) if installed else _wheel(need, python, architecture, wheels)
            content |= {f"needs/{name}": data for name, data in files if _is_needed(name)}
    return content


def _is_needed(name: str) -> bool:
    """Return whether a file of a distribution is needed at run time; stubs and installer metadata are not."""
    path = PurePosixPath(name)
    beside = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "WHEEL"}
    return ".." not in path.parts and path.suffix not in (".pyc", ".pyi") and path.name not in beside


def _installed(need: _Need) -> Iterator[tuple[str, bytes]]:
    for file in importlib.metadata.files(need.name) or []:
        path = Path(str(file.locate()))
        if path.is_file():
            yield file.as_posix(), path.read_bytes()


def _wheel(need: _Need, python: str, architecture: str, wheels: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, data) from a wheel of the version that is installed here; the download is cached."""
    version = importlib.metadata.version(need.name)
    folder = wheels / f"{need.name}-{version}-{python}-{architecture}"
    found = next(folder.glob("*.whl"), None) or _download(need, version, python, architecture, folder)
    with zipfile.ZipFile(found) as wheel:
        for name in wheel.namelist():
            if not name.endswith("/"):
                yield name, wheel.read(name)


def _download(need: _Need, version: str, python: str, architecture: str, folder: Path) -> Path:
    """Download a wheel with pip, from the index that this computer's pip is configured for. Raises AgentFileError."""
    machine = ARCHITECTURES[architecture]
    platforms = [f"manylinux_2_{glibc}_{machine}" for glibc in _GLIBCS] + [f"manylinux2014_{machine}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", partial, "--implementation", "cp", "--python-version", python]
        command += [word for name in platforms for word in ("--platform", name)]
        command += [f"{need.name}=={version}"]
        try:
            done = subprocess.run(
                command, env=_pip_environment(), capture_output=True, text=True, timeout=_PIP_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise AgentFileError(_advice(need, version, python, architecture, f"no end in {_PIP_S:.0f} s")) from None
        found = next(Path(partial).glob("*.whl"), None)
        if done.returncode or found is None:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise AgentFileError(_advice(need, version, python, architecture, said[0]))
        folder.mkdir(exist_ok=True)
        return found.rename(folder / found.name)


def _advice(need: _Need, version: str, python: str, architecture: str, why: str) -> str:
    return (
        f"the agent for {architecture} machines needs {need.name} {version} for Python {python}, and pip cannot get "
        f"it: {why}. Try `pip download --only-binary=:all: {need.name}=={version}`; where only some Pythons are "
        f"wanted, name them in {PYTHONS_VARIABLE} (the image's own is 3.12)"
    )


def _pip_environment() -> Mapping[str, str]:
    """Return an environment in which pip can run: Python's bundled pip if none is installed, as in a venv made by
    uv."""
    if importlib.util.find_spec("pip") is not None or importlib.util.find_spec("ensurepip") is None:
        return os.environ
    import ensurepip

    bundled = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
    return os.environ if bundled is None else {**os.environ, "PYTHONPATH": str(bundled)}


def _write(path: Path, content: Mapping[str, bytes]) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry, data in content.items():
            info = zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0))
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            packed.writestr(info, data)
    durable.write(path, file.getvalue(), mode=0o600)


def _prune(folder: Path) -> None:
    """Delete agent files that have not been used for _KEPT_S seconds."""
    for path in folder.glob("*.pyz"):
        if time.time() - path.stat().st_mtime > _KEPT_S:
            path.unlink(missing_ok=True)
