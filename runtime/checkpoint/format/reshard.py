"""Tensors that were saved in parts: which bytes of which ranks' files make up the part that this rank needs.

A part is a box: where it starts in the whole tensor, and its shape. A rank that needs a box takes what its own file has
of it, then what the others' have; so it does not matter how many ranks saved, how they were arranged in meshes, or
which of several replicas is read. Only chunks that hold something of the box are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .manifest import ALIGN, ITEM_SIZE, Piece

SPAN = 64 << 20
"""Bytes of a file that are held at a time where a box must be picked out of rows that are longer."""


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor."""

    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def all_of(cls, shape: Sequence[int]) -> Box:
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def of(cls, piece: Piece) -> Box:
        return cls.all_of(piece.shape) if piece.starts is None else cls(piece.starts, piece.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """What both have; None if that is nothing."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = map(min, self._ends(), other._ends())
        shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, shape) if all(length > 0 for length in shape) else None

    def without(self, other: Box) -> Iterator[Box]:
        """What is left of it where `other`, which lies inside it, is taken away: at most two boxes per dimension."""
        starts, ends = list(self.starts), list(self._ends())
        for dim, (low, high) in enumerate(zip(other.starts, other._ends(), strict=True)):
            for first, last in ((starts[dim], low), (high, ends[dim])):
                if first < last:
                    begin, end = [*starts[:dim], first, *starts[dim + 1 :]], [*ends[:dim], last, *ends[dim + 1 :]]
                    yield Box(tuple(begin), tuple(b - a for a, b in zip(begin, end, strict=True)))
            starts[dim], ends[dim] = low, high

    def inside(self, outer: Box) -> Box:
        """The same box, with `outer`'s first element as the origin."""
        return Box(tuple(a - b for a, b in zip(self.starts, outer.starts, strict=True)), self.shape)

    def narrow(self, dim: int, first: int, last: int) -> Box:
        """Of one dimension only the indices from `first` to `last`, counted from the box's start."""
        starts, shape = list(self.starts), list(self.shape)
        starts[dim], shape[dim] = starts[dim] + first, last - first
        return Box(tuple(starts), tuple(shape))

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, end) for start, end in zip(self.starts, self._ends(), strict=True))

    def _ends(self) -> tuple[int, ...]:
        return tuple(start + length for start, length in zip(self.starts, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """What is taken from one piece."""

    rank: int
    """In whose file the piece is."""
    piece: Piece
    box: Box
    """In the whole tensor."""


def cover(wanted: Box, candidates: Iterable[tuple[int, Piece]]) -> tuple[list[Part], list[Box]]:
    """Parts of the candidates (rank, piece), the first ones preferred, and what of the box none of them has."""
    parts: list[Part] = []
    missing = [wanted] if wanted.size else []
    for rank, piece in candidates:
        if not missing:
            break
        left: list[Box] = []
        for box in missing:
            found = box.intersect(Box.of(piece))
            if found is None:
                left.append(box)
            else:
                parts.append(Part(rank, piece, found))
                left.extend(box.without(found))
        missing = left
    return parts, missing


def is_contiguous(box: Box, shape: Sequence[int]) -> bool:
    """Return whether the box's elements follow one another in a row-major tensor of this shape."""
    lengths = list(zip(box.shape, shape, strict=True))
    while lengths and lengths[0][0] == 1:
        lengths.pop(0)
    return all(length == size for length, size in lengths[1:])


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, in elements."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def offset(box: Box, strides: Sequence[int]) -> int:
    """Return where in a tensor with these strides the box's first element is, in elements."""
    return sum(start * stride for start, stride in zip(box.starts, strides, strict=True))


# Parts that are not contiguous


@dataclass(frozen=True, slots=True)
class Rows:
    """A box of a piece whose elements lie apart: picked out of the bytes that enclose it."""

    piece: Piece
    source: Box
    """In the piece."""
    target: Box
    """In the memory to be filled, of the same shape."""
    fill: Callable[[Box, Any], None]
    """Takes a target and a tensor of its shape."""

    @property
    def start(self) -> int:
        """Byte of the data file."""
        return self.piece.at + offset(self.source, self._strides) * ITEM_SIZE[self.piece.dtype]

    @property
    def end(self) -> int:
        last = sum((n - 1) * stride for n, stride in zip(self.source.shape, self._strides, strict=True))
        return self.start + (last + 1) * ITEM_SIZE[self.piece.dtype]

    def split(self, limit: int) -> Iterator[Rows]:
        """Yield the same in parts that enclose at most `limit` bytes each, unless a single element does not fit."""
        divisible = [(stride, dim) for dim, stride in enumerate(self._strides) if self.source.shape[dim] > 1]
        if not divisible or self.end - self.start <= limit:
            yield self
            return
        _, dim = max(divisible)
        half = self.source.shape[dim] // 2
        for first, last in ((0, half), (half, self.source.shape[dim])):
            source, target = self.source.narrow(dim, first, last), self.target.narrow(dim, first, last)
            yield from Rows(self.piece, source, target, self.fill).split(limit)

    def pick(self, buffer: Any, at: int) -> None:
        """Fill from a tensor of bytes that holds the file's from `at` on."""
        import torch

        elements = buffer[self.start - at : self.end - at].view(getattr(torch, self.piece.dtype))
        self.fill(self.target, elements.as_strided(self.source.shape, self._strides))

    @property
    def _strides(self) -> tuple[int, ...]:
        return self.piece.strides or row_major(self.piece.shape)


def spans(rows: Iterable[Rows], gap: int) -> Iterator[tuple[int, int, list[Rows]]]:
    """What is read at once: from, to (bytes), and the rows in it. What lies at most `gap` apart is read together."""
    batch: list[Rows] = []
    start = end = 0
    for row in sorted(rows, key=lambda row: row.start):
        if batch and (row.start > end + gap or max(end, row.end) > start + SPAN):
            yield start, end, batch
            batch = []
        if not batch:
            start = end = row.start - row.start % ALIGN  # so that elements of any size are aligned in the buffer
        batch.append(row)
        end = max(end, row.end)
    if batch:
        yield start, end, batch
