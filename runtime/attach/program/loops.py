"""Track the program's running `for` loops, and fast-forward them to the position of a checkpoint.

A program's position is the chain of its loops, from the outermost to the one over the training batches. Each loop is
identified by its call stack and its site. An outer loop is fast-forwarded by skipping items. This is allowed only for
types whose items can be skipped without side effects: ranges, lists and similar ones.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ...checkpoint.errors import CheckpointError
from .frame_inspection import Code, site_of

compiler: Any = None
"""torch.compiler once torch is imported; None before."""
_PURE = {"range", "list", "tuple", "str", "bytes", "dict", "dict_keys", "dict_values", "dict_items", "count", "product"}
_PURE |= {
    "range_iterator",
    "list_iterator",
    "tuple_iterator",
    "list_reverseiterator",
    "ndarray",
    "deque",
    "OrderedDict",
}
_PURE |= {"dict_keyiterator", "dict_valueiterator", "dict_itemiterator", "str_ascii_iterator", "str_iterator"}
_PURE |= {"combinations", "permutations", "repeat"}
"""Names of types whose items can be skipped without side effects."""
Place = list[str]


class UnknownIterableError(Exception):
    """A loop iterates over something that cannot be fast-forwarded."""


class Loop:
    """A running loop: its site, the id() of its frame, and the iterable it goes through."""

    __slots__ = ("__weakref__", "asking", "checked", "count", "current_item", "frame", "site", "source")

    def __init__(self, site: str, frame: int, source: Any) -> None:
        self.site, self.frame, self.source = site, frame, source
        self.count = 0
        """Number of items passed to the program."""
        self.asking = False
        """True while the next item is being fetched."""
        self.current_item: Any = None
        """The current item if it is an int; None otherwise."""
        self.checked = False
        """True once it was checked whether a resume can return to a position in this loop."""


class Loops:
    """All running loops of a program.

    started  called with each new loop; returns the iterable to use instead of the loop's source
    """

    def __init__(self, code: Code, started: Callable[[Loop], Any]) -> None:
        self._code, self._started = code, started
        self.live: list[Loop] = []
        self.on = True
        self._process, self._thread = os.getpid(), threading.get_ident()

    def is_main(self) -> bool:
        """Return whether the caller runs in the process and thread of the training, not in a data loader's worker."""
        return os.getpid() == self._process and threading.get_ident() == self._thread

    def hook(self, source: Any, site: str) -> Any:
        """Return the iterable that replaces the source of a `for` loop in the program. Called by rewritten loops."""
        if compiler is not None and compiler.is_dynamo_compiling():
            return source  # torch.compile must trace the original loop
        if not self.on or not self.is_main():
            return source
        return self._run(Loop(site, id(sys._getframe(1)), source))

    def _run(self, loop: Loop) -> Iterator[Any]:
        self.live.append(loop)
        try:
            loop.asking = True
            iterator = iter(self._started(loop))
            while True:
                loop.asking = True
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                finally:
                    loop.asking = False
                loop.count += 1
                loop.current_item = item if type(item) is int else None
                yield item
        finally:
            loop.asking = False
            self.live.remove(loop)

    def chain(self) -> list[tuple[Loop, Place]]:
        """Return the loops of the running functions, outermost first, each with its call stack and site."""
        paths: dict[int, list[str]] = {}
        calls: list[str] = []
        for frame in reversed(self._code.frames()):
            paths[id(frame)] = list(calls)
            calls.append(site_of(frame))
        return [(loop, [*paths[loop.frame], loop.site]) for loop in self.live if loop.frame in paths]


def check_pure(source: Any) -> None:
    """Raise UnknownIterableError unless items of an iterable can be skipped without side effects."""
    for part in _parts(source):
        if type(part).__name__ not in _PURE:
            raise UnknownIterableError(_kind(part))


def _parts(source: Any) -> Iterator[Any]:
    if isinstance(source, enumerate | zip | reversed):
        inner = source.__reduce__()[1]
        for part in inner[:1] if isinstance(source, enumerate) else inner:
            yield from _parts(part)
    elif (bar := _bar(source)) is not None:
        yield from _parts(bar.iterable)
    else:
        yield source


