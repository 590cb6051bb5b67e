"""Position in a DataLoader that a framework iterates.

Frameworks prefetch: when a step is done, the next batches have been read already, and the dataset has made the random
draws for them. So the random state before each prefetched batch is saved, and a resumed run reads the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..checkpoint.data import random_state
from ..checkpoint.data.data_position import DataPosition
from ..checkpoint.data.generators import Generators
from ..checkpoint.errors import CheckpointError

_END = object()


class LoaderPosition:
    """Layer between a framework and the DataLoader that it iterates, installed by wrap() or attach().

    `position` holds the epoch and the number of its batches that are done; the integration keeps it up to date.
    """

    def __init__(self, *, replay: bool = False) -> None:
        self.position = DataPosition(replay=replay)
        self._inner: Any = None
        self._generators = Generators(None)
        """The loader's generators; searched only once per epoch, because their state is captured at each batch."""
        self._at_epoch: dict[str, Any] = {}
        """Random state at the epoch's start."""
        self._ahead: dict[int, dict[str, Any]] = {}
        """Random state before each prefetched batch, by the batch's number in the epoch."""
        self._now: dict[str, Any] | None = None
        """Random state at the save; set from a restore until the batches prefetched at the save are read again."""

    # Checkpoint state

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self.position.state_dict(),
            "at_epoch": self._at_epoch,
            "ahead": {number: state for number, state in self._ahead.items() if number >= self.position.batch},
            "now": self._now or self._capture(),
            "world": _processes(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["world"] != (now := _processes()):
            # Position and random state could be redistributed, but the framework counts the batches of a rank.
            raise CheckpointError(
                f"the checkpoint is that of {state['world']} processes, now there are {now}: the framework's own "
                "counts of batches and steps hold for as many as it was saved with. Use as many, or give another folder"
            )
        self.position.load_state_dict(state["position"])
        self._at_epoch, self._ahead, self._now = state["at_epoch"], state["ahead"], state["now"]

    # Interface to the framework

    def wrap(self, loader: Any) -> Any:  # a DataLoader, or whatever can be iterated once per epoch
        """Return a loader that the framework must iterate instead of `loader`."""
        _make_generator(loader)
        self._inner, self._generators = loader, Generators(loader)
        return _Inner(loader, self)

    def wraps(self, loader: Any) -> bool:
        return type(loader) is _Inner

    def attach(self, loader: Any) -> None:  # accelerate's DataLoaderShard or DataLoaderDispatcher
        """Wrap the data of a loader prepared by Accelerate. Raises CheckpointError for any other loader."""
        inner = getattr(loader, "base_dataloader", None)
        if inner is None:
            raise CheckpointError(
                f"{type(loader).__qualname__}: expected a DataLoader that went through accelerator.prepare()"
            )
        loader.base_dataloader = self.wrap(inner)
        loader.iteration = self.position.epoch

    def open_epoch(self) -> Iterator[Any]:
        """Return an iterator over the batches of the epoch that are not done.

        Batches that had been prefetched at the save are read with the same random state as then.
        """
        self._generators = Generators(self._inner)
        if self._now is None or not self._at_epoch:
            self._end_of_restore()  # saved between two epochs: a finished training continues with more epochs
            self._at_epoch, self._ahead = self._capture(), {}
        else:
            self._restore(self._at_epoch)
        return self._read(self.position.open_epoch(self._inner), self.position.batch)

    def next_epoch(self) -> None:
        self.position.next_epoch()
        self._at_epoch, self._ahead = {}, {}

    def _read(self, source: Iterator[object], number: int) -> Iterator[Any]:
        again = dict(self._ahead) if self._now is not None else {}
        if not again:
            self._end_of_restore()
        while True:
            if number in again:
                self._restore(again[number])
            self._ahead[number] = again.get(number) or self._capture()
            while (oldest := next(iter(self._ahead))) < self.position.batch:  # a step may use several batches
                del self._ahead[oldest]
            batch = next(source, _END)
            if number in again and number + 1 not in again:
                self._end_of_restore()
            if batch is _END:
                return
            yield batch
            number += 1

    def _end_of_restore(self) -> None:
        if self._now is not None:
            self._restore(self._now)
            self._now = None

    def _capture(self) -> dict[str, Any]:
        return random_state.capture(self._generators)

    def _restore(self, state: dict[str, object]) -> None:
        random_state.restore(state, self._generators)


class _Inner:
    """Wrapper of a torch DataLoader that behaves like it, except that a LoaderPosition opens its epochs."""

    def __init__(self, loader: Any, place: LoaderPosition) -> None:
        self._loader, self._place = loader, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return self._place.open_epoch()

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # Accelerate's own adapters report the class of the wrapped loader, too
        kind: type = type(self._loader)
        return kind


def _processes() -> int:
    import torch

    distributed = torch.distributed
    return int(distributed.get_world_size()) if distributed.is_available() and distributed.is_initialized() else 1


def _make_generator(loader: Any) -> None:
    """Create the generator of Accelerate's random sampler, which the sampler would create on first use."""
    batches = getattr(loader, "batch_sampler", None)
    batches = getattr(batches, "batch_sampler", batches)  # with several processes, the outer one shards the inner one
    sampler: Any = getattr(batches, "sampler", None)
    if getattr(sampler, "generator", "") is None and hasattr(sampler, "initial_seed"):
        import torch

        sampler.generator = torch.Generator()
        sampler.generator.manual_seed(sampler.initial_seed)
