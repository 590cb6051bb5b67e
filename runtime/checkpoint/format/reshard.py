"""Plan which bytes of which ranks' files make up the part of a tensor that this rank needs.

A part is a box: its start in the whole tensor, and its shape. A rank first reads the bytes of the box that are in its
own file, then the rest from the files of other ranks. So the number of ranks that saved, their meshes, and the choice
among replicas do not matter. Only chunks that contain bytes of the box are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .manifest import ALIGN, ITEM_SIZE, Piece

READ_BUFFER_BYTES = 64 << 20
"""Maximum size of a merged read in bytes, for boxes that are not contiguous in the file; see spans()."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor."""

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
        """Number of elements."""
        return prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """Return the intersection; None if it is empty."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = map(min, self._ends(), other._ends())
        shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, shape) if all(length > 0 for length in shape) else None

    def without(self, other: Box) -> Iterator[Box]:
        """Yield boxes that make up this box without `other`, which lies inside it: at most two per dimension."""
        starts, ends = list(self.starts), list(self._ends())
        for dim, (low, high) in enumerate(zip(other.starts, other._ends(), strict=True)):
            for first, last in ((starts[dim], low), (high, ends[dim])):
                if first < last:
                    begin, end = [*starts[:dim], first, *starts[dim + 1 :]], [*ends[:dim], last, *ends[dim + 1 :]]
                    yield Box(tuple(begin), tuple(b - a for a, b in zip(begin, end, strict=True)))
            starts[dim], ends[dim] = low, high

    def inside(self, outer: Box) -> Box:
        """Return this box relative to the first element of `outer`."""
        return Box(tuple(a - b for a, b in zip(self.starts, outer.starts, strict=True)), self.shape)

    def narrow(self, dim: int, first: int, last: int) -> Box:
        """Return the part with indices `first` to `last` (exclusive) of one dimension, relative to the box's start."""
        starts, shape = list(self.starts), list(self.shape)
        starts[dim], shape[dim] = starts[dim] + first, last - first
        return Box(tuple(starts), tuple(shape))

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, end) for start, end in zip(self.starts, self._ends(), strict=True))

    def _ends(self) -> tuple[int, ...]:
        return tuple(start + length for start, length in zip(self.starts, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a tensor to take from one piece."""

    rank: int
    """Rank whose file holds the piece."""
    piece: Piece
    box: Box
    """Box in the whole tensor."""


def cover(wanted: Box, candidates: Iterable[tuple[int, Piece]]) -> tuple[list[Part], list[Box]]:
    """Return parts of the candidates (rank, piece) that cover a box, and the boxes that none covers.

    Earlier candidates are preferred.
    """
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
    """Return whether the box's elements are contiguous in a row-major tensor of this shape."""
    lengths = list(zip(box.shape, shape, strict=True))
    while lengths and lengths[0][0] == 1:
        lengths.pop(0)
    return all(length == size for length, size in lengths[1:])


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, in elements."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def offset(box: Box, strides: Sequence[int]) -> int:
    """Return the offset of the box's first element in a tensor with these strides, in elements."""
    return sum(start * stride for start, stride in zip(box.starts, strides, strict=True))


# Parts that are not contiguous


@dataclass(frozen=True, slots=True)
class Rows:
    """A non-contiguous box of a piece. All bytes from its first to its last element are read to get its elements."""

    piece: Piece
    source: Box
    """Box in the piece."""
    target: Box
    """Box in the memory to fill, of the same shape."""
    fill: Callable[[Box, Any], None]
    """Called with a target and a tensor of its shape."""

    @property
    def start(self) -> int:
        """Offset of the first byte in the data file."""
        return self.piece.at + offset(self.source, self._strides) * ITEM_SIZE[self.piece.dtype]

    @property
    def end(self) -> int:
        last = sum((n - 1) * stride for n, stride in zip(self.source.shape, self._strides, strict=True))
        return self.start + (last + 1) * ITEM_SIZE[self.piece.dtype]

    def split(self, limit: int) -> Iterator[Rows]:
        """Yield parts that each span at most `limit` bytes of the file, or a single element if that is larger."""
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
        """Fill the target from a tensor of bytes that holds the file's content from offset `at` on."""
        import torch

        elements = buffer[self.start - at : self.end - at].view(getattr(torch, self.piece.dtype))
        self.fill(self.target, elements.as_strided(self.source.shape, self._strides))

    @property
    def _strides(self) -> tuple[int, ...]:
        return self.piece.strides or row_major(self.piece.shape)


def spans(rows: Iterable[Rows], gap: int) -> Iterator[tuple[int, int, list[Rows]]]:
    """Yield reads (start, end, rows), offsets in bytes; merge rows that are at most `gap` bytes apart."""
    batch: list[Rows] = []
    start = end = 0
    for row in sorted(rows, key=lambda row: row.start):
        if batch and (row.start > end + gap or max(end, row.end) > start + READ_BUFFER_BYTES):
            yield start, end, batch
            batch = []
        if not batch:
            start = end = row.start - row.start % ALIGN  # so that elements of any size are aligned in the buffer
        batch.append(row)
        end = max(end, row.end)
    if batch:
        yield start, end, batch
