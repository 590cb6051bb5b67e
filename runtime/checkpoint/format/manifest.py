"""What one rank's part of a checkpoint consists of. The format as a whole is described
in docs/reference/checkpoint-format.md.

    <name>/rank-00000.bin     pieces of tensors, raw, little-endian, each at a multiple of ALIGN bytes
           rank-00000.json    RankManifest: where each piece lies, the hash of each chunk, and all that is no tensor
           COMMIT.json        written last; names the sha256 of every rank's manifest

Standard library only, xxhash where something is hashed: trainer, writer and people's own tools share this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

FORMAT = "cloudgpu-checkpoint/2"
CHUNK = 8 << 20
"""Bytes that are hashed, and verified, at once."""
ALIGN = 64
"""Bytes; a cache line, and more than any dtype needs: a piece can be used where it lies."""

Bytes = bytes | bytearray | memoryview

ITEM_SIZE = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes per element of each dtype that a piece may have, by torch's name for it."""


def data_file(rank: int) -> str:
    return f"rank-{rank:05d}.bin"


def manifest_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def chunk_hash(data: Bytes) -> str:
    """xxh3-128 in hex: finds damage at 30 GB/s; against a forger stands only what guards the store itself."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def chunk_hashes(data: Bytes, chunk_size: int = CHUNK) -> list[str]:
    """The hash of each chunk, in order; the last may be shorter."""
    view = memoryview(data).cast("B")
    return [chunk_hash(view[at : at + chunk_size]) for at in range(0, len(view), chunk_size)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or the part of one that this rank holds."""

    key: str
    """The same on every rank: "objects/model/0.weight". Two pieces may share one: parts of the same tensor."""
    dtype: str
    """A key of ITEM_SIZE."""
    shape: tuple[int, ...]
    """Of the piece."""
    at: int
    """Where it begins in the data file, in bytes."""
    whole: tuple[int, ...] | None = None
    """Shape of the tensor that this is a part of; None: it is the whole tensor."""
    starts: tuple[int, ...] | None = None
    """Where in the whole the part begins, one index per dimension; None if there is no `whole`."""
    strides: tuple[int, ...] | None = None
    """In elements, where the piece is dense and not row-major; a tensor restored from the whole of it has them too."""

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * ITEM_SIZE[self.dtype]


@dataclass(slots=True)
class RankManifest:
    """rank-<i>.json. The trainer makes it without hashes; the writer adds them while it writes the data file."""

    name: str
    """Of the checkpoint: a manifest in another checkpoint's folder is found out."""
    rank: int
    world: int
    step: int
    size: int
    """Bytes of the data file."""
    pieces: list[Piece]
    tree: Any
    """Everything that is no tensor, and where the tensors go: see tree.py."""
    chunks: list[str] = field(default_factory=list)
    """Hash of each chunk of the data file, in order."""
    chunk_size: int = CHUNK
    format: str = FORMAT

    def to_bytes(self, pieces: str | None = None) -> bytes:
        """JSON; pieces as lists, for there may be ten thousand of them and the training waits.

        pieces: what pieces_to_json() gave for them, if they are those of the save before
        """
        record = {name: getattr(self, name) for name in self.__slots__} | {"pieces": None}
        head, _, tail = _compact(record).partition('"pieces":null')
        return f'{head}"pieces":{pieces or pieces_to_json(self.pieces)}{tail}'.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RankManifest:
        """Raises ValueError if the bytes are no such manifest, or one whose pieces do not lie in its data file."""
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
        """What the reader relies on; the hashes of a manifest that was not committed yet may be missing."""
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
    """Return them as they stand in a manifest: with strides only where they are not row-major.

    Versions that know no strides refuse pieces that have them, and still read all others.
    """
    rows: list[list[Any]] = [[p.key, p.dtype, p.shape, p.at, p.whole, p.starts] for p in pieces]
    for row, piece in zip(rows, pieces, strict=True):
        if piece.strides is not None:
            row.append(piece.strides)
    return _compact(rows)


_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
"""Nothing that it is given contains itself, and looking for that takes a third of its time."""


def _compact(value: object) -> str:  # any JSON value
    return _ENCODER.encode(value)


def _piece(fields: Sequence[Any]) -> Piece:
    key, dtype, shape, at, whole, starts, *more = fields
    (strides,) = map(tuple, more) if more else (None,)
    if whole is None or starts is None:
        return Piece(key, dtype, tuple(shape), at, strides=strides)
    return Piece(key, dtype, tuple(shape), at, tuple(whole), tuple(starts), strides)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements with these strides fill their memory: no gaps, no overlaps, any order of dimensions."""
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
