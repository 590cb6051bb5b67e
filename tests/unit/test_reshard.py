"""Boxes of tensors: what of which piece, which bytes of the file, and not many more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cloudgpu.runtime.checkpoint.errors import UnusableError  # noqa: E402
from cloudgpu.runtime.checkpoint.format.manifest import ALIGN, Piece, RankManifest, chunk_hashes  # noqa: E402
from cloudgpu.runtime.checkpoint.format.placement import Placements  # noqa: E402
from cloudgpu.runtime.checkpoint.format.reshard import (  # noqa: E402
    READ_BUFFER_BYTES,
    Box,
    Rows,
    cover,
    is_contiguous,
    offset,
    row_major,
    spans,
)
from cloudgpu.runtime.checkpoint.restore.loading import Files, Loader  # noqa: E402
from cloudgpu.runtime.checkpoint.restore.verified_reads import Target, read_verified  # noqa: E402


def random_box(draw: random.Random, shape: Sequence[int]) -> Box:
    ends = [sorted(draw.sample(range(size + 1), 2)) for size in shape]
    return Box(tuple(low for low, _ in ends), tuple(high - low for low, high in ends))


def grid(draw: random.Random, shape: Sequence[int]) -> list[Box]:
    """The whole cut into boxes, as meshes do it, some of them empty."""
    cuts = [sorted([0, size, *(draw.randrange(size + 1) for _ in range(draw.randrange(3)))]) for size in shape]
    return [
        Box(tuple(low for low, _ in ranges), tuple(high - low for low, high in ranges))
        for ranges in itertools.product(*(list(itertools.pairwise(one)) for one in cuts))
    ]


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(start, start + n) for start, n in zip(box.starts, box.shape, strict=True))))


@pytest.mark.parametrize("seed", range(15))
def test_intersections_and_remainders(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.randrange(1, 6) for _ in range(draw.randrange(4))]
    for _ in range(50):
        one, other = random_box(draw, shape), random_box(draw, shape)
        common = one.intersect(other)
        assert (elements(common) if common else set()) == elements(one) & elements(other)
        if common:
            left = list(one.without(common))
            assert set().union(*map(elements, left), elements(common)) == elements(one)
            assert sum(box.size for box in left) + common.size == one.size


def test_a_number_is_a_box_too() -> None:
    number = Box((), ())
    assert number.size == 1
    assert number.intersect(number) == number
    assert list(number.without(number)) == []
    assert cover(number, [(3, Piece("x", "float32", (), 0))])[0][0].rank == 3


@pytest.mark.parametrize("seed", range(15))
def test_what_follows_one_another(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.randrange(1, 5) for _ in range(draw.randrange(1, 4))]
    memory = torch.arange(Box.all_of(shape).size).view(shape)
    for _ in range(50):
        box = random_box(draw, shape)
        if not box.size:
            continue
        numbers = memory[box.slices()].flatten().tolist()
        assert numbers[0] == offset(box, row_major(shape))
        assert is_contiguous(box, shape) == (numbers == list(range(numbers[0], numbers[0] + box.size)))
    assert row_major(shape) == memory.stride()


def test_the_own_piece_first_and_each_element_once() -> None:
    whole = (8, 4)
    pieces = [Piece("w", "float32", (4, 4), 0, whole, (start, 0)) for start in (0, 4)]
    copies = [(rank, pieces[rank % 2]) for rank in (3, 0, 1, 2)]
    parts, missing = cover(Box((2, 0), (4, 4)), copies)
    assert [(part.rank, part.box) for part in parts] == [(3, Box((4, 0), (2, 4))), (0, Box((2, 0), (2, 4)))]
    assert not missing


def test_what_nobody_has_is_told() -> None:
    pieces = [(0, Piece("w", "float32", (3,), 0, (8,), (0,))), (1, Piece("w", "float32", (3,), 0, (8,), (5,)))]
    _, missing = cover(Box((1,), (6,)), pieces)
    assert missing == [Box((3,), (2,))]


# Reading


class Written:
    """What the store has: data files in a folder, manifests without a commit."""

    def __init__(self, folder: Path, chunk: int) -> None:
        self._folder, self._chunk = folder, chunk
        self.manifests: list[RankManifest] = []

    def add(self, tensors: Sequence[tuple[str, Any, Box | None]], draw: random.Random | None = None) -> None:
        """A rank's file: (key, the whole tensor, the part that this rank has); draw: dimensions in any order."""
        rank, data, pieces = len(self.manifests), bytearray(), []
        for key, whole, box in tensors:
            part = whole if box is None else whole[box.slices()].contiguous()
            of, starts = (None, None) if box is None else (tuple(whole.shape), box.starts)
            order = draw.sample(range(part.dim()), part.dim()) if draw else list(range(part.dim()))
            part = part.permute(order).clone(memory_format=torch.contiguous_format)
            laid = part.permute([order.index(dim) for dim in range(part.dim())])
            strides = laid.stride() if laid.stride() != row_major(laid.shape) and part.numel() else None
            pieces.append(Piece(key, str(whole.dtype)[6:], tuple(laid.shape), len(data), of, starts, strides))
            raw = bytes(part.flatten().view(torch.uint8).tolist()) if part.numel() else b""
            data += raw + bytes(-len(raw) % ALIGN)
        (self._folder / f"{rank}").write_bytes(data)
        chunks = chunk_hashes(bytes(data), self._chunk)
        self.manifests.append(RankManifest("n", rank, 0, 1, len(data), pieces, None, chunks, self._chunk))


