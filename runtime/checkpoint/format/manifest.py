"""Manifest of one rank's part of a checkpoint; docs/reference/checkpoint-format.md describes the whole format.

    <name>/rank-00000.bin     pieces of tensors, raw, little-endian, each at a multiple of ALIGN bytes
           rank-00000.json    RankManifest: offset of each piece, hash of each chunk, and the state without its tensors
           COMMIT.json        written last; holds the sha256 of every rank's manifest

Standard library only, with xxhash for hashes: trainer, writer and users' own tools import this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

FORMAT = "cloudgpu-checkpoint/2"
CHUNK = 8 << 20
"""Unit of hashing and verification, in bytes."""
ALIGN = 64
"""Alignment of a piece in bytes: a cache line, which suits every dtype, so that a piece can be used in place."""

Bytes = bytes | bytearray | memoryview

ITEM_SIZE = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes per element of each dtype that a piece may have, by torch's name."""


def data_file(rank: int) -> str:
    return f"rank-{rank:05d}.bin"


def manifest_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def chunk_hash(data: Bytes) -> str:
    """Return xxh3-128 in hex (30 GB/s). It detects damage, not forgery: access to the store must be restricted."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def chunk_hashes(data: Bytes, chunk_size: int = CHUNK) -> list[str]:
    """Return the hash of each chunk, in order; the last chunk may be shorter."""
    view = memoryview(data).cast("B")
    return [chunk_hash(view[at : at + chunk_size]) for at in range(0, len(view), chunk_size)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or the part of a tensor that this rank holds."""

    key: str
    """Key of the tensor, the same on every rank: "objects/model/0.weight". Pieces with equal keys are of one tensor."""
    dtype: str
    """A key of ITEM_SIZE."""
    shape: tuple[int, ...]
    """Shape of the piece."""
    at: int
    """Offset in the data file, in bytes."""
    whole: tuple[int, ...] | None = None
    """Shape of the tensor of which this is a part; None: the piece is the whole tensor."""
    starts: tuple[int, ...] | None = None
    """Start index of the part in each dimension of the tensor; None if there is no `whole`."""
    strides: tuple[int, ...] | None = None
    """Strides in elements of a dense piece that is not row-major; a tensor restored from a whole piece keeps them."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * ITEM_SIZE[self.dtype]


@dataclass(slots=True)
class RankManifest:
    """rank-<i>.json. The trainer creates it without hashes; the writer adds them while it writes the data file."""

    name: str
    """Name of the checkpoint, which detects a manifest copied from another checkpoint."""
    rank: int
    world: int
    step: int
    size: int
    """Size of the data file in bytes."""
    pieces: list[Piece]
    tree: Any
    """The state without its tensors, and the place of each tensor in it: see tree.py."""
    chunks: list[str] = field(default_factory=list)
    """Hash of each chunk of the data file, in order."""
    chunk_size: int = CHUNK
    format: str = FORMAT

    def to_bytes(self, pieces: str | None = None) -> bytes:
        """Serialize to JSON. Pieces are arrays, not objects: faster for ten thousand pieces, while the training waits.

        pieces  result of pieces_to_json() for these pieces, if the caller has cached it
        """
        record = {name: getattr(self, name) for name in self.__slots__} | {"pieces": None}
        head, _, tail = _compact(record).partition('"pieces":null')
        return f'{head}"pieces":{pieces or pieces_to_json(self.pieces)}{tail}'.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RankManifest:
        """Parse a manifest. Raises ValueError if it is invalid, or if a piece lies outside of its data file."""
        try:
            record = json.loads(data)
            found = record["format"]
            if found != FORMAT:
                raise ValueError(f"it has another format, {found!r:.80}, than {FORMAT}")
            pieces = [_piece(fields) for fields in record.pop("pieces")]
            manifest = cls(**record, pieces=pieces)
            manifest._check()
        except (TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a rank's manifest: {error}") from error
        return manifest

    def _check(self) -> None:
        """Raise ValueError if the manifest is inconsistent. Hashes may be missing in one that is not committed yet."""
        if self.chunk_size < 1 or len(self.chunks) not in (0, -(-self.size // self.chunk_size)):
            raise ValueError(f"{len(self.chunks)} hashes of {self.chunk_size} bytes for {self.size} bytes")
        for piece in self.pieces:
            if piece.dtype not in ITEM_SIZE:
                raise ValueError(f"{piece.key} has the unknown dtype {piece.dtype!r}")
            negative = min((piece.at, *piece.shape)) < 0
            if negative or piece.at % ALIGN or (piece.size and piece.at + piece.size > self.size):
                raise ValueError(f"{piece.key} lies outside of the data file")
            if not _inside(piece):
                raise ValueError(f"{piece.key} lies outside of the tensor that it is a part of")
            if piece.strides is not None and not is_dense(piece.shape, piece.strides):
                raise ValueError(f"{piece.key} has strides that do not fit its shape: {piece.strides}")


def pieces_to_json(pieces: Sequence[Piece]) -> str:
    """Serialize pieces as in a manifest; strides are included only if they are not row-major.

    Versions without strides reject pieces that have them, and can still read all others.
    """
    rows: list[list[Any]] = [[p.key, p.dtype, p.shape, p.at, p.whole, p.starts] for p in pieces]
    for row, piece in zip(rows, pieces, strict=True):
        if piece.strides is not None:
            row.append(piece.strides)
    return _compact(rows)


_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
"""Without the check for circular references, which the values cannot have: saves a third of the time."""


def _compact(value: object) -> str:  # any JSON value
    return _ENCODER.encode(value)


def _piece(fields: Sequence[Any]) -> Piece:
    key, dtype, shape, at, whole, starts, *more = fields
    (strides,) = map(tuple, more) if more else (None,)
    if whole is None or starts is None:
        return Piece(key, dtype, tuple(shape), at, strides=strides)
    return Piece(key, dtype, tuple(shape), at, tuple(whole), tuple(starts), strides)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements with these strides have no gaps and no overlaps in memory, in any order of dimensions."""
    extent = 1
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length == 1:
            continue
        if stride != extent:
            return False
        extent *= length
    return True


def _inside(piece: Piece) -> bool:
    if piece.whole is None or piece.starts is None:
        return True
    return len(piece.shape) == len(piece.starts) == len(piece.whole) and all(
        0 <= start <= start + length <= size
        for start, length, size in zip(piece.starts, piece.shape, piece.whole, strict=True)
    )
