"""Lock files whose truth is the kernel's: a lock is free as soon as the last process that holds it is dead."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(path: Path, *, create: bool = True) -> int | None:
    """A descriptor that holds the lock, for as long as it or an inherited copy of it is open; None: it is taken.

    Raises FileNotFoundError for a missing file that is not to be made, OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
