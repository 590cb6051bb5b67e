"""Lock files held through flock(2): the kernel frees a lock when the last process that holds it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(path: Path, *, create: bool = True) -> int | None:
    """Return a file descriptor that holds the lock until it and its inherited copies are closed; None: already locked.

    Raises OSError; FileNotFoundError if the file is missing and `create` is False.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
