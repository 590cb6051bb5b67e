"""Manifest of a rank: JSON round trip, and refusal of invalid content."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from cloudgpu.runtime.checkpoint.format.manifest import (
    CHUNK,
    ITEM_SIZE,
    Piece,
    RankManifest,
    chunk_hash,
    chunk_hashes,
    data_file,
    manifest_file,
)

PIECES = [
    Piece("objects/model/0.weight", "float32", (3, 4), 0),
    Piece("objects/model/scale", "bfloat16", (), 64),
    Piece("objects/model/part", "int64", (2, 5), 128, (7, 5), (5, 0)),
    Piece("objects/model/nothing", "float64", (0, 5), 256),
    Piece("objects/model/transposed", "int16", (3, 2), 192, strides=(1, 3)),
]


def manifest(**changes: Any) -> RankManifest:
    fields: dict[str, Any] = {
        "name": "00000007-0001-0123456789ab",
        "rank": 1,
        "world": 2,
        "step": 7,
        "size": 208,
        "pieces": PIECES,
        "tree": {"step": 7, "w": {"!tensor": "objects/model/0.weight"}},
        "chunks": ["0" * 32],
    }
    return RankManifest(**fields | changes)


def test_there_and_back() -> None:
    assert RankManifest.from_bytes(manifest().to_bytes()) == manifest()


def test_before_it_is_written_it_has_no_hashes() -> None:
    assert RankManifest.from_bytes(manifest(chunks=[]).to_bytes()).chunks == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pieces": [Piece("w", "int8", (3, 2), 0, strides=(1, 2))]}, r"w has strides that do not fit its shape"),
        ({"pieces": [Piece("w", "int8", (3, 2), 0, strides=(1,))]}, r".+"),
        ({"size": 100}, "part lies outside of the data file"),
        ({"pieces": [Piece("w", "float32", (3,), 4)]}, "w lies outside"),
        ({"pieces": [Piece("w", "float32", (-3,), 0)]}, "w lies outside"),
        ({"pieces": [Piece("w", "float33", (3,), 0)]}, "unknown dtype 'float33'"),
        ({"pieces": [Piece("w", "float32", (3, 4), 0, (3, 4), (1, 0))]}, "outside of the tensor that it is a part of"),
        ({"pieces": [Piece("w", "float32", (3, 4), 0, (3,), (0,))]}, "outside of the tensor that it is a part of"),
        ({"chunks": ["0" * 32] * 2}, "2 hashes of"),
        ({"chunk_size": 0}, "hashes of 0 bytes"),
        ({"format": "cloudgpu-checkpoint/1"}, "another format, 'cloudgpu-checkpoint/1'"),
    ],
)
def test_what_cannot_be_right_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RankManifest.from_bytes(manifest(**changes).to_bytes())


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"format": 1}', b'"x"'])
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RankManifest.from_bytes(data)


def test_any_field_missing_or_of_another_type_is_refused() -> None:
    record = json.loads(manifest().to_bytes())
    for name in record.keys() - {"chunks", "chunk_size"}:
        with pytest.raises(ValueError, match=r".+"):
            RankManifest.from_bytes(json.dumps({key: record[key] for key in record if key != name}).encode())
    for broken in ([["w"]], [5], {"w": 1}, [["w", "float32", 3, 0, None, None]]):
        with pytest.raises(ValueError, match=r".+"):
            RankManifest.from_bytes(json.dumps(record | {"pieces": broken}).encode())


def test_hashes_of_chunks() -> None:
    data = bytes(range(256)) * 10
    assert chunk_hashes(data, 1000) == [chunk_hash(data[:1000]), chunk_hash(data[1000:2000]), chunk_hash(data[2000:])]
    assert chunk_hashes(b"") == []
    assert chunk_hash(b"") == "99aa06d3014798d86001c324468d497f"  # xxh3-128, seed 0, as published by its author


def test_names_of_files() -> None:
    assert (data_file(7), manifest_file(12345)) == ("rank-00007.bin", "rank-12345.json")
    assert CHUNK % 64 == 0


def test_sizes_of_elements_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for name, size in ITEM_SIZE.items():
        assert getattr(torch, name).itemsize == size


def test_writer_needs_neither_torch_nor_numpy() -> None:
    check = (
        "import sys, cloudgpu.runtime.checkpoint.format.manifest as m; m.chunk_hash(b'x'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_only_pieces_with_strides_are_written_otherwise_than_before() -> None:
    """A version that does not know strides can read all other pieces."""
    rows = json.loads(manifest().to_bytes())["pieces"]
    assert [len(row) for row in rows] == [6, 6, 6, 6, 7]
