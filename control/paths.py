"""Paths of the control side's files (docs/explanation/control.md lists them)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from ..jobspecs.home import home, private
from .errors import StoreError

DATABASE_VARIABLE = "CLOUDGPU_DATABASE_URL"


def make_private(folder: Path) -> Path:
    """Create a folder that only its owner can read (see home.private). Raises StoreError."""
    try:
        private(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be used to keep cloudgpu's state: {error.strerror or error}") from error
    return folder


def open_private(path: Path) -> IO[str]:
    """Open a file for appending with access for its owner only; restrict an existing file that others can read.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if (found := os.fstat(descriptor)).st_uid == os.getuid() and found.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "a+", encoding="utf-8")


def state_dir() -> Path:
    """Return the state directory; create it if missing."""
    return make_private(home())


def database_url() -> str:
    """Return the store's URL in SQLAlchemy's format."""
    return os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{home() / 'cloudgpu.db'}"


def default_job_dir() -> Path:
    """Return the folder for jobs whose file names no job_dir."""
    return home() / "jobs"


def supervisor_lock() -> Path:
    """Return the path of the lock file (flock) that the only supervisor of this state directory holds. It contains a
    Running record (supervisor/supervisor_lock.py)."""
    return home() / "supervisor.lock"


def supervisor_log() -> Path:
    return home() / "supervisor.log"


def supervisor_secrets() -> Path:
    """Return the path of a socket by which commands give values of secrets to the supervisor."""
    return home() / "supervisor.secrets"


def supervisor_wake() -> Path:
    """Return the path of a FIFO; a byte written to it wakes the supervisor."""
    return home() / "supervisor.wake"
