"""A machine of the local target: a folder, a lock that its agent holds, and the processes that carry its marker."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...jobspecs.home import private
from ..base import LaunchRequest
from ..shared.locks import try_lock

if TYPE_CHECKING:
    import psutil

MARKER = "CLOUDGPU_MACHINE"
"""As in runtime/processes/program.py: `<token>/<node>` in the environment of all that runs on the machine."""
_LOG_KEPT = 64 << 10
_KILL_PAUSE_S = 0.02
_EXEC_LOOKS, _EXEC_PAUSE_S = 10, 0.001
_BIRTH_S, _LOOK_S = 10.0, 0.02
"""An agent has begun so long after its launcher has started it, at the latest; how often to look."""

# Agents started by this process: they must be waited for, or they stay as zombies.
_agents: list[subprocess.Popen[bytes]] = []
_one_at_a_time = threading.Lock()


class Machine:
    """One node of one launch; all methods are to be called under the launch's guard()."""

    def __init__(self, folder: Path, marker: str) -> None:
        self.folder, self.marker = folder, marker

    @property
    def started(self) -> bool:
        """The agent has run at least its first line (it makes this file): it is not to be started again."""
        return (self.folder / "started").exists()

    def take(self) -> int | None:
        """The machine's lock, for an agent to inherit; None if an agent holds it, that is: runs.

        A launcher that was killed may have left a child being born, which holds all locks for a moment more: so who
        holds this one has also begun to run, or is waited for.
        """
        private(self.folder)
        end = time.monotonic() + _BIRTH_S
        while True:
            lock = try_lock(self.folder / "lock")
            if lock is not None or self.started or time.monotonic() > end:
                return lock
            time.sleep(_LOOK_S)

    def is_on(self) -> bool:
        """Whether the agent runs."""
        try:
            descriptor = try_lock(self.folder / "lock", create=False)
        except FileNotFoundError:
            return False
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def start(
        self, request: LaunchRequest, node: str, gpus: Sequence[str], inherited: Sequence[int], options: Sequence[str]
    ) -> None:
        """Start the agent: detached, it outlives this process and holds the inherited locks. Raises OSError."""
        command = [sys.executable, "-P", "-m", "cloudgpu.runtime.agent"]
        command += ["--job-dir", request.job_dir, "--attempt", str(request.attempt), "--node", node]
        command += ["--job-sha256", request.job_sha256, "--home", str(self.folder), "--host", "127.0.0.1"]
        if request.lifetime_s is not None:
            command += ["--lifetime-s", str(request.lifetime_s)]
        command += options
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(self.marker, gpus),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=inherited,
            )
        _agents.append(agent)

    def last_words(self) -> str:
        """The last line of agent.log; "" if there is none."""
        try:
            with (self.folder / "agent.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def clean(self) -> None:
        """Remove all but the (end of the) agent's log; nothing may run here any more."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name == "agent.log":
                _keep_tail(path)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def guard(path: Path) -> Iterator[None]:
    """One verb at a time for a launch, whoever calls; a dead caller's guard is freed by the kernel.

    And one at a time in this process: a child that is being born holds, until it is another program, copies of all
    locks that other threads have taken, and would keep them taken.
    """
    private(path.parent)
    with _one_at_a_time, path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kill_marked(marker: str, limit_s: float) -> list[int]:
    """Kill every process with a marker (see marked()), until none is left; returns those that are after `limit_s`."""
    end = time.monotonic() + limit_s
    while True:
        reap_agents()
        left = marked(marker)
        if not left or time.monotonic() > end:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)


def marked(marker: str) -> list[int]:
    """Live processes of this user that carry a marker; one that ends in `/` stands for all that begin so."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            value = _environment_of(process).get(MARKER, "")
            if value == marker or (marker.endswith("/") and value.startswith(marker)):
                found += [process.pid] if process.status() != psutil.STATUS_ZOMBIE else []
        except (psutil.Error, OSError):  # it ended meanwhile, or is another user's
            continue
    return found


def _environment_of(process: psutil.Process) -> dict[str, str]:
    """While it becomes another program (exec), a process shows none: it is looked at again. Raises psutil.Error.

    Neither have the kernel's threads any, which have no file that they run.
    """
    for _ in range(_EXEC_LOOKS):
        if (found := process.environ()) or not process.exe():
            return found
        time.sleep(_EXEC_PAUSE_S)
    return {}


def reap_agents() -> None:
    """Take note of the agents of ours that have ended."""
    _agents[:] = [agent for agent in _agents if agent.poll() is None]


def _environment(marker: str, gpus: Sequence[str]) -> dict[str, str]:
    """The agent's, from which the program's is made. cloudgpu's own settings stay here: they may hold secrets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    return {**kept, "CUDA_VISIBLE_DEVICES": ",".join(gpus), MARKER: marker}


def _keep_tail(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > _LOG_KEPT:
            file.seek(size - _LOG_KEPT)
            tail = file.read()
            file.seek(0)
            file.write(tail)
            file.truncate()
