"""State as tagged JSON and a table of tensors, and back, so that loading executes nothing.

    flatten({"w": tensor, "lr": (0.1, 2)}, "model")  ->  {"w": {"!tensor": "model/w"}, "lr": {"!tuple": [0.1, 2]}},
                                                         {"model/w": tensor}

What JSON has is kept as it is; everything else is an object whose first key is a tag. A tensor is found by its key: the
path to it, parts joined by "/" (and "~0", "~1" for "~" and "/" within one, as in JSON Pointer, RFC 6901). Tensors that
share memory (tied weights) are one leaf. Nothing is copied here: leaves are the live tensors. What could not be rebuilt
without executing code is refused by name.

torch and NumPy are looked at only where the program has loaded them itself.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .errors import CheckpointError
from .manifest import ITEM_SIZE

_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
"""What a defaultdict may make its values with."""
_EXACT = frozenset((type(None), bool, int, str))
"""What JSON gives back as it was."""
_SEQUENCES: dict[type, str] = {tuple: "!tuple", set: "!set", frozenset: "!frozenset"}
_KNOWN: set[Any] = set()
"""torch.dtypes that can be saved, as they were met: torch makes their text anew each time."""
_LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def flatten(value: Any, where: str) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - any state
    """The JSON-able tree, and the leaves (tensors, arrays) by key; every key begins with `where`, unless that is "".

    Raises CheckpointError naming the place of what cannot be saved.
    """
    flattening = _Flattening()
    return flattening.encode(value, where), flattening.leaves


def rebuild(tree: Any, leaf: Callable[[str], Any]) -> Any:  # noqa: ANN401
    """The value again; `leaf` gives the tensor or array for a key and is asked once for each.

    Raises ValueError for what `flatten` did not make.
    """
    known: dict[str, Any] = {}

    def once(key: str) -> Any:  # noqa: ANN401
        if key not in known:
            known[key] = leaf(key)
        return known[key]

    try:
        return _decode(tree, once)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a tree that this version can read: {type(error).__name__}: {error}") from error


class _Flattening:
    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}
        self._at: dict[int, list[tuple[str, Any]]] = {}
        """Tensors by address: those that share memory."""
        self._torch: Any = sys.modules.get("torch")
        self._numpy: Any = sys.modules.get("numpy")
        self._plain_tensors = {self._torch.Tensor, self._torch.nn.Parameter} if self._torch else frozenset()
        self._strided = self._torch.strided if self._torch else None

    def encode(self, value: Any, path: str) -> Any:  # noqa: ANN401, PLR0911 - one return per kind
        kind = type(value)
        if kind in self._plain_tensors:  # first what there is most of
            return self._tensor(value, path)
        if kind in _EXACT:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"!float": repr(value)}
        if kind is dict:
            return self._dict(value, path)
        if kind is list:
            return self._items(value, path)
        if tag := _SEQUENCES.get(kind):
            return {tag: self._items(value, path)}
        encode = _ENCODERS.get(kind)
        return encode(self, value, path) if encode else self._other(value, path)

    # Containers

    def _dict(self, value: dict[Any, Any], path: str) -> Any:  # noqa: ANN401
        if all(type(key) is str and key[:1] != "!" for key in value):
            return {key: self.encode(item, join(path, key)) for key, item in value.items()}
        return {"!dict": self.pairs(value, path)}

    def pairs(self, value: dict[Any, Any], path: str) -> list[Any]:
        pairs = []
        for key, item in value.items():
            if self._torch and isinstance(key, self._torch.Tensor):
                raise CheckpointError(f"{path} has a tensor as a key, which cannot be saved: use a name or a number")
            pairs.append([self.encode(key, path), self.encode(item, join(path, str(key)))])
        return pairs

    def _items(self, value: Iterable[Any], path: str) -> list[Any]:
        items = list(value)
        kinds = set(map(type, items))
        if kinds <= _EXACT or (kinds == {float} and all(map(math.isfinite, items))):  # a long list of losses, say
            return items
        return [self.encode(item, f"{path}/{number}") for number, item in enumerate(items)]

    # Leaves

    def add(self, leaf: Any, path: str) -> str:  # noqa: ANN401
        """The key under which it is saved: its path, unless two paths read the same (keys 0 and "0" of one dict)."""
        key, number = path, 2
        while key in self.leaves:
            key, number = f"{path}~{number}", number + 1
        self.leaves[key] = leaf
        return key

    def _tensor(self, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
        if value.layout is not self._strided:
            return self._sparse(value, path)
        if value.dtype not in _KNOWN and not _is_known(value.dtype):
            raise CheckpointError(f"{path} is a tensor of {value.dtype}, which cannot be saved: dequantise it first")
        address = value.data_ptr()
        if not address:
            if value.numel():
                raise CheckpointError(f"{path} is a tensor on {value.device.type!r} that holds no data yet")
            return {"!tensor": self.add(value, path)}
        shared = self._at.setdefault(address, [])
        for key, other in shared:
            if _same_memory(value, other):
                return {"!tensor": key}
        key = self.add(value, path)
        shared.append((key, value))
        return {"!tensor": key}

    def _sparse(self, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
        layout = str(value.layout)[6:]
        if layout not in _LAYOUTS:
            raise CheckpointError(f"{path} is a tensor of layout {layout}, which cannot be saved")
        record: dict[str, Any] = {"!sparse": layout, "shape": list(value.shape)}
        if layout == "sparse_coo":
            record["coalesced"] = value.is_coalesced()
            parts = {"indices": value._indices(), "values": value._values()}
        elif layout in {"sparse_csr", "sparse_bsr"}:
            parts = {"outer": value.crow_indices(), "inner": value.col_indices(), "values": value.values()}
        else:
            parts = {"outer": value.ccol_indices(), "inner": value.row_indices(), "values": value.values()}
        record["parts"] = {name: self._tensor(part, f"{path}/{name}") for name, part in parts.items()}
        return record

    def _other(self, value: Any, path: str) -> Any:  # noqa: ANN401
        if self._torch and isinstance(value, self._torch.Tensor):
            return self._tensor_subclass(value, path)
        if self._numpy and isinstance(value, self._numpy.ndarray | self._numpy.generic):
            return self._array(value, path)
        if self._torch and isinstance(value, self._torch.dtype):
            return {"!dtype": str(value)[6:]}
        if self._torch and isinstance(value, self._torch.device):
            return {"!device": str(value)}
        if self._torch and isinstance(value, self._torch.Size):
            return {"!size": list(value)}
        raise CheckpointError(
            f"{path} is a {_name(type(value))}, which cannot be saved so that loading it executes no code: keep "
            "tensors, NumPy arrays, numbers, text, lists, tuples, sets and dicts of them"
        )

    def _tensor_subclass(self, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
        """DTensors are saved by their local parts; what only adds methods to a tensor, as the tensor it is."""
        distributed: Any = sys.modules.get("torch.distributed.tensor")
        if distributed is not None and isinstance(value, distributed.DTensor):
            if any(placement.is_partial() for placement in value.placements):
                raise CheckpointError(f"{path} is a DTensor with partial sums: redistribute() it before it is saved")
            if str(value.dtype)[6:] not in ITEM_SIZE:
                raise CheckpointError(f"{path} is a DTensor of {value.dtype}, which cannot be saved")
            return {"!tensor": self.add(value, path)}
        kind = type(value)
        if isinstance(value, self._torch.nn.parameter.UninitializedTensorMixin):
            raise CheckpointError(f"{path} is not initialised yet: run the model once before making the Checkpointer")
        if hasattr(kind, "__tensor_flatten__") or kind.__torch_dispatch__ is not self._torch.Tensor.__torch_dispatch__:
            raise CheckpointError(
                f"{path} is a {_name(kind)}, a kind of tensor whose contents are known to its own code only: keep the "
                "plain tensors that it is made of"
            )
        return self._tensor(value, path)

    def _array(self, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
        np = self._numpy
        dtype = value.dtype
        if dtype.hasobject:
            raise CheckpointError(f"{path} is a NumPy array of Python objects: save it as lists, or as numbers")
        known = dtype.isnative and dtype.name in ITEM_SIZE
        if (dtype.kind == "V" and not known) or isinstance(value, np.ma.MaskedArray | np.rec.recarray):
            raise CheckpointError(f"{path} is a {_name(type(value))} of {dtype}: save its parts as arrays of numbers")
        name = dtype.name if known else dtype.str
        if isinstance(value, np.generic):
            return {"!scalar": name, "bytes": _to_text(value.tobytes())}
        leaf = value if known else np.frombuffer(value.tobytes(), dtype=np.uint8)
        return {"!array": self.add(leaf, path), "dtype": name, "shape": list(value.shape)}


def _is_known(dtype: Any) -> bool:  # noqa: ANN401
    if str(dtype)[6:] in ITEM_SIZE:
        _KNOWN.add(dtype)
    return dtype in _KNOWN


def _ordered(flattening: _Flattening, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
    record: dict[str, Any] = {"!ordered": flattening.pairs(value, path)}
    if metadata := getattr(value, "_metadata", None):  # how torch.nn.Module tells its versions apart
        record["metadata"] = flattening.encode(metadata, f"{path}/_metadata")
    return record


def _defaultdict(flattening: _Flattening, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
    factory = value.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise CheckpointError(f"{path} is a defaultdict whose factory is code of its own: save it as a dict")
    return {"!defaultdict": flattening.pairs(value, path), "factory": factory.__name__ if factory else None}


_ENCODERS: dict[type, Callable[[_Flattening, Any, str], Any]] = {
    complex: lambda flattening, value, path: {
        "!complex": [flattening.encode(value.real, path), flattening.encode(value.imag, path)]
    },
    bytes: lambda _flattening, value, _path: {"!bytes": _to_text(value)},
    bytearray: lambda _flattening, value, _path: {"!bytearray": _to_text(value)},
    Counter: lambda flattening, value, path: {"!counter": flattening.pairs(value, path)},
    OrderedDict: _ordered,
    defaultdict: _defaultdict,
}


def _same_memory(a: Any, b: Any) -> bool:  # noqa: ANN401
    """Two tensors at the same address: whether they are the same numbers in the same order, for good."""
    return bool(
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.stride() == b.stride()
        and a.device == b.device
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def join(path: str, part: str) -> str:
    """The key of a part of what lies at a path."""
    if "/" in part or "~" in part:
        part = part.replace("~", "~0").replace("/", "~1")
    return f"{path}/{part}" if path else part


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Back

Leaf = Callable[[str], Any]


def _decode(tree: Any, leaf: Leaf) -> Any:  # noqa: ANN401
    if type(tree) is list:
        return [_decode(item, leaf) for item in tree]
    if type(tree) is not dict:
        return tree
    tag = next(iter(tree), "")
    if tag[:1] != "!":
        return {key: _decode(item, leaf) for key, item in tree.items()}
    return _DECODERS[tag](tree, leaf)


def _pairs(pairs: list[Any], leaf: Leaf) -> list[tuple[Any, Any]]:
    return [(_decode(key, leaf), _decode(item, leaf)) for key, item in pairs]


def _rebuild_ordered(tree: dict[str, Any], leaf: Leaf) -> Any:  # noqa: ANN401
    value = OrderedDict(_pairs(tree["!ordered"], leaf))
    if "metadata" in tree:
        value._metadata = _decode(tree["metadata"], leaf)  # type: ignore[attr-defined]
    return value


def _rebuild_defaultdict(tree: dict[str, Any], leaf: Leaf) -> Any:  # noqa: ANN401
    factory = tree["factory"]
    return defaultdict(_FACTORIES[factory] if factory else None, _pairs(tree["!defaultdict"], leaf))


def _rebuild_sparse(tree: dict[str, Any], leaf: Leaf) -> Any:  # noqa: ANN401
    import torch

    parts = {name: _decode(part, leaf) for name, part in tree["parts"].items()}
    if tree["!sparse"] == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], tree["shape"], is_coalesced=tree["coalesced"], check_invariants=True
        )
    if tree["!sparse"] not in _LAYOUTS:
        raise KeyError(tree["!sparse"])
    return torch.sparse_compressed_tensor(
        parts["outer"],
        parts["inner"],
        parts["values"],
        tree["shape"],
        layout=getattr(torch, tree["!sparse"]),
        check_invariants=True,
    )


def _rebuild_array(tree: dict[str, Any], leaf: Leaf) -> Any:  # noqa: ANN401
    import numpy as np

    dtype, value = _numpy_dtype(tree["dtype"]), leaf(tree["!array"])
    if hasattr(value, "detach"):  # a reader that has torch gives tensors; NumPy lacks some of their dtypes
        import torch

        value = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    # A scalar's worth of bytes has no dimension: reshape() gives it the one that was saved.
    return np.frombuffer(raw.tobytes(), dtype=dtype).reshape(tree["shape"]).copy()


def _rebuild_scalar(tree: dict[str, Any], _leaf: Leaf) -> Any:  # noqa: ANN401
    import numpy as np

    return np.frombuffer(base64.b64decode(tree["bytes"]), dtype=_numpy_dtype(tree["!scalar"]))[0]


def _numpy_dtype(name: str) -> Any:  # noqa: ANN401
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and the like are known to NumPy once this package has been loaded
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _torch_dtype(tree: dict[str, Any], _leaf: Leaf) -> Any:  # noqa: ANN401
    import torch

    dtype = getattr(torch, tree["!dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{tree['!dtype']} is no dtype")
    return dtype


def _torch_device(tree: dict[str, Any], _leaf: Leaf) -> Any:  # noqa: ANN401
    import torch

    return torch.device(tree["!device"])


def _torch_size(tree: dict[str, Any], _leaf: Leaf) -> Any:  # noqa: ANN401
    import torch

    return torch.Size(tree["!size"])


_DECODERS: dict[str, Callable[[dict[str, Any], Leaf], Any]] = {
    "!tensor": lambda tree, leaf: leaf(tree["!tensor"]),
    "!sparse": _rebuild_sparse,
    "!array": _rebuild_array,
    "!scalar": _rebuild_scalar,
    "!float": lambda tree, _leaf: float(tree["!float"]),
    "!complex": lambda tree, leaf: complex(*_decode(tree["!complex"], leaf)),
    "!bytes": lambda tree, _leaf: base64.b64decode(tree["!bytes"]),
    "!bytearray": lambda tree, _leaf: bytearray(base64.b64decode(tree["!bytearray"])),
    "!tuple": lambda tree, leaf: tuple(_decode(tree["!tuple"], leaf)),
    "!set": lambda tree, leaf: set(_decode(tree["!set"], leaf)),
    "!frozenset": lambda tree, leaf: frozenset(_decode(tree["!frozenset"], leaf)),
    "!dict": lambda tree, leaf: dict(_pairs(tree["!dict"], leaf)),
    "!ordered": _rebuild_ordered,
    "!counter": lambda tree, leaf: Counter(dict(_pairs(tree["!counter"], leaf))),
    "!defaultdict": _rebuild_defaultdict,
    "!dtype": _torch_dtype,
    "!device": _torch_device,
    "!size": _torch_size,
}
