"""Reader-writer lock for all processes that share a folder: many hold it together, or one exclusively."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared_lock(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold the lock, exclusively if `alone`. Later callers queue behind a waiting exclusive one, so that it is not
    starved.

    Locks of a process that dies are released.
    """
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        try:
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # explicitly, as a fork that outlives the test keeps it open
