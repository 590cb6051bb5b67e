"""Load one rank's snapshot from a checkpoint: plan which bytes of which files it needs, read and verify them.

The tree (all state but the tensors) and the tensors of the rank's own file are used first. A tensor that the file does
not hold, or holds in another part than needed, is read from the files of other ranks. If the number of ranks has
changed, every rank uses rank 0's tree.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ....protocol.jobdir import JobDirError, MissingError
from ..errors import CheckpointError, UnusableError
from ..format.manifest import CHUNK, ITEM_SIZE, Piece, RankManifest, manifest_file
from ..format.placement import Placements, local_box
from ..format.reshard import Box, Rows, cover, is_contiguous, offset, row_major, spans
from .rebuild import rebuild
from .verified_reads import DataFile, Memory, Target, open_data, read_verified, retry_if_damaged

if TYPE_CHECKING:
    from ....protocol.checkpoint_names import Name
    from ..store import Commit
    from .readable_store import ReadableStore

_READERS = 16
"""Maximum number of manifests read concurrently."""
_ROWS = CHUNK
"""Size limit in bytes: rows that are at most this far apart in a file are fetched by one read, and a Rows object spans
at most this many bytes."""


class Files:
    """The manifests and data files of a checkpoint. Methods raise UnusableError."""

    def __init__(self, store: ReadableStore, name: Name, commit: Commit) -> None:
        self._store, self._name, self._commit = store, name, commit
        self._manifests: dict[int, RankManifest] = {}

    @property
    def world(self) -> int:
        """Number of ranks that saved it."""
        return len(self._commit.manifests)

    def manifest(self, rank: int) -> RankManifest:
        if rank not in self._manifests:
            self._manifests[rank] = self._confirmed(rank)
        return self._manifests[rank]

    def manifests(self, first: int) -> Iterator[RankManifest]:
        """Yield the manifest of rank `first`, then those of all others, which are read when the second is requested."""
        yield self.manifest(first)
        others = [rank for rank in range(self.world) if rank not in self._manifests]
        if others:
            with ThreadPoolExecutor(_READERS, thread_name_prefix="cloudgpu-restore") as pool:
                self._manifests.update(zip(others, pool.map(self._confirmed, others), strict=True))
        for distance in range(1, self.world):  # each rank starts at another one, to spread the reads
            yield self._manifests[(first + distance) % self.world]

    def read(self, rank: int, targets: Sequence[Target], slot: memoryview | None = None) -> None:
        """Fill the targets from the rank's data file, or from `slot`, its copy in this machine's shared memory."""
        manifest = self.manifest(rank)
        data: DataFile = Memory(slot) if slot else open_data(self._store, self._name, rank, manifest.size)
        try:
            read_verified(data, manifest, targets)
        finally:
            data.close()

    def _confirmed(self, rank: int) -> RankManifest:
        return retry_if_damaged(lambda: self._read(rank), self._store.local_path(self._name, manifest_file(rank)))

    def content(self, rank: int) -> bytes:
        """Return a rank's verified manifest as bytes."""
        file = manifest_file(rank)
        try:
            content = self._store.get(self._name, file)
        except MissingError as error:
            raise UnusableError(f"{file} is missing", damaged=True) from error
        except JobDirError as error:
            raise UnusableError(str(error), damaged=False) from error
        if hashlib.sha256(content).hexdigest() != self._commit.manifests[rank]:
            raise UnusableError(f"{file} is not the one that was committed", damaged=True)
        return content

    def _read(self, rank: int) -> RankManifest:
        file = manifest_file(rank)
        try:
            manifest = RankManifest.from_bytes(self.content(rank))
        except ValueError as error:  # verified, so written by another version
            raise UnusableError(f"{file}: {error}", damaged=False) from error
        if (manifest.name, manifest.rank, manifest.world) != (str(self._name), rank, self.world):
            raise UnusableError(f"{file} is that of rank {manifest.rank} of {manifest.name}", damaged=True)
        return manifest


