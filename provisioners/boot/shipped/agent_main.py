"""Entry point of the agent file: unpack it once and exec the agent.

python3 -I <sha256>.pyz --home DIR <options of cloudgpu.runtime.agent, or of cloudgpu.runtime.fleet.member>

<home>/agent-<sha256>/lib     cloudgpu: on the PYTHONPATH of the agent and of the user's program
<home>/agent-<sha256>/needs   dependencies of cloudgpu: last on sys.path, so a program's versions take precedence
<home>/venv                   first on the PATH: `python` is there, and `pip install` changes nothing else
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

_SHIM = '#!/bin/sh\nexec "{python}" -m pip "$@"\n'


def main(argv: list[str]) -> None:
    home = Path(argv[argv.index("--home") + 1])
    file = Path(sys.argv[0])
    lib = unpack(file, home) / "lib"
    path = os.environ.get("PATH", os.defpath)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(lib))))}
    venv = make_venv(home / "venv")
    if venv is not None:
        environment |= {"PATH": f"{venv}/bin{os.pathsep}{path}", "VIRTUAL_ENV": str(venv)}
    module = "fleet.member" if "--fleet-dir" in argv else "agent"
    command = [sys.executable, "-P", "-m", f"cloudgpu.runtime.{module}", *argv]
    os.execve(sys.executable, command, environment)  # noqa: S606


def unpack(file: Path, home: Path) -> Path:
    """Unpack an agent file and return its folder. Atomic, since the machine may go down meanwhile."""
    folder = home / f"agent-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with zipfile.ZipFile(file) as packed:
            packed.extractall(partial)
        os.sync()
        partial.rename(folder)
    return folder


def make_venv(folder: Path) -> Path | None:
    """Return a virtual environment that sees the image's packages, created once; None if it cannot be created."""
    done = folder / "made"
    if done.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    has_pip = importlib.util.find_spec("pip") is not None
    for options in (["--without-pip"] if has_pip else []), ["--without-pip"]:
        command = [sys.executable, "-m", "venv", "--system-site-packages", *options, str(folder)]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"no virtual environment can be made: {error}", file=sys.stderr)
            continue
        if tried.returncode == 0:
            if has_pip:
                add_pip(folder)
            done.touch()
            return folder
        print(f"no virtual environment can be made: {(tried.stderr or tried.stdout).strip()}", file=sys.stderr)
    return None


def add_pip(folder: Path) -> None:
    """Add wrappers that run the image's pip in this environment, which is seconds faster than installing another
    pip."""
    for name in ("pip", "pip3"):
        shim = folder / "bin" / name
        shim.write_text(_SHIM.format(python=folder / "bin/python"))
        shim.chmod(0o755)
