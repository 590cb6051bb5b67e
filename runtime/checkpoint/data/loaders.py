"""Inspect loaders: how they split an epoch into batches and among ranks; start an iteration in mid-epoch.

A loader is any object that can be iterated once per epoch. For a torch DataLoader over a map-style dataset, the sampler
alone decides the order: the samples that are done are skipped in the sampler without reading data, for any number of
workers. Any other loader must be read up to the position.
"""

from __future__ import annotations

import copy
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError
from .order import Order

_NONE = object()
_SHELTERED = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that a loader's workers block."""


@dataclass(frozen=True, slots=True)
class Split:
    """Division of an epoch into batches, and among ranks."""

    length: int | None
    """Number of batches of this rank; None if the loader has no length."""
    batch: int | None
    """Samples per batch, except the last; None if only the loader knows: then the position is counted in batches."""
    shards: int
    """Number of ranks that share the epoch's data, each taking every n-th sample or batch; 1: each reads all of it."""
    data: int | None
    """Number of samples of the whole dataset, if it has a length."""
    workers: int
    by_index: bool
    """True if the sampler alone decides the order, not the workers or the dataset."""

    @classmethod
    def of(cls, loader: Any) -> Split:  # any iterable
        base = _base(loader)
        indexed = _is_indexed(base)
        return cls(
            length=length(loader),
            batch=_batch_size(base) if indexed else None,
            shards=next((count for part in _parts(base) if (count := _shards(part)) > 1), 1),
            data=length(getattr(base, "dataset", None)) if indexed else None,
            workers=getattr(base, "num_workers", 0),
            by_index=indexed,
        )

    @property
    def unit(self) -> str:
        return "batches" if self.batch is None else "samples"


def length(loader: Any) -> int | None:
    """Return the number of batches per epoch; None if the loader has no length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # an iterable dataset has no length
        return None


def has_own_state(loader: Any) -> bool:
    """Return whether the loader saves its own position, as torchdata's StatefulDataLoader does."""
    own = _base(loader)  # Accelerate's wrappers have the methods even if the wrapped loader lacks them
    return callable(getattr(own, "state_dict", None)) and callable(getattr(own, "load_state_dict", None))


def set_epoch(loader: Any, epoch: int) -> None:
    """Call set_epoch() where it exists: samplers like DistributedSampler shuffle by the epoch's number."""
    for part in (loader, *_parts(_base(loader)), getattr(loader, "dataset", None)):
        if callable(method := getattr(part, "set_epoch", None)):
            method(epoch)


@contextmanager
def signal_safe_workers(loader: Any) -> Iterator[None]:
    """Context manager: make workers ignore a SIGTERM or SIGUSR1 that all processes get, as from torchrun and Slurm.

    Otherwise such a signal would kill the workers, and torch would raise an error in the training before it saves.
    Applies to workers that are started in the context or later.
    """
    base = _base(loader)
    init: Any = getattr(base, "worker_init_fn", _NONE)
    if not getattr(base, "num_workers", 0) or init is _NONE:
        yield
        return
    if not isinstance(init, _SignalSafeInit):
        base.worker_init_fn = _SignalSafeInit(init)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SHELTERED)  # inherited by a worker's threads from its start
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class _SignalSafeInit:
    """Initialisation of a worker; picklable, for workers that are not forked."""

    init: Callable[[int], object] | None

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SHELTERED)
        threading.Thread(target=_exit_on_parent_sigterm, daemon=True).start()
        if self.init is not None:
            self.init(worker)


def _exit_on_parent_sigterm() -> None:
    """Exit on a SIGTERM from the parent process: the loader sends it to a worker that does not exit when asked to."""
    while True:
        received = signal.sigwaitinfo(_SHELTERED)
        if received.si_signo == signal.SIGTERM and received.si_pid == os.getppid():
            os._exit(os.EX_OK)


def draws_seed(loader: Any) -> bool:
    """Return whether opening an epoch draws a seed for the workers: not if persistent workers are already running."""
    base = _base(loader)
    return not (has_persistent_workers(loader) and getattr(base, "_iterator", None) is not None)


def has_persistent_workers(loader: Any) -> bool:
    base = _base(loader)
    return bool(getattr(base, "persistent_workers", False)) and getattr(base, "num_workers", 0) > 0


def drawn_from(loader: Any) -> list[Any]:
    """Return the objects that decide the order of an epoch: the samplers, and the dataset if no sampler indexes it."""
    base = _base(loader)
    return [*_parts(base), *([] if _is_indexed(base) else [getattr(base, "dataset", None)])]


def can_follow(loader: Any) -> bool:
    """Return whether the sampler's indices can be observed during an iteration of the loader."""
    return _base(loader) is loader and _is_indexed(loader)


@contextmanager
def followed(loader: Any, follow: Callable[[Iterator[Any]], Iterator[Any]]) -> Iterator[None]:
    """Pass the sampler's output through `follow`, for iterators of the loader that are made in the context."""
    if not can_follow(loader):
        yield
        return
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = loader.__dict__[name]
    loader.__dict__[name] = _Followed(sampler, follow)
    try:
        yield
    finally:
        loader.__dict__[name] = sampler


