"""Which checkpoint a run goes on from: the newest of which every rank verified all that it needs.

A damaged one is quarantined (DAMAGED.json) and the next older is taken. One that cannot be read for now (a store that
does not answer, a permission) is passed over unmarked; if nothing else is left, that is an error: beginning anew would
throw away what may be readable again in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .names import Name

if TYPE_CHECKING:
    from .ranks import Ranks
    from .store import Commit

Cached = Callable[[Name], tuple[bytes, memoryview] | None]
"""WriterClient.cached: what survives on this machine of a checkpoint that this rank staged."""


class ReadableStore(Protocol):
    """What is asked of CheckpointStore here. Every method raises JobDirError where the store cannot be read."""

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
        """Where the file lies on a mounted file system; None: in an object store."""
        ...

    def mark_damaged(self, name: Name, reason: str) -> None:
        """So that later runs pass over it, and a person can look at it meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint as this rank needs it."""

    name: Name
    commit: Commit
    snapshot: dict[str, Any]
    """As it was saved; tensors in memory of our own, as DTensors where the live object has them."""


def restore(store: ReadableStore, ranks: Ranks, *, objects: Mapping[str, Any], cached: Cached) -> Restored | None:
    """The newest checkpoint that all ranks verified; None if there has never been one, or all are damaged.

    objects   the live objects by name: asked for the mesh and placements of DTensors, not changed
    cached    read instead of the store where its content is what was committed

    Collective: every rank must call it. Raises CheckpointError if there are checkpoints, none can be used, and one of
    them only for now; or if the newest does not fit the objects.
    """
    raise NotImplementedError
