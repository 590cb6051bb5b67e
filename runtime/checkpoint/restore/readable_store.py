"""The methods of a store of checkpoints that restoring uses."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ....protocol.checkpoint_names import Name
from ..store import Commit


class ReadableStore(Protocol):
    """The part of CheckpointStore that restoring uses. Each method raises JobDirError if the store cannot be read."""

    def committed(self) -> list[Name]:
        """Every checkpoint not known to be damaged, newest first."""
        ...

    def read_commit(self, name: Name) -> Commit:
        """COMMIT.json, verified; raises UnusableError."""
        ...

    def get(self, name: Name, file: str) -> bytes:
        """A whole small file; raises MissingError."""
        ...

    def get_range(self, name: Name, file: str, start: int, end: int) -> bytes:
        """Bytes of a file; raises MissingError. Fewer than asked for if the file is shorter, if the store says so."""
        ...

    def file_size(self, name: Name, file: str) -> int:
        """Bytes; raises MissingError."""
        ...

    def local_path(self, name: Name, file: str) -> Path | None:
        """Return the path of a file on a mounted file system; None: it is in an object store."""
        ...

    def damaged(self) -> list[Name]:
        """Return every checkpoint that is marked as damaged, newest first."""
        ...

    def mark_damaged(self, name: Name, reason: str) -> None:
        """Have later runs pass over it, and retention leave it alone."""
        ...

    def unmark_damaged(self, name: Name) -> None:
        """Make it a checkpoint again."""
        ...
