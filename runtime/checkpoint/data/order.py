"""Running hash of the indices that a sampler yields, to verify that a resumed epoch has the same order."""

from __future__ import annotations

import json
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Order:
    """Hash of an epoch's indices. Its value after each batch is kept until the training has done a later batch.

    done     returns the number of batches that the training has done; workers read ahead of it
    grouped  True: the hash includes the boundaries of batches; False: it does not depend on the batch size
    """

    def __init__(self, done: Callable[[], int], *, grouped: bool) -> None:
        import xxhash

        self._done, self._grouped = done, grouped
        self._hash = xxhash.xxh3_64()
        self._is_known = True
        """True while every index added could be encoded."""
        self._after: dict[int, int | None] = {}
        """Hash after each number of batches; None if unknown."""

    def add(self, indices: object) -> None:  # whatever a sampler yields
        """Add a batch of indices; if not `grouped`, a list of any length."""
        if not self._is_known:
            return
        try:
            self._hash.update(_encode(indices))
        except (TypeError, ValueError):
            self._is_known = False
        if self._grouped:
            self._hash.update(b"|")

    def follow(self, batches: Iterable[object], number: int = 0) -> Iterator[Any]:
        """Return an iterator over `batches` that adds each to the hash; `number` batches were added before."""
        self._note(number)
        return self._count(batches, number)

    def after(self, batches: int) -> int | None:
        """Return the hash after a number of batches of the epoch; None if it is unknown."""
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
    """Encode indices as bytes that do not depend on the process or on how they are split into lists.

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
