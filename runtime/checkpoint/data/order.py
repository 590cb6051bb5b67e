"""The order in which a sampler gives its indices, as a running hash: it shows whether the same order is drawn again."""

from __future__ import annotations

import json
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Order:
    """A hash of the indices of one epoch so far, known after each batch that is read but not done.

    done     returns how many batches of the epoch are done
    grouped  which indices make up a batch counts, too; otherwise the hash holds for any batch size
    """

    def __init__(self, done: Callable[[], int], *, grouped: bool) -> None:
        import xxhash

        self._done, self._grouped = done, grouped
        self._hash = xxhash.xxh3_64()
        self._is_known = True
        """All indices so far were of kinds that can be hashed."""
        self._after: dict[int, int | None] = {}
        """By number of batches."""

    def add(self, indices: object) -> None:  # whatever a sampler yields
        """Count a batch of indices; where batches do not count, a list of any number of them."""
        if not self._is_known:
            return
        try:
            self._hash.update(_encode(indices))
        except (TypeError, ValueError):
            self._is_known = False
        if self._grouped:
            self._hash.update(b"|")

    def follow(self, batches: Iterable[object], number: int = 0) -> Iterator[Any]:
        """Return an iterator over the batches that come after the first `number`, which counts them."""
        self._note(number)
        return self._count(batches, number)

    def after(self, batches: int) -> int | None:
        """Return the hash after a number of batches of the epoch; None if it is not known."""
        return self._after.get(batches)

    def _count(self, batches: Iterable[object], before: int) -> Iterator[Any]:
        for number, indices in enumerate(batches, before + 1):
            self.add(indices)
            self._note(number)
            yield indices

    def _note(self, number: int) -> None:
        self._after[number] = self._hash.intdigest() if self._is_known else None
        done = self._done()
        while (oldest := next(iter(self._after))) < min(done, number):
            del self._after[oldest]


def _encode(indices: object) -> bytes:
    """Return the indices as bytes that are the same in each process, and however they are split into lists.

    Raises TypeError if they are not plain values.
    """
    if hasattr(indices, "tolist"):  # an array or a tensor
        indices = indices.tolist()
    values = indices if isinstance(indices, list) else [indices]
    try:
        return array("q", values).tobytes()
    except (TypeError, OverflowError):
        if len(values) > 1:
            return b"".join(_encode([one]) for one in values)
        return json.dumps(values, default=operator.index).encode()
