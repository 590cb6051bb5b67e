"""Detect a running supervisor by its lock, and wake it through a FIFO. Imports none of the supervisor's own modules."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import platform
import secrets
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ... import __version__
from .. import paths
from ..supervisor_environment import hashes

_LOCK_TRIES = 4
_LOCK_PAUSE_S = 0.05
_LOCK_BYTES = 1 << 20
"""Maximum bytes read of a lock file."""
_WRITTEN_S = 1.0
"""Seconds to wait for the description of a supervisor that has just taken the lock."""


@dataclass(frozen=True, slots=True)
class Running:
    """The running supervisor, as described in its lock file."""

    pid: int | None = None
    """Process id of the supervisor; None: unknown."""
    version: str = ""
    """Version of cloudgpu; "": too old to record its version."""
    started: float | None = None
    """Epoch seconds."""
    by_command: bool = False
    """True if a command started it in the background; False for a service or in a terminal."""
    space: str = ""
    """Boot and pid namespace within which `pid` is valid: result of process_space()."""
    salt: bytes = b""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Result of supervisor_environment.hashes()."""

    @property
    def is_replaceable(self) -> bool:
        """True if a command may stop it and start another one."""
        return self.pid is not None and self.by_command and self.space == process_space()


def is_running() -> bool:
    """Return whether a supervisor holds this state directory's lock."""
    return running() is not None


def running() -> Running | None:
    """Return the supervisor that holds this state directory's lock; None: there is none. Waits briefly if its
    description is not written yet."""
    until = time.monotonic() + _WRITTEN_S
    while (found := _held()) == Running() and time.monotonic() < until:
        time.sleep(_LOCK_PAUSE_S)
    return found


def _held() -> Running | None:
    try:
        with paths.supervisor_lock().open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read(lock.read(_LOCK_BYTES))
    except FileNotFoundError:
        return None
    return None


def _read(content: bytes) -> Running:
    """Decode a lock file; return Running() if it is incomplete or damaged. Older versions wrote only a pid."""
    try:
        value = json.loads(content)
        if isinstance(value, int):
            by_command = b"--idle-exit" in Path(f"/proc/{value}/cmdline").read_bytes().split(b"\0")
            return Running(pid=_process_id(value), by_command=by_command, space=process_space())
        return Running(
            pid=_process_id(value["pid"]),
            version=str(value["version"]),
            started=float(value["started"]),
            by_command=value["by_command"] is True,
            space=str(value["space"]),
            salt=bytes.fromhex(value["salt"]),
            settings={str(name): str(hashed) for name, hashed in value["settings"].items()},
        )
    except (ValueError, TypeError, LookupError, AttributeError, OSError, RecursionError):
        return Running()


def _process_id(value: object) -> int:
    """Validate a process id. Raises ValueError for 0 and negative numbers, which kill() takes as process groups."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"not a process id: {value!r}")
    return value


def send_signal(there: Running, number: signal.Signals) -> bool:
    """Send a signal to a supervisor of this state directory; return whether it was sent.

    The lock file may be damaged, or its process may have ended and its id been reused. The signal is therefore sent
    only to a process that has the lock file open for writing, as only supervisors do.
    """
    if there.pid is None or there.space != process_space():
        return False
    try:
        process = os.pidfd_open(there.pid)  # refers to this process even if its id is reused
    except (OSError, OverflowError, ValueError):
        return False
    try:
        if not _has_lock_open(there.pid):
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def _has_lock_open(pid: int) -> bool:
    lock = paths.supervisor_lock().stat()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if descriptor.lstat().st_mode & stat.S_IWUSR and os.path.samestat(descriptor.stat(), lock):
                return True
    return False


def this_process(*, by_command: bool) -> Running:
    """Return the description of this process for its lock file."""
    salt = secrets.token_bytes(16)
    settings = hashes(os.environ, salt)
    return Running(os.getpid(), __version__, time.time(), by_command, process_space(), salt, settings)


def process_space() -> str:
    """Return a name for the boot and the process namespace, within which a process id is unique."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return ",".join(parts)


WAKE_BYTES = 65_536
"""Maximum bytes per read from the FIFO: the capacity of a pipe."""


def wake(job_id: str = "") -> None:
    """Wake a running supervisor to check this job, or without an id, to query the store for new jobs."""
    try:
        pipe = os.open(paths.supervisor_wake(), os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ENXIO:  # no supervisor reads from it
            return
        raise
    try:
        with suppress(BlockingIOError):  # full: the supervisor wakes up anyway, and finds the job by its next query
            os.write(pipe, f"{job_id}\n".encode())
    finally:
        os.close(pipe)


def woken_jobs(data: bytes) -> set[str]:
    """Parse data from the FIFO; return the ids of jobs. An earlier version writes a dot and no id."""
    lines = data.decode("utf-8", "replace").split("\n")
    return {line.lstrip(".") for line in lines} - {""}


def take_lock(*, by_command: bool = False) -> IO[str] | None:
    """Take the lock, and write this process's description into its file; None: another supervisor has it. Retries
    briefly, because running() in another process holds a shared lock for a moment."""
    lock = paths.open_private(paths.supervisor_lock())
    about = dataclasses.asdict(us := this_process(by_command=by_command)) | {"salt": us.salt.hex()}
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _LOCK_TRIES:
                time.sleep(_LOCK_PAUSE_S)
            continue
        with suppress(OSError):  # on a full disk, the lock alone is enough
            lock.truncate(0)
            os.write(lock.fileno(), f"{json.dumps(about)}\n".encode())
        return lock
    lock.close()
    return None


def is_current_lock(lock: IO[str]) -> bool:
    """Return whether this lock file still belongs to the state directory, which may have been deleted or replaced."""
    try:
        return os.path.samestat(paths.supervisor_lock().stat(), os.fstat(lock.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a transient disk error proves nothing
        return True


@contextmanager
def wake_pipe() -> Iterator[int]:
    """Yield the supervisor's end of the FIFO. It is also opened for writing, so that it never reports end of file."""
    path = paths.supervisor_wake()
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield pipe
    finally:
        os.close(pipe)
