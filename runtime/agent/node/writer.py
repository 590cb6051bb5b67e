"""Start and supervise the node's checkpoint writer (checkpoint/writer/writer.py), a child process of the agent.

The writer outlives the program's processes, so it finishes the saves that they had staged before they died. It ends
with the agent.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ...processes.program import ORPHAN_GUARD

START_AFTER_S = 0.3
"""Delay in seconds after the program's start, so as not to slow it; a program that ends sooner has staged nothing."""
_PAUSE_S = (0.5, 30.0)  # backoff between restarts of the writer: first and maximum
_STEADY_S = 60.0  # a writer that ran longer resets the backoff
_LOOK_S = 0.5

_FOREIGN = ("PYTHON", "LD_")
"""Prefixes of environment variables that change what code a process loads; not passed to the writer."""


def writer_environment(machine_env: Mapping[str, str], job_env: Mapping[str, str]) -> dict[str, str]:
    """Return the writer's environment: the machine's, plus the job's variables except those that affect code loading.

    The job's variables may hold the store's endpoint and credentials, which the writer needs too.
    """
    return {**{name: value for name, value in job_env.items() if not name.startswith(_FOREIGN)}, **machine_env}


class NodeWriter:
    """Handle of the writer process, which starts it, restarts it when it dies, and waits for staged saves.

    Only the main thread may use it.
    """

    def __init__(self, path: Path, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.path = path
        """Path of the writer's socket, passed to programs as CLOUDGPU_WRITER."""
        self._env, self._say = dict(env), say
        self._process: int | None = None
        self._pidfd = -1
        self._started = 0.0
        self._due = float("inf")
        self._pause_s = _PAUSE_S[0]

    @property
    def process(self) -> int | None:
        """PID of the writer's parent, an orphan guard, which must not be killed with the program's processes."""
        return self._process

    def begin(self) -> None:
        """Schedule the writer's start, START_AFTER_S from now; call it when the program is about to start."""
        self._due = min(self._due, time.monotonic() + START_AFTER_S)

    def keep_up(self) -> float:
        """Start or restart the writer if it is due; return the seconds until the next call."""
        now = time.monotonic()
        if self._process is not None and self._has_ended():
            self._note_death(now)
        if self._process is None and now >= self._due:
            self._start(now)
        return _LOOK_S if self._process is not None else max(0.0, self._due - now)

    def drain(self, seconds_left: Callable[[], float], wait: Callable[[float], None], wake: Callable[[], None]) -> bool:
        """Wait until all staged saves are durable or have failed; return False if that is not so in time.

        `seconds_left` returns the timeout; it is called repeatedly, because a deadline may be set meanwhile. `wait`
        sleeps for some seconds; `wake` interrupts it.
        """
        if self._process is None or self._has_ended():
            return True
        durable, over = threading.Event(), threading.Event()

        def ask() -> None:
            from ...checkpoint.writer.protocol import wait_until_durable

            while not over.is_set() and not self._has_ended():
                if wait_until_durable(str(self.path), _LOOK_S):
                    durable.set()
                    break
            wake()

        asking = threading.Thread(target=ask, name="drain", daemon=True)
        asking.start()
        begun, is_announced = time.monotonic(), False
        while asking.is_alive() and (left := seconds_left()) > 0:
            wait(min(left, _LOOK_S))
            if not is_announced and asking.is_alive() and time.monotonic() - begun > _LOOK_S:
                is_announced = True
                self._say("waiting until what was staged of checkpoints is written")
        over.set()
        if not durable.is_set():
            self._say("the last checkpoint could not be written in time; older ones are intact")
        elif is_announced:
            self._say(f"all that was staged is written, after {time.monotonic() - begun:.1f} s")
        return durable.is_set()

    def end(self) -> None:
        """Stop restarting the writer. From now on `process` is None, so kill_leftovers() also kills the writer."""
        self._due = float("inf")
        if self._process is not None:
            self._forget()

    def _start(self, now: float) -> None:
        me = str(os.getpid())
        command = [sys.executable, "-I", "-S", ORPHAN_GUARD, me, sys.executable, "-P"]
        # With --parent, it ends with the agent even if the agent and the orphan guard are killed while it starts.
        command += ["-m", "cloudgpu.runtime.checkpoint.writer", "--socket", str(self.path), "--parent", me]
        try:
            child = subprocess.Popen(
                command, env=self._env, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True
            )
        except OSError as error:
            self._say(f"the checkpoint writer cannot be started: {error.strerror or error}")
            self._wait_longer(now)
            return
        child.returncode = 0  # the agent reaps all its children itself: Popen must not wait for this one
        self._process, self._pidfd, self._started = child.pid, os.pidfd_open(child.pid), now

    def _has_ended(self) -> bool:
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], 0)[0])

    def _note_death(self, now: float) -> None:
        if now - self._started > _STEADY_S:
            self._pause_s = _PAUSE_S[0]
        self._say(f"the checkpoint writer has died; it is started again in {self._pause_s:g} s")
        self._forget()
        self._wait_longer(now)

    def _wait_longer(self, now: float) -> None:
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_S[1])

    def _forget(self) -> None:
        os.close(self._pidfd)
        self._process, self._pidfd = None, -1
