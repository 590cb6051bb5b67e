"""The trainer's side of the checkpoint writer: two slots of shared memory, and what becomes of what is staged in them.

    client = WriterClient.connect(store, rank, world, attempt)
    client.reserve(size)
    slot = client.free_slot()                # None: the store is too slow, nothing is staged this time
    client.slot(slot)[:size] = ...           # what blocks training: one copy
    client.submit(Save(name, slot, size, manifest, finished=False, keep=3))
    ...
    for result in client.poll(): ...         # at a later step boundary

No method but wait() and drain() waits for the writer or the store, however slow, hung or dead they are. A client
belongs to the process and the thread that made it; in a forked child it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .names import Name
from .writer_protocol import Save, SaveResult

if TYPE_CHECKING:
    from .store import CheckpointStore

__all__ = ["Save", "SaveResult", "WriterClient"]


class WriterClient(Protocol):
    """Signatures only: the class itself follows."""

    @classmethod
    def connect(cls, store: CheckpointStore, rank: int, world: int, attempt: int) -> WriterClient:
        """A client of the node's writer ($CLOUDGPU_WRITER), else of one of its own, which is started here.

        Returns at once: the writer starts meanwhile. One that dies is replaced, and is given again what is staged.
        """
        ...

    def reserve(self, size: int) -> None:
        """Have both slots hold `size` bytes; returns at once, the memory's pages are made in the background."""
        ...

    def free_slot(self) -> int | None:
        """The slot to stage into: of the free ones that with the older content; None if both are being written."""
        ...

    def slot(self, number: int) -> memoryview:
        """A slot's memory, writable; page-aligned, at least as long as reserved. reserve() may replace a free slot."""
        ...

    def submit(self, save: Save) -> None:
        """Hand a staged slot over; it must not be touched until free_slot() returns it again."""
        ...

    def poll(self) -> list[SaveResult]:
        """What has become durable or failed since the last call. Never blocks."""
        ...

    def wait(self, timeout_s: float) -> list[SaveResult]:
        """Results of all that was submitted; fewer if time runs out."""
        ...

    def abandon(self, name: Name) -> None:
        """This save will never be complete (another rank failed): rank 0's writer need not wait, and removes it."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Wait until what earlier processes of this rank had staged is durable or has failed; False: time ran out."""
        ...

    def cached(self, name: Name) -> tuple[bytes, memoryview] | None:
        """The manifest and the bytes of a checkpoint that an earlier process of this rank staged on this machine.

        To be verified like a file (the process may have died while overwriting it), and copied before the next
        free_slot(): the memory is that of a slot.
        """
        ...

    def close(self) -> None:
        """Leave. What was submitted is still written, by a writer that lives on until then."""
        ...
