"""One folder, one training: a second Checkpointer of this process is refused where another one has trained."""

from __future__ import annotations

import os

from .errors import CheckpointError
from .store import CheckpointStore

_held: dict[tuple[int, str], FolderHold] = {}
"""By process (a fork inherits the table) and folder."""


class FolderHold:
    """A Checkpointer's hold on its folder. One that has neither restored nor begun gives way to the next."""

    def __init__(self, store: CheckpointStore) -> None:
        """Take the folder; raises CheckpointError if a Checkpointer of this process has trained in it."""
        self._folder = str(store)
        self._used = self._released = False
        self._key = os.getpid(), self._folder
        if (other := _held.get(self._key)) and other._used:
            raise self._refusal()
        _held[self._key] = self

    def use(self) -> None:
        """Keep the folder until release(); raises CheckpointError if another Checkpointer has taken it meanwhile."""
        if self._released:
            raise CheckpointError(f"this Checkpointer has given up {self._folder}: make another one to go on")
        if _held.get(self._key) is not self:
            raise self._refusal()
        self._used = True

    def release(self) -> None:
        """Let another Checkpointer of this process go on with the same training."""
        self._released = True
        if _held.get(self._key) is self:
            del _held[self._key]

    def _refusal(self) -> CheckpointError:
        return CheckpointError(
            f"another Checkpointer of this process has the checkpoints in {self._folder}, and a folder holds those of "
            'one training. Give each training a folder of its own, as folder=f"fold-{k}" in a cross-validation. To go '
            "on with the same training, as when a notebook's cell is run again, call release() on the Checkpointer "
            "before, or restart the kernel"
        )
