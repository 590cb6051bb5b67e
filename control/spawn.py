"""Seeing to it that a supervisor runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..jobspecs.home import HOME_VARIABLE, home
from . import paths
from .errors import ControlError
from .presence import is_running, wake

IDLE_EXIT = "60s"
LOG_BYTES = 2_000_000
"""supervisor.log is moved to supervisor.log.1 when it is longer and a supervisor starts."""


def ensure_supervisor(job_id: str | None = None) -> None:
    """Start a supervisor in the background if none runs. Call it after storing what it shall do.

    `job_id`: of the job that was changed; a running supervisor is woken for this one. None: nothing was changed.
    """
    paths.state_dir()
    if is_running():
        if job_id is not None:
            wake(job_id)
        return
    try:
        _start()
    except OSError as error:
        raise ControlError(f"the supervisor cannot be started: {error}") from error


def _start() -> None:
    """In its own session, so that neither Ctrl-C nor the terminal's end reaches it."""
    log = paths.supervisor_log()
    _rotate(log)
    with log.open("ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "cloudgpu", "supervise", "--idle-exit", IDLE_EXIT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",  # no folder is kept busy; so a state directory named relative to ours must be made absolute
            env={**os.environ, HOME_VARIABLE: str(home())},
        )


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
