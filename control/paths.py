"""Where the control side keeps its files (docs/explanation/control.md lists them)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from ..jobspecs.home import home, private
from .errors import StoreError

DATABASE_VARIABLE = "CLOUDGPU_DATABASE_URL"


def make_private(folder: Path) -> Path:
    """Create a folder as home.private() does. Raises StoreError."""
    try:
        private(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be used to keep cloudgpu's state: {error.strerror or error}") from error
    return folder


def open_private(path: Path) -> IO[str]:
    """Open a file for appending that only its owner can read; an existing one that is open to others is closed to them.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if (found := os.fstat(descriptor)).st_uid == os.getuid() and found.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "a+", encoding="utf-8")


def state_dir() -> Path:
    """The state directory, made if need be."""
    return make_private(home())


def database_url() -> str:
    """URL of the store, as SQLAlchemy writes them."""
    return os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{home() / 'cloudgpu.db'}"


def default_job_dir() -> Path:
    """Holds the folders of jobs whose file names no job_dir."""
    return home() / "jobs"


def supervisor_lock() -> Path:
    """Held (flock) by the one supervisor of this state directory; what is inside describes it (presence.Running)."""
    return home() / "supervisor.lock"


def supervisor_log() -> Path:
    return home() / "supervisor.log"


def supervisor_wake() -> Path:
    """A FIFO: a byte written to it ends the supervisor's wait."""
    return home() / "supervisor.wake"
