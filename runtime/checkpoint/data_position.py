"""Where training stands in its data, and how to get there again.

A position is (epoch, batches done in it) and the random state at the epoch's start: from that state the loader draws
the same order again. Batches done are then skipped: by index alone where the loader is a DataLoader without workers
over a map-style dataset; else by reading and dropping them, because only the loader knows how it came to them.

Exact: shuffling, drop_last, samplers with their own generator, DistributedSampler (set_epoch is called), random
augmentation in the dataset (without workers), random augmentation in workers (replayed from the same seeds).
Not exact: random augmentation in *persistent* workers (they carry their state from epoch to epoch, out of reach; a
warning says so), and what draws its order from the global generators while an epoch is under way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import random_state
from .errors import CheckpointError, logger


class DataPosition:
    """Place of a training loop in a loader (any iterable that can be iterated once per epoch)."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        """Batches done in this epoch."""
        self._epoch_random: dict[str, Any] | None = None
        self._epoch_length: int | None = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "epoch_random": self._epoch_random,
            "epoch_length": self._epoch_length,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._epoch_random, self._epoch_length = state["epoch_random"], state["epoch_length"]

    def open_epoch(self, loader: Any) -> Iterator[Any]:  # noqa: ANN401
        """An iterator over what is left of this epoch; the random state afterwards is the one before.

        That is: the draws by which the loader finds its place do not count, for they were made before.
        """
        _set_epoch(loader, self.epoch)
        generators = random_state.generators_of(loader)
        if self.epoch and _starts_workers_once(loader):
            # The epoch's own draws are those of a loader whose workers have been running since the first epoch.
            current = random_state.capture(generators)
            iter(loader)
            random_state.restore(current, generators)
        if self.batch == 0:
            self._epoch_random = random_state.capture(generators)
            self._epoch_length = length(loader)
            fresh: Iterator[Any] = iter(loader)
            return fresh
        if self._epoch_random is None or length(loader) != self._epoch_length:
            raise CheckpointError(
                f"the checkpoint stands at batch {self.batch} of {self._epoch_length} of an epoch, but the loader now "
                f"has {length(loader)}: its data, batch size or number of ranks changed. Use what it was saved with, "
                "or give another folder to begin anew"
            )
        if getattr(loader, "persistent_workers", False):
            logger().warning(
                "the loader's workers are persistent: their random state cannot be restored. The order of the data is "
                "exact, random augmentation inside the workers is not (persistent_workers=False makes it so)"
            )
        current = random_state.capture(generators)
        random_state.restore(self._epoch_random, generators)
        iterator: Iterator[Any] = iter(loader)
        _skip(_advance(loader, iterator), self.batch)
        random_state.restore(current, generators)
        return iterator

    def next_epoch(self) -> None:
        self.epoch, self.batch, self._epoch_random = self.epoch + 1, 0, None


def length(loader: Any) -> int | None:  # noqa: ANN401
    """Batches per epoch; None if the loader does not know."""
    try:
        return len(loader)
    except TypeError:  # an iterable dataset has no length
        return None


def _starts_workers_once(loader: Any) -> bool:  # noqa: ANN401
    """Persistent workers that are still to be started: a DataLoader draws their seed then, and in no later epoch."""
    persistent = getattr(loader, "persistent_workers", False) and getattr(loader, "num_workers", 0) > 0
    return bool(persistent) and getattr(loader, "_iterator", None) is None


def _set_epoch(loader: Any, epoch: int) -> None:  # noqa: ANN401
    """DistributedSampler and its like shuffle by epoch number and rely on being told."""
    for name in ("sampler", "batch_sampler", "dataset"):
        set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _advance(loader: Any, iterator: Iterator[Any]) -> Callable[[], Any]:  # noqa: ANN401
    """How to go one batch further: without reading data if that comes to the same."""
    data = sys.modules.get("torch.utils.data")
    by_index = (
        data is not None
        and isinstance(loader, data.DataLoader)
        and not isinstance(loader.dataset, data.IterableDataset)
        and loader.num_workers == 0
    )
    # _next_index is DataLoader's own way to its sampler; a version without it reads the batches instead.
    next_index = getattr(iterator, "_next_index", None) if by_index else None
    return next_index or (lambda: next(iterator))


def _skip(advance: Callable[[], Any], count: int) -> None:
    for done in range(count):
        try:
            advance()
        except StopIteration:
            raise CheckpointError(
                f"the checkpoint stands after batch {count} of an epoch, but the loader ended after {done}: its data "
                "changed. Use what it was saved with, or give another folder to begin anew"
            ) from None
