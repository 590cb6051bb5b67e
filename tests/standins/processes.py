"""Local processes that belong to a stand-in's machine or container: finding, pausing and killing them.

A process belongs to a machine if its HOME is `root` in the folder or if it works in the folder, and so do its
descendants.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_TIMEOUT_S = 180.0


def kill_all(root: Path) -> None:
    """Send SIGKILL to all processes of a machine, and to those that they start meanwhile."""
    end = time.monotonic() + _TIMEOUT_S
    while found := list(processes_of(root)):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)
        if time.monotonic() > end:
            raise RuntimeError(f"processes of {root} do not end: {found}")


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Suspend a child process, with all its threads, for the duration of the block."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def processes_of(root: Path) -> Iterator[psutil.Process]:
    """Yield each process of a machine once, except zombies."""
    seen: set[int] = {os.getpid()}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid in seen or process.status() == psutil.STATUS_ZOMBIE or not _is_of(process, root):
                continue
            for one in (process, *process.children(recursive=True)):
                if one.pid not in seen and one.status() != psutil.STATUS_ZOMBIE:
                    seen.add(one.pid)
                    yield one


def _is_of(process: psutil.Process, root: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        if process.environ().get("HOME") == str(root / "root"):
            return True
    with contextlib.suppress(psutil.Error):
        return Path(process.cwd()).is_relative_to(root)
    return False
