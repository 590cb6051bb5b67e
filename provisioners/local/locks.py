"""Locks that all users of this machine share: one file for each GPU, in a world-writable folder of the kernel.

A lock file is empty and read-only for everyone, its owner included: flock() needs no right to write. It is never
removed, so that two processes cannot hold locks on two files of the same name.
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
"""Folder of the lock files, instead of SHARED_FOLDER."""
SHARED_FOLDER = Path("/dev/shm")  # noqa: S108 - a fixed name is what lets all users meet
"""Every user may create files here, only their owners may remove them, and no cleanup of old files visits it."""
_PREFIX = "cloudgpu-gpu-"
_READ_ONLY = 0o444


def lock_gpu(uuid: str) -> int | None:
    """Return a descriptor that holds a GPU's lock until it and all inherited copies are closed; None if it is held.

    Raises ProvisionError (invalid) if something else is in the place of the lock file, OSError.
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
    except (BlockingIOError, FileNotFoundError):  # held; or removed since it was opened
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open(path: Path) -> int:
    """Open a lock file, which is created if it is missing. Links are not followed, and a pipe does not block."""
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
    """Create a lock file with its final mode: one that is cut off leaves no file that other users cannot open."""
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
