"""Save tensors that overlap in memory as views of one leaf: a tensor and a slice, a row or a transpose of it.

    {"!tensor": "state/whole"}  {"!tensor": "state/row"}
 →  {"!tensor": "state/whole"}  {"!view": "state/whole", "shape": [3], "strides": [1], "offset": 3}

Tensors with gaps (columns, every second element) become views if a dense tensor encloses them; otherwise each is saved
separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .manifest import is_dense

Record = dict[str, Any]
"""Tree node that represents a tensor."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor and the addresses of its memory, `start` to `end` (exclusive)."""

    start: int
    end: int
    dense: bool
    record: Record
    tensor: Any


def link_views(at: Mapping[int, list[tuple[Record, Any]]], leaves: dict[str, Any]) -> None:
    """Replace leaves that share memory by views of one leaf, in `leaves` and in their records.

    at  records and their tensors, by address
    """
    if not _may_overlap(at):
        return
    kinds: defaultdict[tuple[Any, ...], list[_Placed]] = defaultdict(list)
    for address, records in at.items():
        for record, tensor in records:
            kind = tensor.untyped_storage().data_ptr(), tensor.device, tensor.dtype, tensor.is_conj(), tensor.is_neg()
            kinds[kind].append(_place(address, record, tensor))
    for placed in kinds.values():
        for group in _overlapping(placed):
            _link(group, leaves)


def _may_overlap(at: Mapping[int, list[tuple[Record, Any]]]) -> bool:
    """Return False if no tensors overlap, which is true for most states; fast, because the training waits."""
    if sum(map(len, at.values())) > len(at):
        return True
    end = 0
    for address in sorted(at):
        if address < end:
            return True
        tensor = at[address][0][1]
        end = address + tensor.numel() * tensor.element_size()
    return False


def _place(address: int, record: Record, tensor: Any) -> _Placed:
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = address + (last + 1) * tensor.element_size()
    return _Placed(address, end, is_dense(tensor.shape, tensor.stride()), record, tensor)


def _overlapping(placed: Iterable[_Placed]) -> Iterator[list[_Placed]]:
    """Yield groups of two or more overlapping tensors; the dense tensors of a group cover its memory without gaps.

    A group is sorted by address, with dense and larger tensors first at the same address.
    """
    group: list[_Placed] = []
    end = 0
    for one in sorted(placed, key=lambda one: (one.start, not one.dense, -one.end)):
        if one.start >= end:
            yield from _inside(group, end)
            group = []
        group.append(one)
        if one.dense:
            end = max(end, one.end)
    yield from _inside(group, end)


def _inside(group: list[_Placed], end: int) -> Iterator[list[_Placed]]:
    """Yield the group without tensors that extend beyond its dense ones, unless fewer than two remain."""
    inside = [one for one in group if one.end <= end]
    if len(inside) > 1:
        yield inside


def _link(group: list[_Placed], leaves: dict[str, object]) -> None:
    """Replace a group by views of one leaf: the tensor that encloses the others, else a 1-D tensor of their memory."""
    start, end = group[0].start, max(one.end for one in group)
    base = next((one for one in group if one.dense and (one.start, one.end) == (start, end)), None)
    first = base or group[0]
    key, item = first.record["!tensor"], first.tensor.element_size()
    if base is None:
        leaves[key] = first.tensor.detach().as_strided(((end - start) // item,), (1,))
    for one in group:
        if one is base:
            continue
        if (own := one.record["!tensor"]) != key:
            del leaves[own]
        shape, strides = list(one.tensor.shape), list(one.tensor.stride())
        one.record.clear()
        one.record.update({"!view": key, "shape": shape, "strides": strides, "offset": (one.start - start) // item})
