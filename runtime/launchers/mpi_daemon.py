"""Run a node's process of Open MPI: mpirun on rank 0's node, its daemon (orted) on the others.

    python -m cloudgpu.runtime.launchers.mpi_daemon mpirun|orted

Ranks are processes of the agent (see mpi.py). This process reports only failures of Open MPI itself: it exits with 0
when all local ranks have ended, whatever their exit codes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ...protocol.jobdir import JobDir, JobDirError
from ...protocol.records import MOST_BYTES, read_json
from .mpi_rsh import order_key

_POLL_S = 0.05
_ORDER_POLL_S = 0.2
_RETRY_TIMEOUT_S = 60.0  # retry timeout for the job dir
_OUTLIVED_S = 10.0  # for ranks to end after mpirun or orted has failed
_FAILED, _NOT_FOUND = 1, 127
_SCHEDULERS = ("SLURM_", "PBS_", "LSB_")
INSTALL = (
    "install Open MPI on the machines (Debian, Ubuntu: apt-get install openmpi-bin; conda: openmpi), e.g. in `setup:`"
)


def main(argv: Sequence[str]) -> int:
    # A SIGTERM is meant for the ranks. If Open MPI ended, it would kill the ranks during their last save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = argv[0]
    if shutil.which(program) is None:
        return _fail(f"{program} was not found: {INSTALL}", _NOT_FOUND)
    folder = Path(os.environ["CLOUDGPU_MPI_FOLDER"])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        command = _mpirun(folder) if program == "mpirun" else _ordered()
    except (OSError, JobDirError, ValueError) as error:
        return _fail(f"{program} cannot be started: {error}", _FAILED)
    return _supervise(command, folder, int(os.environ["CLOUDGPU_MPI_RANKS"]))


def _mpirun(folder: Path) -> list[str]:
    hosts = folder / "hostfile"
    hosts.write_text(os.environ["CLOUDGPU_MPI_HOSTS"])
    # A shell on each node expands the variable, because the stub's path may differ between nodes.
    return ["mpirun", "--hostfile", str(hosts), "sh", "-c", 'eval "$CLOUDGPU_MPI_STUB"']


def _ordered() -> list[str]:
    """Wait for the daemon's command line, which mpi_rsh.py writes, and return it. Raises JobDirError, ValueError."""
    job_dir, key = JobDir(os.environ["CLOUDGPU_JOB_DIR"], make=False), order_key(os.environ["CLOUDGPU_NODE"])
    heard = time.monotonic()
    while True:
        try:
            data = job_dir.find(key, MOST_BYTES)
            heard = time.monotonic()
        except JobDirError:
            data = None
            if time.monotonic() - heard > _RETRY_TIMEOUT_S:
                raise
        if data is not None:
            command: list[str] = read_json(data, f"{key} is no command")
            if not isinstance(command, list) or not all(isinstance(one, str) for one in command):
                raise ValueError(f"{key} is no command")
            if command[:1] != ["orted"]:
                raise ValueError(f"mpirun asked for {command[:1]}, expected orted")
            return command
        time.sleep(_ORDER_POLL_S)


def _supervise(command: Sequence[str], folder: Path, ranks: int) -> int:
    """Run mpirun or orted until it exits; return 0, or _FAILED if it fails before its ranks have ended."""
    # With these variables, mpirun would take its nodes from the scheduler's allocation.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_SCHEDULERS)}
    child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    code = child.wait()
    if code == 0:
        return 0
    if sum(1 for _ in folder.glob("*.pid")) < ranks:
        return _fail(f"{command[0]} ended with {code} before all ranks had started", _FAILED)
    until = time.monotonic() + _OUTLIVED_S
    while time.monotonic() < until:
        if not any(_alive(int(path.read_text())) for path in folder.glob("*.pid")):
            return 0
        time.sleep(_POLL_S)
    return _fail(f"{command[0]} ended with {code} before its ranks", _FAILED)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # setuid
        return True
    return True


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
