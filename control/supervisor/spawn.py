"""Start a supervisor where none runs, and replace one that is outdated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from ...jobspecs.home import HOME_VARIABLE, home
from .. import paths
from ..errors import ControlError
from .outdated import end, is_outdated
from .supervisor_lock import running, wake

IDLE_EXIT = "60s"
LOG_BYTES = 2_000_000
"""supervisor.log is moved to supervisor.log.1 when it is longer and a supervisor starts."""
START_S = 2.0
"""How long a new supervisor is watched: until then it holds its lock, or has failed to start."""
_TRIES = 3
"""Supervisors that are started, at most, where each is killed at once."""
_POLL_S = 0.02
_LAST_LINES = 20
_LINE = 500


def ensure_supervisor(job_id: str | None = None) -> None:
    """Start a supervisor in the background if none runs, or replace one that is outdated.

    Call it after storing what it shall do. `job_id`: of the job that was changed; a running supervisor is woken for
    this one. None: nothing was changed. Raises ControlError if the one that was started has failed at once.
    """
    paths.state_dir()
    there = running()
    if there is not None and not (is_outdated(there) and end(there)):
        if job_id is not None:
            wake(job_id)
        return
    for last in (*[False] * (_TRIES - 1), True):
        try:
            child = _start()
        except OSError as error:
            raise ControlError(f"the supervisor cannot be started: {error}") from error
        if _holds_lock(child, last=last):
            return


def _start() -> subprocess.Popen[bytes]:
    """In its own session, so that neither Ctrl-C nor the terminal's end reaches it."""
    log = paths.supervisor_log()
    _rotate(log)
    with paths.open_private(log) as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cloudgpu", "supervise", "--idle-exit", IDLE_EXIT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",  # no folder is kept busy; so a state directory named relative to ours must be made absolute
            env={**os.environ, HOME_VARIABLE: str(home())},
        )


def _holds_lock(child: subprocess.Popen[bytes], *, last: bool) -> bool:
    """Wait until the supervisor, or another one, holds the lock; return False if it was killed, unless it is the last
    try. Raises ControlError if it has failed before."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        failed = child.poll()
        if running() is not None or failed == 0:
            return True
        if failed is not None and failed < 0 and not last:  # a supervisor may be killed at any moment
            return False
        if failed is not None:
            raise ControlError(
                f"no supervisor runs: the one that was started ended at once, with {_ending(failed)}. Until that is "
                f"mended, jobs wait, and limits are not kept; any command then starts another. {_last_line()}"
            )
        time.sleep(_POLL_S)
    return True


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last_line() -> str:
    log = paths.supervisor_log()
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            last = [line.strip() for line in deque(lines, _LAST_LINES) if line.strip()]
    except OSError:
        last = []
    return f"Its log, {log}, ends with: {last[-1][:_LINE]}" if last else f"Its log is {log}"


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
