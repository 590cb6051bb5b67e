"""What trainers and the checkpoint writer say to each other.

Messages are JSON objects, one per packet of an AF_UNIX socket of type SOCK_SEQPACKET: a packet arrives whole or not at
all, and file descriptors travel with the packet they belong to. What may be long (a manifest) travels as a descriptor,
so that no message ever waits for room in a socket's buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from .names import Name


@dataclass(frozen=True, slots=True)
class Save:
    """One rank's part of a checkpoint, staged in a slot."""

    name: Name
    slot: int
    size: int
    """Bytes of the slot that are the checkpoint's."""
    manifest: bytes
    """RankManifest without chunk hashes: the writer adds them."""
    finished: bool
    """The training reached its end with this step. Of this field and the next two, only rank 0's count."""
    keep: int
    """How many checkpoints are kept, this one included."""
    rows: bytes = b""
    """Metrics of the steps since the last save; may be empty."""


@dataclass(frozen=True, slots=True)
class SaveResult:
    """What became of a Save."""

    name: Name
    written: bool
    """This rank's part is durable."""
    committed: bool
    """It is a checkpoint now; known on rank 0 only."""
    error: str | None
    fenced: bool
    """A newer attempt has taken over: this one will never commit again."""
    seconds: float
    """From submit() until it was durable (on rank 0: committed) or had failed."""
