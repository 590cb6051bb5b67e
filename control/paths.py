"""Where the control side keeps its files (docs/control.md lists them)."""

from __future__ import annotations

import os
from pathlib import Path

from ..jobspecs.home import home
from .errors import StoreError

DATABASE_VARIABLE = "CLOUDGPU_DATABASE_URL"


def make_private(folder: Path) -> Path:
    """Create a folder that only its owner can look into; an existing one is left as it is. Raises StoreError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be used to keep cloudgpu's state: {error.strerror or error}") from error
    return folder


def state_dir() -> Path:
    """The state directory, made if need be."""
    return make_private(home())


def database_url() -> str:
    """SQLAlchemy URL of the store."""
    return os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{home() / 'cloudgpu.db'}"


def default_job_dir() -> Path:
    """Holds the folders of jobs whose file names no job_dir."""
    return home() / "jobs"


def supervisor_lock() -> Path:
    """Held (flock) by the one supervisor of this state directory; its process id is inside."""
    return home() / "supervisor.lock"


def supervisor_log() -> Path:
    return home() / "supervisor.log"


def supervisor_wake() -> Path:
    """A FIFO: a byte written to it ends the supervisor's wait."""
    return home() / "supervisor.wake"
