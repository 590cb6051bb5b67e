"""Every pass of the program through a DataLoader, and how far it has come there. Wraps DataLoader.__iter__."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ...checkpoint.data import random_state
from ...checkpoint.data.data_position import DataPosition, length
from .sampler_state import Drawn

if TYPE_CHECKING:
    from ..program.frame_inspection import Code
    from ..program.loops import Loop

_END = object()


class Observer(Protocol):
    """The session that a pass reports to."""

    code: Code

    @property
    def has_checkpoint(self) -> bool:
        """Return whether a checkpoint is waiting to be put back."""

    def wants_passes(self) -> bool:
        """Return whether passes that begin now are watched."""

    def pass_opens(self) -> None:
        """Note that a pass begins."""

    def before_batch(self, one: Pass) -> None:
        """Note that a pass is about to give a batch."""


class Pass:
    """One pass through a loader, as the program sees it: an iterator over batches."""

    def __init__(self, session: Observer, passes: Passes, loader: Any, number: int) -> None:
        self.loader = loader
        # Batches are read again rather than left out where workers may draw random numbers in them.
        self.position = DataPosition(replay=getattr(loader, "num_workers", 0) > 0)
        self.number = number
        """Passes through this loader before."""
        self.given = 0
        """Batches that this process has given."""
        self.advanced = False
        """It has given one since the last step boundary."""
        self.exhausted = False
        self.trained = False
        """An optimizer has made a step in it."""
        self.loop: weakref.ref[Loop] | None = None
        """The loop that goes through it."""
        self.at_start: dict[str, Any] = {}
        """The random state when it was begun."""
        self.drawn: Drawn | None = None
        """Its samplers when it was begun."""
        self._session, self._passes = session, passes
        self._source: Iterator[Any] | None = None
        if not session.has_checkpoint:  # else it may be the one to be continued
            self.open()

    def open(self) -> None:
        """Begin, at the position."""
        self._session.pass_opens()
        self.drawn = Drawn(self._session.code, self.loader)
        self.at_start = self.at_start or random_state.capture(random_state.generators_of(self.loader))
        # DataPosition sets the epoch of samplers: here that is the program's business, so they get what they have.
        self.position.epoch = _epoch_of(self.loader, self.number)
        with self._passes.own():
            self._source = self.position.open_epoch(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        self._session.before_batch(self)
        if self._source is None:
            self.open()
        batch = next(self._source, _END) if self._source is not None else _END
        if batch is _END:
            self.exhausted = True
            raise StopIteration
        self.given += 1
        self.advanced = True
        self.position.batch += 1
        return batch

    @property
    def at_end(self) -> bool:
        """It is known that there is no further batch."""
        batches = length(self.loader)
        return batches is not None and self.position.batch >= batches

    @property
    def has_more(self) -> bool:
        """It is known that there is a further batch."""
        batches = length(self.loader)
        return batches is not None and self.position.batch < batches


class Passes:
    """All of a program."""

    def __init__(self, session: Observer) -> None:
        self._session = session
        self._living: list[weakref.ref[Pass]] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._own = 0

    def watch(self, loader_class: Any) -> None:  # torch.utils.data.DataLoader
        begin = loader_class.__iter__

        def __iter__(loader: Any) -> Iterator[Any]:  # noqa: N807
            if self._own or not self._session.wants_passes():
                iterator: Iterator[Any] = begin(loader)
                return iterator
            number = self._numbers.get(loader, 0)
            self._numbers[loader] = number + 1
            new = Pass(self._session, self, loader, number)
            self._living = [ref for ref in self._living if (one := ref()) is not None and not one.exhausted]
            self._living.append(weakref.ref(new))
            return new

        loader_class.__iter__ = __iter__

    def continues(self, one: Pass, number: int) -> None:
        """Note how often a loader had been gone through before a pass that is continued."""
        one.number = number
        self._numbers[one.loader] = number + 1

    def living(self) -> list[Pass]:
        """Return those that may still give a batch, oldest first."""
        return [one for ref in self._living if (one := ref()) is not None and not one.exhausted]

    @contextmanager
    def own(self) -> Iterator[None]:
        """Let this package itself go through a loader."""
        self._own += 1
        try:
            yield
        finally:
            self._own -= 1


def is_loader(source: Any) -> bool:
    """Return whether it is a DataLoader, or a pass through one."""
    torch: Any = sys.modules.get("torch")
    return isinstance(source, Pass) or (torch is not None and isinstance(source, torch.utils.data.DataLoader))


def why_not_exact(loader: Any) -> str | None:
    """Return why the rest of an interrupted epoch would not be the same, if so."""
    if getattr(loader, "persistent_workers", False) and _draws_random(loader.dataset):
        return (
            "its dataset draws random numbers inside of workers that live on from epoch to epoch: use "
            "persistent_workers=False"
        )
    return None


def _draws_random(dataset: Any) -> bool:
    if type(dataset).__module__.startswith("torch.") and not hasattr(dataset, "dataset"):
        return False
    before = random_state.capture()
    try:
        dataset[0]
    except Exception:  # noqa: BLE001 - any code of the program's
        return True
    after = random_state.capture()
    random_state.restore(before)
    return repr(before) != repr(after)


def _epoch_of(loader: Any, default: int) -> int:
    """Return what the loader's sampler takes for the epoch, if it does."""
    batches = getattr(loader, "batch_sampler", None)
    for owner in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if callable(getattr(owner, "set_epoch", None)) and isinstance(epoch := getattr(owner, "epoch", None), int):
            return epoch
    return default
