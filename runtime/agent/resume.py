"""Resume of a node by an agent restarted on the same machine, after a reboot or a crash of the agent.

Code, setup and the current generation are stored on the machine's disk; log, heartbeat and result in the job dir.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from ...protocol.jobdir import Claim, Heartbeat, JobDir, RecordError, node_key
from ...protocol.logs.format import next_chunk


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """State that an earlier run of the node has left in the job dir; empty on the first run."""

    chunk: int = 1
    """Number of the log's next object."""
    heartbeat: Heartbeat | None = None
    """The last heartbeat that it wrote."""
    has_ended: bool = False
    """True if it wrote the node's result, so that nothing is left to do."""

    @property
    def sequence(self) -> int:
        """Number of the last heartbeat."""
        return 0 if self.heartbeat is None else self.heartbeat.sequence


class OwnClaim:
    """This machine's claim of its node, with a copy on its disk.

    The claim is written to the disk before the job dir, so that a restarted machine creates the same claim again
    (idempotent). A lock on the file prevents a second agent from running at the same time.
    """

    def __init__(self, home: Path, machine: str) -> None:
        """Read the claim, or create it and lock it. Raises OSError."""
        self._handle = os.open(home / "claim", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.is_held = self._lock()
        found = os.pread(self._handle, 4096, 0)
        self.is_old = bool(found)
        """True if an earlier run on this machine has created the claim."""
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


def read_earlier_run(job_dir: JobDir, attempt: int, node: str) -> EarlierRun:
    """Return the state that an earlier run of the node has written to the job dir. Raises JobDirError."""
    try:
        heartbeat = Heartbeat.read(job_dir, node_key(attempt, node, "heartbeat.json"))
    except RecordError:  # invalid: it will be overwritten
        heartbeat = None
    return EarlierRun(
        next_chunk(job_dir, attempt, node),
        heartbeat,
        job_dir.exists(node_key(attempt, node, "result.json")),
    )
