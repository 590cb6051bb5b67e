"""Track the program's passes through DataLoaders and their positions, by wrapping DataLoader.__iter__."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ...checkpoint.data import random_state
from ...checkpoint.data.data_position import DataPosition, length
from .sampler_state import SamplerSnapshot

if TYPE_CHECKING:
    from ..program.frame_inspection import Code
    from ..program.loops import Loop

_END = object()


class Observer(Protocol):
    """The session that a pass reports to."""

    code: Code

    @property
    def has_checkpoint(self) -> bool:
        """True while a checkpoint is loaded but not restored yet."""

    def wants_passes(self) -> bool:
        """Return whether new passes are watched."""

    def pass_opens(self) -> None:
        """Handle the start of a pass."""

    def before_batch(self, one: Pass) -> None:
        """Handle a request for the next batch of a pass, before the batch is fetched."""


class Pass:
    """One pass through a loader: the iterator over batches that the program gets."""

    def __init__(self, session: Observer, passes: Passes, loader: Any, number: int) -> None:
        self.loader = loader
        # With workers, batches are read again rather than skipped, as workers may draw random numbers for them.
        self.position = DataPosition(replay=getattr(loader, "num_workers", 0) > 0)
        self.number = number
        """Number of earlier passes through this loader."""
        self.given = 0
        """Number of batches yielded by this process."""
        self.advanced = False
        """True if the pass has yielded a batch since the last step boundary."""
        self.exhausted = False
        self.trained = False
        """True once an optimizer has made a step during the pass."""
        self.loop: weakref.ref[Loop] | None = None
        """The loop that iterates over the pass."""
        self.at_start: dict[str, Any] = {}
        """Random state at the start of the pass."""
        self.drawn: SamplerSnapshot | None = None
        """State of the loader's samplers at the start of the pass."""
        self._session, self._passes = session, passes
        self._source: Iterator[Any] | None = None
        if not session.has_checkpoint:  # else this may be the pass to resume, which is opened at its saved position
            self.open()

    def open(self) -> None:
        """Begin iterating over the loader, at the current position."""
        self._session.pass_opens()
        self.drawn = SamplerSnapshot(self._session.code, self.loader)
        self.at_start = self.at_start or random_state.capture(random_state.generators_of(self.loader))
        # open_epoch() calls set_epoch() of the samplers, which is the program's task here: keep the value they have.
        self.position.epoch = _epoch_of(self.loader, self.number)
        with self._passes.unwatched():
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
        """True if the loader's length is known and no batch is left."""
        batches = length(self.loader)
        return batches is not None and self.position.batch >= batches

    @property
    def has_more(self) -> bool:
        """True if the loader's length is known and a batch is left."""
        batches = length(self.loader)
        return batches is not None and self.position.batch < batches


class Passes:
    """All passes of a program, with the number of passes through each loader."""

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
        """Set the number of earlier passes through the loader of a resumed pass."""
        one.number = number
        self._numbers[one.loader] = number + 1

    def living(self) -> list[Pass]:
        """Return the passes that are not exhausted, oldest first."""
        return [one for ref in self._living if (one := ref()) is not None and not one.exhausted]

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Context manager: iterations over loaders in its body, which cloudgpu makes itself, are not tracked."""
        self._own += 1
        try:
            yield
        finally:
            self._own -= 1


def is_loader(source: Any) -> bool:
    """Return whether an object is a DataLoader, or a pass through one."""
    torch: Any = sys.modules.get("torch")
    return isinstance(source, Pass) or (torch is not None and isinstance(source, torch.utils.data.DataLoader))


def why_not_exact(loader: Any) -> str | None:
    """Return the reason why a resume could not reproduce the rest of an epoch; None if it can."""
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
    except Exception:  # noqa: BLE001 - code of the program
        return True
    after = random_state.capture()
    random_state.restore(before)
    return repr(before) != repr(after)


def _epoch_of(loader: Any, default: int) -> int:
    """Return the epoch that was set in the loader's sampler; `default` if the sampler has no epoch."""
    batches = getattr(loader, "batch_sampler", None)
    for owner in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if callable(getattr(owner, "set_epoch", None)) and isinstance(epoch := getattr(owner, "epoch", None), int):
            return epoch
    return default
