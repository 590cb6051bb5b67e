"""Lay out leaves in a slot and copy them there: the part of a save that blocks training, at the speed of memcpy.

    layout, sources = stager.lay_out(leaves)
    stager.copy(layout, sources, slot, memory)

The layout is cached as long as the structure (keys, dtypes, shapes) is unchanged; a save is then one pass over the
leaves, and one call that copies them all. Sources are never cached, because training may replace a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import CheckpointError
from ..format.manifest import ALIGN, Piece, pieces_to_json
from ..format.placement import local_box
from ..format.strides import strides_of
from .cuda import DeviceCopies

_Form = tuple[str, str, Sequence[int], tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...] | None]
"""Form of a leaf: key, dtype, shape; Piece.whole and .starts of a DTensor; Piece.strides. A plain tuple for speed,
since one is made per tensor and save, while training waits."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Offset of each piece in a slot."""

    pieces: list[Piece]
    size: int
    """Size in bytes."""

    @cached_property
    def pieces_json(self) -> str:
        """Serialized pieces, as in a manifest; cached for all saves with this layout."""
        return pieces_to_json(self.pieces)


class Stager:
    """Copier of leaves into slots; one per process."""

    def __init__(self) -> None:
        self._forms: list[_Form] = []
        self._layout = Layout([], 0)
        self._views: dict[int, tuple[Layout, int, list[Any]]] = {}
        """Destinations in each slot, with the layout and the address for which they were made."""
        self._cuda = DeviceCopies()

    def lay_out(self, leaves: Mapping[str, object], absent: Collection[str] = ()) -> tuple[Layout, list[Any]]:
        """Return the layout and the sources to copy, one per piece. `absent`: keys that other ranks save."""
        forms: list[_Form] = []
        sources: list[Any] = []
        for form, source in _parts(leaves, absent):
            forms.append(form)
            sources.append(source)
        if forms != self._forms:
            self._forms, self._layout = forms, _layout(forms)
        return self._layout, sources

    def copy(self, layout: Layout, sources: Sequence[object], slot: int, memory: memoryview) -> None:
        """Copy the sources into the slot, and return when the copy is complete."""
        self.copy_pairs(self.destinations(layout, sources, slot, memory), sources)

    def copy_pairs(self, destinations: Sequence[object], sources: Sequence[object]) -> None:
        """Copy pairs of destinations and sources, and return when the copy is complete."""
        copy(destinations, sources, self._cuda)

    def destinations(self, layout: Layout, sources: Sequence[object], slot: int, memory: memoryview) -> list[Any]:
        """Return tensors and arrays in the slot's memory, one per source."""
        address = _address(memory)
        known = self._views.get(slot)
        if known is None or known[0] is not layout or known[1] != address:
            self.release(slot)
            if any(getattr(source, "is_cuda", False) for source in sources):
                self._cuda.pin(slot, address, len(memory))
            views = [_view(memory, piece, source) for piece, source in zip(layout.pieces, sources, strict=True)]
            self._views[slot] = known = layout, address, views
        return known[2]

    def release(self, slot: int | None = None) -> None:
        """Drop the references to a slot's memory (None: all slots), before the memory is replaced."""
        for number in [slot] if slot is not None else list(self._views):
            self._views.pop(number, None)
            self._cuda.unpin(number)


def copy(destinations: Sequence[Any], sources: Sequence[Any], cuda: DeviceCopies) -> None:
    """Copy each source to its destination. Uses torch's threads, and does not hold the GIL."""
    to_host: tuple[list[Any], list[Any]] = [], []
    on_device: tuple[list[Any], list[Any]] = [], []
    for destination, source in zip(destinations, sources, strict=True):
        if not hasattr(source, "data_ptr"):
            _copy_array(destination, source)
            continue
        pair = on_device if source.is_cuda else to_host
        pair[0].append(destination)
        pair[1].append(source)
    if on_device[0]:
        cuda.start(*on_device)
    if to_host[0]:
        import torch

        with torch.no_grad():
            torch._foreach_copy_(*to_host)  # one call for all: with many small tensors, calls take most of the time
    if on_device[0]:
        cuda.wait()


def _parts(leaves: Mapping[str, Any], absent: Collection[str]) -> Iterator[tuple[_Form, Any]]:
    """Yield the form and source of each leaf: a whole tensor or array, or this rank's part of a DTensor."""
    torch: Any = sys.modules.get("torch")
    plain = (torch.Tensor, torch.nn.Parameter) if torch else ()
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    for key, leaf in leaves.items():
        if key in absent:
            continue
        if type(leaf) not in plain and distributed is not None and isinstance(leaf, distributed.DTensor):
            part = _part_of(key, leaf)
            if part is not None:
                yield part
        elif hasattr(leaf, "data_ptr"):
            dtype = _DTYPE_NAMES.get(leaf.dtype) or _name_of(leaf.dtype)
            shape = leaf.shape
            # A dimension of length 1 may have any stride in a tensor that torch calls contiguous.
            row_major = len(shape) < 2 or (leaf.is_contiguous() and 1 not in shape)
            form = key, dtype, shape, None, None, None if row_major else strides_of(leaf)
            yield form, leaf.detach() if leaf.requires_grad else leaf
        else:
            yield (key, leaf.dtype.name, leaf.shape, None, None, None), leaf


_DTYPE_NAMES: dict[Any, str] = {}


def _name_of(dtype: object) -> str:
    """Return a torch.dtype's name, e.g. "float32"; cached, because formatting it takes time."""
    return _DTYPE_NAMES.setdefault(dtype, str(dtype).removeprefix("torch."))


def _part_of(key: str, tensor: Any) -> tuple[_Form, Any] | None:
    """Return this rank's part of a DTensor; None if another rank saves it, or this rank has no part of it."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    for place, placement in zip(coordinate, tensor.placements, strict=True):
        if placement.is_replicate() and place:  # only the first of several replicas saves it
            return None
    box = local_box(tensor, key)
    local = tensor.to_local().detach()
    if tuple(box.shape) != tuple(local.shape):
        raise CheckpointError(f"{key} is sharded in a way that cannot be saved: {tensor.placements}")
    if not local.numel() and tensor.numel():
        return None
    return (key, _name_of(local.dtype), local.shape, tuple(tensor.shape), tuple(box.starts), None), local


def _layout(forms: Sequence[_Form]) -> Layout:
    pieces, at = [], 0
    for key, dtype, shape, whole, starts, strides in forms:
        piece = Piece(key, dtype, tuple(shape), at, whole, starts, strides)
        pieces.append(piece)
        at += -(-piece.size // ALIGN) * ALIGN
    return Layout(pieces, at)


def _view(memory: memoryview, piece: Piece, source: Any) -> Any:
    """Return the piece's memory in the slot as a tensor or array to copy to."""
    if not hasattr(source, "data_ptr"):
        import numpy as np

        return np.ndarray(piece.shape, source.dtype, memory, piece.at)
    import torch

    if not piece.size:
        return torch.empty(piece.shape, dtype=source.dtype)
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=piece.size, offset=piece.at)
    flat = raw.view(source.dtype)
    return flat.view(piece.shape) if piece.strides is None else flat.as_strided(piece.shape, piece.strides)


def _copy_array(destination: Any, source: Any) -> None:
    import numpy as np

    np.copyto(destination, source, casting="no")


def _address(memory: memoryview) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
