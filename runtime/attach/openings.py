"""Every time that the program begins to go through a DataLoader, and how far it has come there.

An opening is known by its site (the line of the program that loops) and its number there. From this the place in an
epoch loop can be found again in a program that runs anew from its top: what was opened at a training site before is
gone through with one batch each, so that the loop's variables exist; the opening that was under way gets its rest.
"""

from __future__ import annotations

import builtins
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ..checkpoint import random_state
from ..checkpoint.data_position import DataPosition, length
from .frames import Code, site

if TYPE_CHECKING:
    from .session import Session

Mode = Literal["live", "skip", "resume"]
_END = object()


class Opening:
    """One pass through a loader, as the program sees it: an iterator over batches."""

    def __init__(self, session: Session, loader: Any, place: str, number: int, mode: Mode) -> None:  # noqa: ANN401
        self.site, self.number, self.mode = place, number, mode
        self.loader = loader
        self.position = DataPosition()
        self.given = 0
        """Batches that this process has given."""
        self.advanced = False
        """It has given one since the last step boundary."""
        self.exhausted = False
        self.trained = False
        """An optimizer has made a step in it."""
        self.at_epoch: dict[str, Any] = {}
        """The random state when it was opened."""
        self._session = session
        self._source: Iterator[Any] | None = None
        if mode == "live":
            self._source = self.open_epoch()

    def open_epoch(self) -> Iterator[Any]:
        """Begin, at the position."""
        self.at_epoch = self.at_epoch or random_state.capture(random_state.generators_of(self.loader))
        # DataPosition tells samplers the epoch: here that is the program's business, so they hear what they know.
        self.position.epoch = _epoch_of(self.loader, self.number)
        with self._session.own_iteration():
            return self.position.open_epoch(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:  # noqa: ANN401
        if self.mode == "resume":
            self._session.resume(self)
            self.mode = "live"
        elif self.mode == "skip":
            return self._only_batch()
        else:
            self._session.before_batch(self)
        batch = next(self._source, _END) if self._source is not None else _END
        if batch is _END:
            self.exhausted = True
            raise StopIteration
        self.given += 1
        self.advanced = True
        self.position.batch += 1
        return batch

    def go_on_with(self, source: Iterator[Any]) -> None:
        self._source = source

    @property
    def at_end(self) -> bool:
        """It is known that there is no further batch."""
        batches = length(self.loader)
        return batches is not None and self.position.batch >= batches

    def _only_batch(self) -> Any:  # noqa: ANN401
        if self.given:
            self.exhausted = True
            raise StopIteration
        self.given += 1
        return self._session.sample(self)


class Openings:
    """All of a program. Wraps DataLoader.__iter__."""

    def __init__(self, session: Session, code: Code) -> None:
        self._session, self._code = session, code
        self.counts: Counter[str] = Counter()
        """Openings by site."""
        self._living: list[weakref.ref[Opening]] = []
        self._own = 0
        self._samples: dict[str, Any] = {}
        self._process, self._thread = os.getpid(), threading.get_ident()

    def watch(self, loader_class: Any) -> None:  # noqa: ANN401 - torch.utils.data.DataLoader
        begin = loader_class.__iter__

        def __iter__(loader: Any) -> Iterator[Any]:  # noqa: ANN401, N807
            opening = None if self._own or not self._is_main() else self._open(loader)
            iterator: Iterator[Any] = begin(loader) if opening is None else opening
            return iterator

        loader_class.__iter__ = __iter__

    def _is_main(self) -> bool:
        """Not in a worker process, nor in a thread beside the training."""
        return os.getpid() == self._process and threading.get_ident() == self._thread

    def _open(self, loader: Any) -> Opening | None:  # noqa: ANN401
        frames = self._code.frames()
        if not frames or not self._session.wants_openings():
            return None
        place = site(frames[0])
        number = self.counts[place]
        mode = self._session.mode_of(place, number)  # ends the program if there is nothing left to do
        self.counts[place] += 1
        opening = Opening(self._session, loader, place, number, mode)
        self._living = [ref for ref in self._living if (one := ref()) is not None and not one.exhausted]
        self._living.append(weakref.ref(opening))
        return opening

    def living(self) -> list[Opening]:
        """Those that may still give a batch, oldest first."""
        return [one for ref in self._living if (one := ref()) is not None and not one.exhausted]

    def sample(self, opening: Opening) -> Any:  # noqa: ANN401
        """A batch to go through a loop with whose epochs are done; read once per site."""
        if opening.site not in self._samples:
            self.enter_own()
            try:
                self._samples[opening.site] = next(iter(opening.loader), _END)
            finally:
                self.leave_own()
        if self._samples[opening.site] is _END:
            raise StopIteration
        return self._samples[opening.site]

    def forget_samples(self) -> None:
        self._samples.clear()

    def enter_own(self) -> None:
        """What is iterated from now on is iterated by us."""
        self._own += 1

    def leave_own(self) -> None:
        self._own -= 1


def _epoch_of(loader: Any, default: int) -> int:  # noqa: ANN401
    """What the loader's sampler takes for the epoch, if it does."""
    batches = getattr(loader, "batch_sampler", None)
    for owner in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if callable(getattr(owner, "set_epoch", None)) and isinstance(epoch := getattr(owner, "epoch", None), int):
            return epoch
    return default


class Counting:
    """`enumerate()` for a program that is about to resume: it counts the batches that are left out, too.

    Installed only until then.
    """

    def __init__(self) -> None:
        self._original = builtins.enumerate
        self.left_out = 0
        """Batches of the opening that was under way; 0 until it goes on."""

    def install(self) -> None:
        counting = self

        class enumerate(self._original):  # type: ignore[name-defined, misc]  # noqa: A001, N801
            """Built in, but for the batches that a resumed program leaves out."""

            given: bool
            more: int

            def __new__(cls, iterable: Any, start: int = 0) -> Any:  # noqa: ANN401
                self = super().__new__(cls, iterable, start)
                self.given, self.more = False, 0
                return self

            def __next__(self) -> tuple[int, Any]:
                before = counting.left_out
                index, item = super().__next__()
                if not self.given:  # its first, during which the opening below it has gone on
                    self.given, self.more = True, counting.left_out - before
                return index + self.more, item

        builtins.enumerate = enumerate  # type: ignore[misc]

    def uninstall(self) -> None:
        with suppress(AttributeError):
            builtins.enumerate = self._original  # type: ignore[misc]
