"""Protocol of the checkpoint stores from which a checkpoint can be restored."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ....protocol.checkpoint_names import Name
from ..store import Commit


class ReadableStore(Protocol):
    """The methods of CheckpointStore that restoring uses. Each raises JobDirError if the store cannot be read."""

    def committed(self) -> list[Name]:
        """Return the checkpoints not known to be damaged, newest first."""
        ...

    def read_commit(self, name: Name) -> Commit:
        """Return the verified COMMIT.json. Raises UnusableError."""
        ...

    def get(self, name: Name, file: str) -> bytes:
        """Return the content of a small file. Raises MissingError."""
        ...

    def get_range(self, name: Name, file: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of a file, fewer if the file ends before. Raises MissingError."""
        ...

    def file_size(self, name: Name, file: str) -> int:
        """Return the size of a file in bytes. Raises MissingError."""
        ...

    def local_path(self, name: Name, file: str) -> Path | None:
        """Return the path of a file on a mounted file system; None: it is in an object store."""
        ...

    def damaged(self) -> list[Name]:
        """Return the checkpoints that are marked as damaged, newest first."""
        ...

    def mark_damaged(self, name: Name, reason: str) -> None:
        """Mark a checkpoint as damaged: later runs skip it, and retention keeps it."""
        ...

    def unmark_damaged(self, name: Name) -> None:
        """Remove the mark of a checkpoint as damaged."""
        ...
