"""Machine of the local target: a folder, a lock that its agent holds, and the processes with its marker."""

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
"""Environment variable of all processes of a machine, with the marker `<token>/<node>`
(runtime/processes/program.py)."""
_LOG_KEPT = 64 << 10
_KILL_PAUSE_S = 0.02
_EXEC_LOOKS, _EXEC_PAUSE_S = 10, 0.001
_BIRTH_S, _LOOK_S = 10.0, 0.02
"""Longest time, in seconds, in which a forked agent starts to run; interval of polls for that."""

# Agents started by this process, which must be waited for, or they remain as zombies.
_agents: list[subprocess.Popen[bytes]] = []
_one_at_a_time = threading.Lock()


class Machine:
    """Machine of one node of a launch. Methods must be called within the launch's launch_lock()."""

    def __init__(self, folder: Path, marker: str) -> None:
        self.folder, self.marker = folder, marker

    @property
    def started(self) -> bool:
        """Return whether the agent was ever started: it then created this file. It must not be started twice."""
        return (self.folder / "started").exists()

    def try_lock(self) -> int | None:
        """Return a descriptor of the machine's lock, for an agent to inherit; None: a running agent holds it.

        The forked child of a killed launcher holds all locks for a moment. If the lock is held and no agent has
        started, this therefore waits until one has, up to _BIRTH_S.
        """
        private(self.folder)
        end = time.monotonic() + _BIRTH_S
        while True:
            lock = try_lock(self.folder / "lock")
            if lock is not None or self.started or time.monotonic() > end:
                return lock
            time.sleep(_LOOK_S)

    def is_running(self) -> bool:
        """Return whether the agent runs."""
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
        """Start the agent as a detached process, which outlives this one and holds the inherited locks. Raises
        OSError."""
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
                env=_environment(self.marker, gpus, request.secrets_pass),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=inherited,
            )
        _agents.append(agent)

    def last_log_line(self) -> str:
        """Return the last line of agent.log; "" if there is none."""
        try:
            with (self.folder / "agent.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def clean(self) -> None:
        """Delete all files except the end of the agent's log. Call this only after all processes of the machine have
        ended."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name == "agent.log":
                _keep_tail(path)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def launch_lock(path: Path) -> Iterator[None]:
    """Context manager: serialize operations on a launch, across processes. The kernel frees the lock of a dead process.

    Within this process all launches are serialized: until exec, a forked child holds copies of the locks of other
    threads.
    """
    private(path.parent)
    with _one_at_a_time, path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kill_marked(marker: str, limit_s: float) -> list[int]:
    """Kill all processes with a marker (see marked()) repeatedly; return those that remain after `limit_s` seconds."""
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
    """Return the ids of this user's live processes with a marker; a marker that ends in `/` is a prefix."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            value = _environment_of(process).get(MARKER, "")
            if value == marker or (marker.endswith("/") and value.startswith(marker)):
                found += [process.pid] if process.status() != psutil.STATUS_ZOMBIE else []
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
    return found


def _environment_of(process: psutil.Process) -> dict[str, str]:
    """Return a process's environment. Raises psutil.Error.

    It is empty during exec, and is then read again. It is always empty for kernel threads, which have no executable.
    """
    for _ in range(_EXEC_LOOKS):
        if (found := process.environ()) or not process.exe():
            return found
        time.sleep(_EXEC_PAUSE_S)
    return {}


def reap_agents() -> None:
    """Wait for agents of this process that have ended, which frees zombies."""
    _agents[:] = [agent for agent in _agents if agent.poll() is None]


def _environment(marker: str, gpus: Sequence[str], secrets_pass: str) -> dict[str, str]:
    """Return the environment of the agent, and thus of the program, without cloudgpu's settings, which may be secret.

    The program does not inherit the agent's own settings.
    """
    from ...protocol.sealed_secrets import (
        PASS_VARIABLE,
    )  # `validate` and `plan` import this module, and need none of it

    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    own = {PASS_VARIABLE: secrets_pass} if secrets_pass else {}
    return {**kept, **own, "CUDA_VISIBLE_DEVICES": ",".join(gpus), MARKER: marker}


def _keep_tail(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > _LOG_KEPT:
            file.seek(size - _LOG_KEPT)
            tail = file.read()
            file.seek(0)
            file.write(tail)
            file.truncate()
