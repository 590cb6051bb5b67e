"""Rebuild state from the tagged JSON and the tensors into which tree.py flattened it."""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from ..format.tree import FACTORIES, SPARSE_LAYOUTS

Tree = Any
"""A JSON value."""


def rebuild(tree: Tree, leaf: Callable[[str], object]) -> Any:
    """Return the value that `flatten` encoded; `leaf` returns the tensor or array for a key, and is called once per
    key.

    Raises ValueError if the tree is invalid.
    """
    try:
        return _Rebuilding(leaf).decode(tree)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"not a tree that this version can read: {type(error).__name__}: {error}") from error


class _Rebuilding:
    def __init__(self, leaf: Callable[[str], object]) -> None:
        self._leaf = leaf
        self._leaves: dict[str, Any] = {}
        self._views: dict[str, Any] = {}
        self._containers: list[Any] = []
        """Mutable containers in the order in which they are entered; "!same" refers to them by number."""

    def decode(self, tree: Tree) -> Any:
        if type(tree) is list:
            return self._fill_list(tree)
        if type(tree) is not dict:
            return tree
        tag = next(iter(tree), "")
        if tag[:1] == "!":
            return _DECODERS[tag](self, tree)
        made = self.begin({})
        for key, item in tree.items():
            made[key] = self.decode(item)
        return made

    def begin(self, container: object) -> Any:
        """Assign the next number to a container, before its content is decoded."""
        self._containers.append(container)
        return container

    def same(self, tree: Tree) -> Any:
        return self._containers[tree["!same"]]

    def leaf(self, key: str) -> Any:
        if key not in self._leaves:
            self._leaves[key] = self._leaf(key)
        return self._leaves[key]

    def view(self, tree: Tree) -> Any:
        """Return a view of a leaf's memory; equal views are the same tensor, as for tied weights."""
        geometry = repr(sorted(tree.items()))
        if geometry not in self._views:
            base = self.leaf(tree["!view"]).detach()
            start = base.storage_offset() + tree["offset"]
            self._views[geometry] = base.as_strided(tree["shape"], tree["strides"], start)
        return self._views[geometry]

    def _fill_list(self, tree: list[Tree]) -> list[Any]:
        made: list[Any] = self.begin([])
        for item in tree:  # a comprehension would add a call per level
            made.append(self.decode(item))  # noqa: PERF401
        return made

    def items(self, tree: list[Tree]) -> list[Any]:
        return [self.decode(item) for item in tree]

    def fill(self, made: Any, pairs: list[Tree]) -> Any:
        """Number a container of pairs and fill it."""
        self.begin(made)
        for key, item in pairs:
            made[self.decode(key)] = self.decode(item)
        return made


def _ordered(rebuilding: _Rebuilding, tree: Tree) -> Any:
    value: Any = rebuilding.fill(OrderedDict(), tree["!ordered"])
    if "metadata" in tree:
        value._metadata = rebuilding.decode(tree["metadata"])
    return value


def _defaultdict(rebuilding: _Rebuilding, tree: Tree) -> Any:
    factory = tree["factory"]
    return rebuilding.fill(defaultdict(FACTORIES[factory] if factory else None), tree["!defaultdict"])


def _sparse(rebuilding: _Rebuilding, tree: Tree) -> Any:
    import torch

    parts = {name: rebuilding.decode(part) for name, part in tree["parts"].items()}
    if tree["!sparse"] == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], tree["shape"], is_coalesced=tree["coalesced"], check_invariants=True
        )
    if tree["!sparse"] not in SPARSE_LAYOUTS:
        raise KeyError(tree["!sparse"])
    return torch.sparse_compressed_tensor(
        parts["outer"],
        parts["inner"],
        parts["values"],
        tree["shape"],
        layout=getattr(torch, tree["!sparse"]),
        check_invariants=True,
    )


def _array(rebuilding: _Rebuilding, tree: Tree) -> Any:
    import numpy as np

    dtype, order = _numpy_dtype(tree["dtype"]), tree.get("order", "C")
    value = rebuilding.leaf(tree["!array"])
    if hasattr(value, "detach"):  # with torch, leaves may be tensors: NumPy lacks some of their dtypes
        import torch

        value = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    # reshape() also restores a zero-dimensional array.
    return np.frombuffer(raw.tobytes(), dtype=dtype).reshape(tree["shape"], order=order).copy(order)


def _scalar(_rebuilding: _Rebuilding, tree: Tree) -> Any:
    import numpy as np

    return np.frombuffer(base64.b64decode(tree["bytes"]), dtype=_numpy_dtype(tree["!scalar"]))[0]


def _numpy_dtype(name: str) -> Any:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:  # ml_dtypes registers bfloat16 and others with NumPy
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _torch_dtype(_rebuilding: _Rebuilding, tree: Tree) -> Any:
    import torch

    dtype = getattr(torch, tree["!dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{tree['!dtype']} is no dtype")
    return dtype


def _torch_device(_rebuilding: _Rebuilding, tree: Tree) -> Any:
    import torch

    return torch.device(tree["!device"])


def _torch_size(_rebuilding: _Rebuilding, tree: Tree) -> Any:
    import torch

    return torch.Size(tree["!size"])


_DECODERS: dict[str, Callable[[_Rebuilding, Tree], Any]] = {
    "!same": _Rebuilding.same,
    "!tensor": lambda rebuilding, tree: rebuilding.leaf(tree["!tensor"]),
    "!view": _Rebuilding.view,
    "!sparse": _sparse,
    "!array": lambda rebuilding, tree: rebuilding.begin(_array(rebuilding, tree)),
    "!scalar": _scalar,
    "!int": lambda _rebuilding, tree: int(tree["!int"], 16),
    "!float": lambda _rebuilding, tree: float(tree["!float"]),
    "!complex": lambda rebuilding, tree: complex(*rebuilding.items(tree["!complex"])),
    "!bytes": lambda _rebuilding, tree: base64.b64decode(tree["!bytes"]),
    "!bytearray": lambda rebuilding, tree: rebuilding.begin(bytearray(base64.b64decode(tree["!bytearray"]))),
    "!tuple": lambda rebuilding, tree: tuple(rebuilding.items(tree["!tuple"])),
    "!set": lambda rebuilding, tree: rebuilding.begin(set(rebuilding.items(tree["!set"]))),
    "!frozenset": lambda rebuilding, tree: frozenset(rebuilding.items(tree["!frozenset"])),
    "!dict": lambda rebuilding, tree: rebuilding.fill({}, tree["!dict"]),
    "!ordered": _ordered,
    "!counter": lambda rebuilding, tree: rebuilding.fill(Counter(), tree["!counter"]),
    "!defaultdict": _defaultdict,
    "!dtype": _torch_dtype,
    "!device": _torch_device,
    "!size": _torch_size,
}
