"""GPU locks shared by all users of this machine: one file for each GPU, in a world-writable tmpfs.

A lock file is empty and read-only for all users, including its owner: flock() needs no write permission. It is never
deleted, so that two processes cannot hold locks on two files of the same name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from pathlib import Path

from ..base import ProvisionError

FOLDER_VARIABLE = "CLOUDGPU_LOCK_DIR"
"""Environment variable with the folder of the lock files, instead of SHARED_FOLDER."""
SHARED_FOLDER = Path("/dev/shm")  # noqa: S108 - all users must use the same folder
"""All users may create files here, only their owners may delete them, and no tool cleans up old files here."""
_PREFIX = "cloudgpu-gpu-"
_READ_ONLY = 0o444


def lock_gpu(uuid: str) -> int | None:
    """Return a descriptor that holds a GPU's lock until it and all inherited copies are closed; None: already locked.

    Raises OSError; ProvisionError(invalid) if the lock file cannot be opened or is not a regular file.
    """
    path = Path(os.environ.get(FOLDER_VARIABLE) or SHARED_FOLDER) / f"{_PREFIX}{uuid}.lock"
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _foreign(path, "it is not a regular file")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(status, path.lstat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # locked by another process, or deleted since it was opened
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open(path: Path) -> int:
    """Open a lock file, creating it if it is missing. Does not follow symbolic links or block on a pipe."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            _create(path)
            return os.open(path, flags)
    except OSError as error:
        if path.is_symlink() or path.exists():
            raise _foreign(path, error.strerror or str(error)) from error
        raise


def _create(path: Path) -> None:
    """Create a lock file atomically with its final mode, so that a crash leaves no file that other users cannot
    open."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _READ_ONLY)
    try:
        os.fchmod(descriptor, _READ_ONLY)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(partial)
    finally:
        os.close(descriptor)
        partial.unlink()


def _foreign(path: Path, why: str) -> ProvisionError:
    message = f"{path} cannot be locked: {why}; remove it, or set {FOLDER_VARIABLE} to a folder that all users share"
    return ProvisionError("invalid", message)
