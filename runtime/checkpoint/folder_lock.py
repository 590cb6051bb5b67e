"""Lock of a checkpoint folder within a process: a folder holds the checkpoints of one training."""

from __future__ import annotations

import os

from .errors import CheckpointError
from .store import CheckpointStore

_held: dict[tuple[int, str], FolderLock] = {}
"""Current holder, by process id (a forked child inherits this table) and folder."""


class FolderLock:
    """Lock that a Checkpointer holds on its folder. Until its first use() the next Checkpointer can take it over."""

    def __init__(self, store: CheckpointStore) -> None:
        """Acquire the folder. Raises CheckpointError if another Checkpointer of this process has trained in it."""
        self._folder = str(store)
        self._used = self._released = False
        self._key = os.getpid(), self._folder
        if (other := _held.get(self._key)) and other._used:
            raise self._refusal()
        _held[self._key] = self

    def use(self) -> None:
        """Keep the folder until release().

        Raises CheckpointError if this lock was released, or if another Checkpointer has taken over the folder.
        """
        if self._released:
            raise CheckpointError(f"this Checkpointer has given up {self._folder}: make another one to go on")
        if _held.get(self._key) is not self:
            raise self._refusal()
        self._used = True

    def release(self) -> None:
        """Release the folder, so that another Checkpointer of this process can continue the training."""
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