class Counting:
    """A data file in memory that knows what was read of it."""

    threads = 2
    path: Path | None = None

    def __init__(self, content: bytes) -> None:
        self._content, self.bytes = content, 0

    def read(self, at: int, views: Sequence[memoryview]) -> None:
        for view in views:
            view[:] = self._content[at : at + len(view)]
            at += len(view)
            self.bytes += len(view)

    def close(self) -> None:
        """Nothing to be closed."""


class WrittenFiles(Files):
    def __init__(self, written: Written, folder: Path) -> None:
        self._manifests = dict(enumerate(written.manifests))
        self._folder = folder
        self.bytes = 0

    @property
    def world(self) -> int:
        return len(self._manifests)

    def read(self, rank: int, targets: Sequence[Target], slot: memoryview | None = None) -> None:
        data = Counting((self._folder / f"{rank}").read_bytes())
        read_verified(data, self._manifests[rank], targets)
        self.bytes += data.bytes


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_is_put_together_again(seed: int, tmp_path: Path) -> None:
    """Tensors of some dtypes and dimensions, cut by one mesh and wanted whole; in any order of ranks, with copies."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    wholes = {}
    for number in range(4):
        shape = [draw.randrange(1, 9) for _ in range(draw.randrange(4))]
        dtype = draw.choice([torch.float64, torch.bfloat16, torch.uint8, torch.complex64])
        wholes[f"w{number}"] = (torch.randn(shape) * 50).to(dtype)
    cuts = {key: grid(draw, whole.shape) for key, whole in wholes.items()}
    world = draw.randrange(1, 5)
    written = Written(tmp_path, draw.choice([64, 192, 4096]))
    for rank in range(world):
        parts: list[tuple[str, Any, Box | None]] = []
        for key, boxes in cuts.items():
            parts += [(key, wholes[key], box) for number, box in enumerate(boxes) if number % world == rank]
            if draw.random() < 0.2:
                parts.append((key, wholes[key], draw.choice(boxes)))
        draw.shuffle(parts)
        written.add(parts, draw)
    loader = Loader(WrittenFiles(written, tmp_path), draw.randrange(world), Placements({}))
    got = {key: loader.leaf(key, is_array=False) for key in wholes}
    loader.fill()
    for key, whole in wholes.items():
        assert got[key].dtype == whole.dtype
        assert torch.equal(got[key], whole), key


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_split_and_read_together(seed: int) -> None:
    draw = random.Random(seed)
    whole = torch.arange(6 * 7 * 8, dtype=torch.int16).view(6, 7, 8)
    content = torch.cat([torch.zeros(64, dtype=torch.uint8), whole.flatten().view(torch.uint8)])
    piece = Piece("w", "int16", (6, 7, 8), 64)
    box = random_box(draw, whole.shape)
    while not box.size:
        box = random_box(draw, whole.shape)
    target = torch.zeros(box.shape, dtype=torch.int16)

    def fill(where: Box, values: Any) -> None:
        target[where.slices()] += values

    rows = list(Rows(piece, box, Box.all_of(box.shape), fill).split(draw.choice([2, 30, 10_000])))
    for start, end, batch in spans(rows, draw.choice([0, 20, 1000])):
        assert start % ALIGN == 0
        for row in batch:
            row.pick(content[start:end], start)
    assert torch.equal(target, whole[box.slices()])


def test_a_part_reads_its_chunks_only(tmp_path: Path) -> None:
    """A quarter of the rows is a quarter of the bytes; the ends of a chunk more, at most."""
    whole = torch.randn(64, 64)
    written = Written(tmp_path, 1024)
    written.add([("w", whole, Box((0, 0), (64, 64)))])
    files = WrittenFiles(written, tmp_path)
    loader = Loader(files, 0, Placements({}))
    target = torch.zeros(16, 64)
    view = memoryview(target.numpy()).cast("B")
    loader._plan("w", "float32", (64, 64), Box((16, 0), (16, 64)), view)
    loader.fill()
    assert torch.equal(target, whole[16:32])
    assert files.bytes == 16 * 64 * 4


def test_columns_do_not_read_the_whole_when_rows_are_long(tmp_path: Path) -> None:
    whole = torch.randn(4, 6 << 20)  # a row is 24 MiB, three chunks
    written = Written(tmp_path, 8 << 20)
    data = whole.numpy().tobytes()
    (tmp_path / "0").write_bytes(data)
    piece = Piece("w", "float32", tuple(whole.shape), 0, tuple(whole.shape), (0, 0))
    written.manifests.append(RankManifest("n", 0, 0, 1, len(data), [piece], None, chunk_hashes(data)))
    files = WrittenFiles(written, tmp_path)
    loader = Loader(files, 0, Placements({}))
    target = torch.zeros(4, 100)
    loader._plan("w", "float32", tuple(whole.shape), Box((0, 500), (4, 100)), memoryview(target.numpy()).cast("B"))
    loader.fill()
    assert torch.equal(target, whole[:, 500:600])
    assert files.bytes == 4 * (8 << 20)
    assert files.bytes < len(data) < READ_BUFFER_BYTES * 2


def test_tensors_saved_as_two_dtypes_are_refused(tmp_path: Path) -> None:
    written = Written(tmp_path, 64)
    written.add([("w", torch.ones(4), Box((0,), (2,)))])
    written.add([("w", torch.ones(4, dtype=torch.float16), Box((2,), (2,)))])
    with pytest.raises(UnusableError, match=r"w was saved as float32 of \(4,\) and as float16 of \(4,\)"):
        Loader(WrittenFiles(written, tmp_path), 0, Placements({})).leaf("w", is_array=False)
