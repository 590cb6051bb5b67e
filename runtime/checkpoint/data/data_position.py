"""Save and restore the position of a training in its data.

A position is the epoch, the part of it that all ranks together have done, and the random state at the epoch's start,
from which the loader draws the same order again. A position counts samples of the epoch's global order, so it does not
depend on the number of workers, the number of ranks or the batch size. It counts batches if only the loader knows which
samples are in a batch (a custom batch sampler, an iterable dataset, a loader that is not a DataLoader).

How the position is restored:
    DataLoader, map-style dataset   the sampler skips the indices that are done; no data is read
    loader with state_dict()        the loader loads its own state, which is saved with the position
    all others, or replay=True      the batches that are done are read again and dropped; only this repeats the random
                                    draws of the workers and the dataset

Exact: shuffling, drop_last, samplers and datasets with their own generators (generators.py), DistributedSampler
(set_epoch is called), random augmentation without workers, with SeededDataset (seeded.py), or with replay=True and
workers that are not persistent. Not exact: other random augmentation inside of workers, and an order drawn from the
global generators during an epoch. If a sampler decides the order, a hash of it (order.py) is compared with that of the
restored order; a different order raises CheckpointError.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ..errors import CheckpointError, logger
from . import loaders, random_state
from .generators import Generators
from .loaders import Split, length
from .order import Order

__all__ = ["DataPosition", "length"]


class DataPosition:
    """Position of a training loop in a loader (any object that can be iterated once per epoch).

    replay   restore the position by reading and dropping batches, to repeat random augmentation inside of workers
    objects  objects with a state, by name: samplers of the loader among them are restored to their state at the epoch's
             start before the order is drawn again
    """

    def __init__(self, *, replay: bool = False, objects: Mapping[str, Any] | None = None) -> None:
        self.epoch = 0
        self.batch = 0
        """Number of batches done in this epoch, as the loader splits it now."""
        self._replay = replay
        self._objects = objects or {}
        self._random: dict[str, Any] | None = None
        """Random state at the epoch's start."""
        self._samplers: dict[str, Any] = {}
        """States, at the epoch's start, of the samplers among the objects, by name."""
        self._order: Order | None = None
        """Hash of this epoch's indices; None if they cannot be observed."""
        self._drew_seed = True
        self._split: Split | None = None
        self._start = (0, 0)
        """Position at which this process entered the epoch: number of batches done, and of this rank's samples (or
        batches) done."""
        self._loader: Any = None
        """Current loader if it has a state_dict(), which is then saved; else None."""
        self._restored: dict[str, Any] | None = None
        """State from which the next open_epoch() continues."""

    def state_dict(self) -> dict[str, Any]:
        if self._restored is not None:  # the epoch has not been opened again yet
            return self._restored
        middle = self.batch > 0
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "done": self._done(),
            "split": asdict(self._split) if middle and self._split else None,
            "random": self._random if middle else None,
            "samplers": self._samplers if middle else {},
            "order": self._order.after(self.batch) if middle and self._order else None,
            "drew_seed": self._drew_seed,
            # Between two epochs, a loader's own state is wrong (a known defect), and it is not needed.
            "loader": self._loader.state_dict() if middle and self._loader is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._restored = state if self.batch else None

    def next_epoch(self) -> None:
        self.epoch, self.batch, self._start = self.epoch + 1, 0, (0, 0)
        self._random = self._split = self._loader = self._restored = self._order = None

    def open_epoch(self, loader: Any) -> Iterator[Any]:
        """Return an iterator over the rest of this epoch.

        Restoring the position in mid-epoch leaves the random state unchanged, because the training made these draws
        before the save. Raises CheckpointError if the data is not that of the checkpoint.
        """
        with loaders.signal_safe_workers(loader):
            return self._open(loader)

    def _open(self, loader: Any) -> Iterator[Any]:
        state, self._restored = self._restored, None
        loaders.set_epoch(loader, self.epoch)
        generators = Generators(loader)
        self._split = Split.of(loader)
        if self.epoch and loaders.has_persistent_workers(loader) and loaders.draws_seed(loader):
            # Without the interruption, workers would have run since the first epoch: start them without counting draws.
            current = random_state.capture(generators)
            self._begin(loader)
            random_state.restore(current, generators)
        self._loader = loader if loaders.has_own_state(loader) else None
        if state is not None:
            return self._reopen(loader, state, generators)
        self._random, self._samplers = random_state.capture(generators), self._states(loader)
        self._drew_seed = loaders.draws_seed(loader)
        return self._begin(loader)

    def _begin(self, loader: Any) -> Iterator[Any]:
        """Return an iterator over a whole epoch, which observes the order of its indices."""
        self._order = None
        with loaders.followed(loader, lambda indices: self._new_order().follow(indices)):
            iterator: Iterator[Any] = iter(loader)
        return iterator

    def _new_order(self) -> Order:
        self._order = Order(lambda: self.batch, grouped=self._split is None or self._split.batch is None)
        return self._order

    def _states(self, loader: Any) -> dict[str, Any]:
        """Return the states of those of the training's objects that are samplers of the loader, by name."""
        found = loaders.drawn_from(loader)
        return {
            name: copy.deepcopy(one.state_dict())
            for name, one in self._objects.items()
            if any(one is other for other in found)
        }

    def _restore_samplers(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            if name in self._objects:
                self._objects[name].load_state_dict(copy.deepcopy(state))

    def _reopen(self, loader: Any, state: dict[str, Any], generators: Generators) -> Iterator[Any]:
        before, now = Split(**state["split"]), Split.of(loader)
        self._random, self._drew_seed = state["random"], state["drew_seed"]
        self._samplers = state.get("samplers", {})
        if before.length is not None and state["batch"] >= before.length:
            self.batch = now.length if now.length is not None else state["batch"]
            return iter(())  # the whole epoch is done, even if it is divided otherwise now
        done = _convert(state, before, now)
        current, states = random_state.capture(generators), self._states(loader)
        self._restore_samplers(self._samplers)
        random_state.restore(self._random or current, generators)
        try:
            if self._loader is not None and state["loader"] is not None:
                return self._reopen_itself(loader, state, before, now)
            return self._reopen_at(loader, done, state, before, now)
        finally:
            self._restore_samplers(states)
            random_state.restore(current, generators)

    def _reopen_at(self, loader: Any, done: int, state: dict[str, Any], before: Split, now: Split) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch; skip indices in the sampler, or read up to the position.

        done  number of samples (or batches) of this rank that are done

        Raises CheckpointError if the order differs.
        """
        by_sampler = now.by_index and not self._replay
        if not by_sampler:
            done = self._replayable(done, before, now)
        left = loaders.batches_left(loader, done)
        self.batch = done if left is None or now.length is None else now.length - left
        self._start = (self.batch, done)
        if by_sampler:
            order = self._new_order()
            iterator = loaders.open_at(loader, done, drew_seed=self._drew_seed, order=order, batch=self.batch)
        else:
            iterator = self._begin(loader)
            _drop(iterator, done if now.batch is None else done // now.batch)
        if before.shards == now.shards and done == state["done"]:
            self._check_order(state.get("order"), done, now)
        return iterator

    def _check_order(self, saved: int | None, done: int, split: Split) -> None:
        drawn = self._order.after(self.batch) if self._order else None
        if None not in (saved, drawn) and saved != drawn:
            raise CheckpointError(
                f"the sampler does not draw the same order again: the checkpoint stands after {done} {split.unit} of "
                f"epoch {self.epoch}, and these are others now. Its data changed, or its order depends on something "
                "that is not saved, such as the time, the model, or a generator that cannot be found: keep the "
                "generator in an attribute of the sampler, or shuffle by a seed and the epoch. Then start over with "
                "another folder"
            )

    def _reopen_itself(self, loader: Any, state: dict[str, Any], before: Split, now: Split) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch, from a loader that restores its own state.

        Raises CheckpointError if the saved state does not fit the loader.
        """
        if before.shards != now.shards or before.workers != now.workers:
            raise CheckpointError(
                f"the loader's own state is that of one of {before.shards} shards with {before.workers} workers, now "
                f"it is one of {now.shards} with {now.workers}: use as many, or a plain DataLoader"
            )
        try:
            loader.load_state_dict(state["loader"])
        except Exception as error:
            raise CheckpointError(f"the loader does not take back its own state: {error!r:.300}") from error
        self._start = (self.batch, state["done"])
        own: Iterator[Any] = iter(loader)
        return own

    def _replayable(self, done: int, before: Split, now: Split) -> int:
        """Return `done` rounded down to whole batches; log a warning if the replay cannot repeat the saved order."""
        if now.batch and done % now.batch:
            logger().warning(
                f"the epoch goes on at sample {done - done % now.batch} of this rank instead of {done}: it is replayed "
                f"in batches of {now.batch}"
            )
            done -= done % now.batch
        if before.workers != now.workers and not now.by_index:
            logger().warning(
                f"the loader had {before.workers} workers when it was saved, now it has {now.workers}: the order of an "
                "iterable dataset depends on it, so some samples of this epoch may come twice and some not at all"
            )
        return done

    def _done(self) -> int:
        """Return the number of samples (or batches) of this rank done in this epoch."""
        batch, done = self._start
        size = self._split.batch if self._split and self._split.batch else 1
        return done + (self.batch - batch) * size


def _convert(state: dict[str, Any], before: Split, now: Split) -> int:
    """Return the number of samples (or batches) that this rank has done, for the current number of ranks.

    Raises CheckpointError if the data or its batching changed.
    """
    same_batches = before.shards != now.shards or before.length == now.length
    if before.unit != now.unit or before.data != now.data or (now.batch is None and not same_batches):
        raise CheckpointError(
            f"the checkpoint stands at batch {state['batch']} of {before.length} of an epoch, but the loader now "
            f"has {now.length}: its data or the way it is batched changed. Use what it was saved with, or give "
            "another folder to start over"
        )
    done, over = divmod(state["done"] * before.shards, now.shards)
    if over:
        logger().warning(
            f"{before.shards} ranks had done {state['done'] * before.shards} {now.unit} of this epoch, which "
            f"{now.shards} ranks cannot divide evenly: the last {over} come again"
        )
    return int(done)


def _drop(iterator: Iterator[Any], count: int) -> None:
    for done in range(count):
        try:
            next(iterator)
        except StopIteration:
            raise CheckpointError(
                f"the checkpoint stands after batch {count} of an epoch, but the loader ended after {done}: its data "
                "changed. Use what it was saved with, or use another folder to start over"
            ) from None
