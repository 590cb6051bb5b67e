"""Start a supervisor if none runs, and replace an outdated one."""

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
from ..secrets.channel import hand_over
from .outdated import end, is_outdated
from .supervisor_lock import running, wake

IDLE_EXIT = "60s"
LOG_BYTES = 2_000_000
"""Maximum size of supervisor.log in bytes; a larger one is renamed to supervisor.log.1 when a supervisor starts."""
START_S = 2.0
"""Seconds for which a new supervisor is watched until it holds its lock or has failed."""
_TRIES = 3
"""Maximum number of supervisors to start if each is killed at once."""
_POLL_S = 0.02
_LAST_LINES = 20
_LINE = 500


def ensure_supervisor(job_id: str | None = None) -> None:
    """Start a supervisor in the background if none runs, or replace an outdated one.

    Call it after storing a change. `job_id`: the changed job, for which a running supervisor is woken; None: nothing
    changed. Raises ControlError if the started supervisor fails at once.
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
            hand_over()
            return


def _start() -> subprocess.Popen[bytes]:
    """Start a supervisor in a separate session, out of reach of Ctrl-C and of the terminal's end."""
    log = paths.supervisor_log()
    _rotate(log)
    with paths.open_private(log) as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cloudgpu", "supervise", "--idle-exit", IDLE_EXIT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",  # keeps no folder busy; HOME_VARIABLE below must therefore be absolute
            env={**os.environ, HOME_VARIABLE: str(home())},
        )


def _holds_lock(child: subprocess.Popen[bytes], *, last: bool) -> bool:
    """Wait until any supervisor holds the lock, at most START_S. Return False if the child was killed by a signal and
    this is not the last try. Raises ControlError if the child failed otherwise."""
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
