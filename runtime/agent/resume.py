"""An agent that starts again on its own machine, after a reboot or its own death, goes on where it was.

What was unpacked, set up and begun lies on the machine's disk; what it has told lies in the job dir.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from ...protocol.jobdir import Claim, Heartbeat, JobDir, RecordError, node_key
from ...protocol.logs import next_chunk


@dataclass(frozen=True, slots=True)
class Before:
    """What the node has told by now: nothing, unless it was started before."""

    chunk: int = 1
    """The log's next object."""
    heartbeat: Heartbeat | None = None
    """The last one."""
    has_ended: bool = False
    """There is a result: nothing is left to do."""

    @property
    def sequence(self) -> int:
        """Of the last heartbeat."""
        return 0 if self.heartbeat is None else self.heartbeat.sequence


class OwnClaim:
    """The claim of this machine's node, as this machine remembers it.

    It is on disk before it is in the job dir: so a machine that was restarted repeats its own claim, and finds that it
    has it already. Held, it keeps a second agent from starting beside the first.
    """

    def __init__(self, home: Path, machine: str) -> None:
        """Raises OSError."""
        self._handle = os.open(home / "claim", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.is_held = self._lock()
        found = os.pread(self._handle, 4096, 0)
        self.is_old = bool(found)
        """An earlier run on this machine has made it."""
        self.content = found or Claim(machine, uuid.uuid4().hex, time.time()).to_bytes()
        if self.is_held and not found:
            os.pwrite(self._handle, self.content, 0)
            os.fsync(self._handle)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def look_back(job_dir: JobDir, attempt: int, node: str) -> Before:
    """What an earlier run has told. Raises JobDirError."""
    try:
        heartbeat = Heartbeat.read(job_dir, node_key(attempt, node, "heartbeat.json"))
    except RecordError:  # it is written anew
        heartbeat = None
    return Before(
        next_chunk(job_dir, attempt, node),
        heartbeat,
        job_dir.exists(node_key(attempt, node, "result.json")),
    )