class _Followed:
    """Sampler whose indices pass through `follow`."""

    def __init__(self, sampler: Any, follow: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._sampler, self._follow = sampler, follow

    def __iter__(self) -> Iterator[Any]:
        return self._follow(iter(self._sampler))

    def __len__(self) -> int:
        return len(self._sampler)


def open_at(loader: Any, done: int, *, drew_seed: bool, order: Order, batch: int) -> Iterator[Any]:
    """Return an iterator over the rest of an epoch, without this rank's first `done` samples (or batches, see Split).

    The generators must be in their state at the epoch's start.

    drew_seed  result of draws_seed() at the epoch's start
    order      hash to which all indices of the epoch are added, also the skipped ones
    batch      number of batches that are skipped
    """
    import torch

    base = _base(loader)
    if drew_seed:
        torch.empty((), dtype=torch.int64).random_(generator=base.generator)
    rest = copy.copy(base)
    # DataLoader forbids setting these attributes once it is initialised; this copy is new, and is iterated once.
    if base.batch_sampler is None:
        left = _skip(iter(base.sampler), done, order.add)
    elif _batch_size(base) is None:
        left = _skip(iter(base.batch_sampler), done, order.add)
    else:
        batches = base.batch_sampler
        indices = _skip(iter(batches.sampler), done, lambda index: order.add([index]))
        left = _batched(indices, batches.batch_size, drop_last=batches.drop_last)
    rest.__dict__["sampler" if base.batch_sampler is None else "batch_sampler"] = _Rest(order.follow(left, batch))
    rest.__dict__.update(_iterator=None, persistent_workers=False)
    # Iterate now: starting an iteration draws a seed, which must not count as a draw of the training.
    return iter(rest) if base is loader else _through(loader, _Begun(rest))


def batches_left(loader: Any, done: int) -> int | None:
    """Return the number of batches after `done` samples (or batches) of this rank; None if the loader has no length."""
    split = Split.of(loader)
    if split.batch is None or split.length is None:
        return None if split.length is None else split.length - done
    sampler = _base(loader).sampler if _base(loader).batch_sampler is None else _base(loader).batch_sampler.sampler
    left = max(0, len(sampler) - done)
    return left // split.batch if _base(loader).drop_last else -(-left // split.batch)


class _Rest:
    """Sampler in mid-epoch; can be iterated once."""

    def __init__(self, indices: Iterator[object]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices


def _base(loader: Any) -> Any:
    """Return the DataLoader inside of a wrapper such as Accelerate's."""
    return vars(loader).get("base_dataloader", loader) if hasattr(loader, "__dict__") else loader


def _parts(base: Any) -> list[Any]:
    """Return the samplers of a loader, including nested ones."""
    batches = getattr(base, "batch_sampler", None)
    inner = getattr(batches, "batch_sampler", None)
    found = (
        getattr(base, "sampler", None),
        batches,
        inner,
        *(getattr(one, "sampler", None) for one in (batches, inner)),
    )
    return [part for part in found if part is not None]


def _shards(sampler: Any) -> int:
    """Return the number of ranks that share a sampler's data, for DistributedSampler, BatchSamplerShard and similar."""
    found = getattr(sampler, "num_replicas", None) or getattr(sampler, "num_processes", None)
    return found if isinstance(found, int) else 1


def _is_indexed(base: Any) -> bool:
    data: Any = sys.modules.get("torch.utils.data")
    return (
        data is not None
        and isinstance(base, data.DataLoader)
        and type(base).__iter__ is data.DataLoader.__iter__  # a subclass with another __iter__ may do anything
        and not isinstance(base.dataset, data.IterableDataset)
    )


def _batch_size(base: Any) -> int | None:
    if base.batch_sampler is None:
        return 1
    sampler: Any = sys.modules["torch.utils.data"].BatchSampler
    size: int | None = base.batch_sampler.batch_size if type(base.batch_sampler) is sampler else None
    return size


def _skip(indices: Iterator[object], count: int, see: Callable[[object], None]) -> Iterator[Any]:
    """Skip `count` indices, pass each to `see`, and return the iterator.

    They are skipped now, not lazily, because the sampler draws its order when it is first read. Raises CheckpointError
    if there are fewer.
    """
    skipped = 0
    for index in itertools.islice(indices, count):
        see(index)
        skipped += 1
    if skipped < count:
        raise CheckpointError(
            f"the checkpoint stands after {count} samples or batches of an epoch, but the sampler ended after "
            f"{skipped}: its data changed. Use what it was saved with, or use another folder to start over"
        )
    return indices


def _batched(indices: Iterator[object], size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(indices, size)):
        if len(batch) == size or not drop_last:
            yield batch


class _Begun:
    """DataLoader whose iteration has already started."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self._iterator

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _through(wrapper: Any, rest: _Begun) -> Iterator[Any]:
    """Yield the batches of a wrapper (see _base) that iterates `rest` in place of its DataLoader."""
    own = wrapper.base_dataloader
    wrapper.base_dataloader = rest
    try:
        yield from wrapper
    finally:
        wrapper.base_dataloader = own
