"""Whether a supervisor is there (a lock), and how to wake it (a FIFO). Imports nothing of what it works with."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from . import paths

_LOCK_TRIES = 4
_LOCK_PAUSE_S = 0.05


def is_running() -> bool:
    """Whether a supervisor holds this state directory's lock."""
    try:
        with paths.supervisor_lock().open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


WAKE_BYTES = 65_536
"""Read from the FIFO at a time: as much as a pipe holds."""


def wake(job_id: str = "") -> None:
    """Wake the supervisor, if one runs, to look at this job; without an id, to ask the store for new jobs."""
    try:
        pipe = os.open(paths.supervisor_wake(), os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody listens
            return
        raise
    try:
        with suppress(BlockingIOError):  # full: it wakes up, and the store names the job within a second
            os.write(pipe, f"{job_id}\n".encode())
    finally:
        os.close(pipe)


def woken_jobs(data: bytes) -> set[str]:
    """Return the ids of jobs in what was read from the FIFO. An earlier version writes a dot and no id."""
    lines = data.decode("utf-8", "replace").split("\n")
    return {line.lstrip(".") for line in lines} - {""}


def take_lock() -> IO[str] | None:
    """The lock, our process id in it; None: another supervisor has it (a short probe by is_running() is waited out)."""
    lock = paths.supervisor_lock().open("a+", encoding="ascii")
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _LOCK_TRIES:
                time.sleep(_LOCK_PAUSE_S)
            continue
        with suppress(OSError):  # the number is for people: on a full disk the lock alone must do
            lock.truncate(0)
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        return lock
    lock.close()
    return None


def is_asked_for(lock: IO[str]) -> bool:
    """Whether this lock is the one others look at: it is not, once the state directory was deleted or replaced."""
    try:
        return os.path.samestat(paths.supervisor_lock().stat(), os.fstat(lock.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a disk that fails for now says nothing
        return True


@contextmanager
def wake_pipe() -> Iterator[int]:
    """Our end of the FIFO. Opened for writing too, so that it never reports an end of file."""
    path = paths.supervisor_wake()
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield pipe
    finally:
        os.close(pipe)
