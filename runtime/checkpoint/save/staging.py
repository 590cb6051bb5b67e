"""Lays out leaves in a slot and copies them there: what a save blocks training for, at the speed of one memcpy.

    layout, sources = stager.lay_out(leaves)
    stager.copy(layout, sources, slot, memory)

What is prepared is kept between saves as long as the structure (keys, dtypes, shapes) is the same: then a save is one
pass over the leaves and one call that copies them all. Sources are taken anew at each save, never kept: a kept one may
be a tensor that training has replaced meanwhile.
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
"""What is staged of a leaf, but for its values: key, dtype, shape; Piece.whole and .starts of a DTensor; Piece.strides.
A plain tuple: one is made of every tensor at every save, while training waits."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where in the slot each piece lies."""

    pieces: list[Piece]
    size: int
    """Bytes."""

    @cached_property
    def pieces_json(self) -> str:
        """The pieces as a manifest has them, made once for all saves alike."""
        return pieces_to_json(self.pieces)


class Stager:
    """One per process."""

    def __init__(self) -> None:
        self._forms: list[_Form] = []
        self._layout = Layout([], 0)
        self._views: dict[int, tuple[Layout, int, list[Any]]] = {}
        """By slot: the destinations there, and for which layout and memory they were made."""
        self._cuda = DeviceCopies()

    def lay_out(self, leaves: Mapping[str, object], absent: Collection[str] = ()) -> tuple[Layout, list[Any]]:
        """The layout, and what to copy where its pieces lie. `absent`: keys that another rank saves."""
        forms: list[_Form] = []
        sources: list[Any] = []
        for form, source in _parts(leaves, absent):
            forms.append(form)
            sources.append(source)
        if forms != self._forms:
            self._forms, self._layout = forms, _layout(forms)
        return self._layout, sources

    def copy(self, layout: Layout, sources: Sequence[object], slot: int, memory: memoryview) -> None:
        """Fill the slot; returns when all is there."""
        self.copy_pairs(self.destinations(layout, sources, slot, memory), sources)

    def copy_pairs(self, destinations: Sequence[object], sources: Sequence[object]) -> None:
        """Some of them; returns when they are there."""
        copy(destinations, sources, self._cuda)

    def destinations(self, layout: Layout, sources: Sequence[object], slot: int, memory: memoryview) -> list[Any]:
        """Tensors and arrays in the slot's memory, one per source."""
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
        """Let go of a slot's memory (None: of all), for it may be replaced by other memory."""
        for number in [slot] if slot is not None else list(self._views):
            self._views.pop(number, None)
            self._cuda.unpin(number)


def copy(destinations: Sequence[Any], sources: Sequence[Any], cuda: DeviceCopies) -> None:
    """Copy each source to its destination; the threads of torch take part, and other Python threads go on meanwhile."""
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
            torch._foreach_copy_(*to_host)  # one call: with a thousand small tensors, calls would cost more than bytes
    if on_device[0]:
        cuda.wait()


def _parts(leaves: Mapping[str, Any], absent: Collection[str]) -> Iterator[tuple[_Form, Any]]:
    """What of each leaf is here: all of an ordinary tensor or array, this rank's part of a DTensor."""
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
    """Of a torch.dtype: "float32". Kept: torch makes the text anew each time."""
    return _DTYPE_NAMES.setdefault(dtype, str(dtype).removeprefix("torch."))


def _part_of(key: str, tensor: Any) -> tuple[_Form, Any] | None:
    """This rank's part of a DTensor; None if another rank saves it, or nothing of it is here."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    for place, placement in zip(coordinate, tensor.placements, strict=True):
        if placement.is_replicate() and place:  # the first of each row of copies saves it
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
    """The piece's place in the slot, as what can be copied to."""
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