@dataclass(slots=True)
class _Reads:
    """Reads to make from one rank's file."""

    targets: list[Target] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)


class Loader:
    """Builder of a snapshot's leaves: `leaf` allocates memory for each, then `fill` reads the content of all.

    home  rank whose file is used first
    """

    def __init__(self, files: Files, home: int, placements: Placements) -> None:
        self._files, self._home, self._placements = files, home, placements
        self._pieces: dict[int, dict[str, list[Piece]]] = {}
        self._reads: defaultdict[int, _Reads] = defaultdict(_Reads)
        self._afterwards: list[Callable[[], None]] = []

    def leaf(self, key: str, *, is_array: bool) -> Any:
        """Allocate a tensor, a DTensor or, for an array, its bytes, and plan the reads that fill it.

        rebuild.py converts the bytes of an array to its dtype.
        """
        like = self._like(key)
        whole = like.shape if like.whole is None else like.whole
        live = None if is_array else self._placements.find(key, whole)
        if live is not None:
            return self._place(key, like.dtype, live)
        strides = like.strides if like.whole is None else None
        if is_array:
            made, view = _new_array(prod(whole) * ITEM_SIZE[like.dtype])
        else:
            made, view = _new_tensor(like.dtype, whole, strides)
        self._plan(key, like.dtype, whole, Box.all_of(whole), view, strides=strides)
        return made

    def fill(self, slot: memoryview | None = None) -> None:
        """Make all planned reads, and verify what is read. `slot`: copy of the home rank's file, used instead of it."""
        for rank, reads in self._reads.items():
            source = slot if rank == self._home else None
            self._files.read(rank, reads.targets, source)
            for start, end, rows in spans(reads.rows, _ROWS):
                import torch

                buffer = torch.empty(end - start, dtype=torch.uint8)
                self._files.read(rank, [Target(start, _view(buffer))], source)
                for row in rows:
                    row.pick(buffer, start)
        for call in self._afterwards:
            call()

    def _place(self, key: str, dtype: str, live: Any) -> Any:
        """Allocate a DTensor on the live one's mesh, and plan the reads that fill its local part."""
        import torch

        with torch.no_grad():
            placed = torch.empty_like(live.detach(), dtype=getattr(torch, dtype))
            local = placed.to_local()
        box = local_box(placed, key)
        if local.device.type == "cpu" and local.is_contiguous():
            self._plan(key, dtype, tuple(placed.shape), box, _view(local))
            return placed
        staged, view = _new_tensor(dtype, box.shape)  # for a GPU
        self._plan(key, dtype, tuple(placed.shape), box, view)
        self._afterwards.append(lambda: local.copy_(staged))
        return placed

    def _plan(
        self,
        key: str,
        dtype: str,
        whole: tuple[int, ...],
        wanted: Box,
        view: memoryview,
        *,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Plan the reads that fill the memory of a box.

        whole    shape of the tensor
        wanted   box in the tensor
        view     memory of the box
        strides  strides of the memory, in elements; None: row-major

        Raises UnusableError if a part was not saved by any rank.
        """
        parts, missing = cover(wanted, self._candidates(key, dtype, whole))
        if missing:
            raise UnusableError(f"no rank has saved all of {key}: {missing[0]} is missing", damaged=False)
        item = ITEM_SIZE[dtype]
        for part in parts:
            source, target = part.box.inside(Box.of(part.piece)), part.box.inside(wanted)
            reads = self._reads[part.rank]
            if part.piece.strides == strides and source.shape == part.piece.shape == wanted.shape:
                reads.targets.append(Target(part.piece.at, view))
            elif strides is part.piece.strides is None and (
                is_contiguous(source, part.piece.shape) and is_contiguous(target, wanted.shape)
            ):
                first = offset(target, row_major(wanted.shape)) * item
                at = part.piece.at + offset(source, row_major(part.piece.shape)) * item
                reads.targets.append(Target(at, view[first : first + part.box.size * item]))
            else:
                fill = _filler(view, dtype, wanted, strides)
                reads.rows.extend(Rows(part.piece, source, target, fill).split(_ROWS))

    def _like(self, key: str) -> Piece:
        """Return any piece of the tensor. Raises UnusableError if there is none."""
        for manifest in self._files.manifests(self._home):
            if pieces := self._of(manifest).get(key):
                return pieces[0]
        raise UnusableError(f"no rank has saved {key}", damaged=False)

    def _candidates(self, key: str, dtype: str, whole: tuple[int, ...]) -> Iterator[tuple[int, Piece]]:
        """Yield (rank, piece), the home rank's first; other manifests are read only when needed.

        Raises UnusableError if dtype or shape differ.
        """
        for manifest in self._files.manifests(self._home):
            for piece in self._of(manifest).get(key, ()):
                found = piece.shape if piece.whole is None else piece.whole
                if (piece.dtype, found) != (dtype, whole):
                    reason = f"{key} was saved as {dtype} of {whole} and as {piece.dtype} of {found}"
                    raise UnusableError(reason, damaged=False)
                yield manifest.rank, piece

    def _of(self, manifest: RankManifest) -> dict[str, list[Piece]]:
        if manifest.rank not in self._pieces:
            pieces: dict[str, list[Piece]] = {}
            for piece in manifest.pieces:
                pieces.setdefault(piece.key, []).append(piece)
            self._pieces[manifest.rank] = pieces
        return self._pieces[manifest.rank]


def _leaf_kinds(tree: object, kinds: dict[str, bool]) -> dict[str, bool]:
    """Add the key of every leaf of a tree to `kinds`, with True for an array and False for a tensor; return `kinds`."""
    if type(tree) is list:
        for item in tree:
            _leaf_kinds(item, kinds)
    elif type(tree) is dict:
        if key := tree.get("!tensor") or tree.get("!view"):
            kinds[key] = False
        elif "!array" in tree:
            kinds[tree["!array"]] = True
        else:
            for item in tree.values():
                _leaf_kinds(item, kinds)
    return kinds


def load(files: Files, rank: int, world: int, placements: Placements, slot: memoryview | None) -> dict[str, Any]:
    """Return the snapshot for this rank. `slot`: see Loader.fill().

    Raises UnusableError if it cannot be read, CheckpointError if it does not fit the live objects.
    """
    home = rank if world == files.world else 0
    tree = files.manifest(home).tree
    loader = Loader(files, home, placements)
    try:
        leaves = {key: loader.leaf(key, is_array=is_array) for key, is_array in _leaf_kinds(tree, {}).items()}
    except ImportError as error:
        raise CheckpointError(f"it holds tensors, but this program has no {error.name}") from error
    loader.fill(slot)
    try:
        snapshot: dict[str, Any] = rebuild(tree, leaves.__getitem__)
    except (ValueError, ImportError) as error:
        raise UnusableError(str(error), damaged=False) from error
    return snapshot


# Memory


def _new_tensor(dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None) -> tuple[Any, memoryview]:
    import torch

    kind = getattr(torch, dtype)
    tensor = (
        torch.empty(tuple(shape), dtype=kind) if strides is None else torch.empty_strided(shape, strides, dtype=kind)
    )
    return tensor, _view(tensor)


def _new_array(size: int) -> tuple[Any, memoryview]:
    import numpy as np

    array = np.empty(size, dtype=np.uint8)
    return array, array.data


def _view(tensor: Any) -> memoryview:
    """Return the bytes of a dense tensor in host memory, which must outlive the view."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def _filler(view: memoryview, dtype: str, wanted: Box, strides: tuple[int, ...] | None) -> Callable[[Box, Any], None]:
    def fill(target: Box, elements: object) -> None:
        import torch

        memory = torch.frombuffer(view, dtype=getattr(torch, dtype))
        memory = memory.as_strided(wanted.shape, strides or row_major(wanted.shape))
        memory[target.slices()].copy_(elements)

    return fill