def _bar(source: Any) -> Any:
    """Return the tqdm progress bar that a loop's source is or iterates over; None for another iterable."""
    frame = getattr(source, "gi_frame", None)
    if getattr(source, "__qualname__", "") == "tqdm.__iter__" and frame is not None:
        source = frame.f_locals.get("self")
    return source if any(kind.__module__.startswith("tqdm.") for kind in type(source).__mro__) else None


def skip_items(loop: Loop, count: int, first: int | None) -> Any:
    """Return an iterable over a loop's items after the first `count`.

    first  the loop's next item in the checkpoint, if it is an int; a loop over a range then starts at this number

    Raises UnknownIterableError if items cannot be skipped without side effects, CheckpointError if there are too few.
    """
    check_pure(loop.source)
    loop.count = count
    if type(loop.source) is range and first is not None:  # a program that resumes by itself may start at another number
        return range(first, loop.source.stop, loop.source.step)
    if (bar := _bar(loop.source)) is not None:
        bar.iterable = _without(bar.iterable, count)
        _advance(bar, count)
        return loop.source
    return _without(loop.source, count)


def _without(source: Any, count: int) -> Iterator[Any]:
    iterator: Iterator[Any] = iter(source)
    for _ in range(count):
        if next(iterator, iterator) is iterator:
            raise CheckpointError(
                "a loop of the program has fewer items than when it was saved: use the program and arguments that it "
                "was saved with, or use another folder to start over"
            )
    return iterator


def _advance(bar: Any, count: int) -> None:
    if hasattr(bar, "n"):
        bar.n = bar.last_print_n = count


# The loop over the training batches


def check_batches(source: Any, is_loader: Callable[[Any], bool]) -> None:
    """Raise UnknownIterableError unless a loop's source is or wraps exactly one loader, and can resume at any batch."""
    if is_loader(source):
        return
    name = type(source).__name__
    if isinstance(source, enumerate):
        check_batches(source.__reduce__()[1][0], is_loader)
    elif (bar := _bar(source)) is not None:
        check_batches(bar.iterable, is_loader)
    elif name == "islice":
        check_batches(_islice(source)[0], is_loader)
    elif isinstance(source, zip):
        parts = source.__reduce__()[1]
        loaders = [part for part in parts if not all(type(one).__name__ in _PURE for one in _parts(part))]
        if len(loaders) != 1:
            raise UnknownIterableError("zip() of several loaders or iterators")
        check_batches(loaders[0], is_loader)
    else:
        raise UnknownIterableError(_kind(source))


def continue_batches(source: Any, count: int, is_loader: Callable[[Any], bool]) -> Any:
    """Return a training loop's source with its wrappers (enumerate, zip, tqdm, islice) advanced by `count` batches.

    The loader inside yields only the batches that are left.
    """
    if isinstance(source, enumerate):
        reduced: Any = source.__reduce__()
        inner, start = reduced[1]
        return enumerate(continue_batches(inner, count, is_loader), start + count)
    if is_loader(source):
        return source
    if (bar := _bar(source)) is not None:
        bar.iterable = continue_batches(bar.iterable, count, is_loader)
        _advance(bar, count)
        return source
    if isinstance(source, zip):
        parts = source.__reduce__()[1]
        return zip(*(_continue_part(part, count, is_loader) for part in parts), strict=False)
    import itertools

    inner, left = _islice(source)
    return itertools.islice(continue_batches(inner, count, is_loader), left - count if left is not None else None)


def _continue_part(part: Any, count: int, is_loader: Callable[[Any], bool]) -> Any:
    if all(type(one).__name__ in _PURE for one in _parts(part)):
        return _without(part, count)
    return continue_batches(part, count, is_loader)


def _islice(source: Any) -> tuple[Any, int | None]:
    """Return the iterable of an islice and the number of items left in the islice; None: no limit.

    Raises UnknownIterableError if the islice has a start or a step.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated since Python 3.12, removed in 3.14
        try:
            _, (inner, following, stop, step), done = source.__reduce__()
        except (TypeError, ValueError):
            raise UnknownIterableError("an islice") from None
    if step != 1 or following != done:
        raise UnknownIterableError("an islice with a start or a step")
    return inner, None if stop is None else stop - following


def _kind(source: Any) -> str:
    kind = type(source)
    if kind.__name__ == "generator":
        return f"a generator ({source.__qualname__})"
    if kind.__name__ in {"set", "frozenset"}:
        return "a set, whose order is another in each process: use sorted()"
    return f"a {kind.__qualname__}"
