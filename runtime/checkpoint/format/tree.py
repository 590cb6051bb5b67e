"""Flatten state into tagged JSON and a table of tensors, so that loading executes no code; rebuild.py is the inverse.

    flatten({"w": tensor, "lr": (0.1, 2)}, "model")  ->  {"w": {"!tensor": "model/w"}, "lr": {"!tuple": [0.1, 2]}},
                                                         {"model/w": tensor}

JSON values are kept; everything else is an object whose first key is a tag. The key of a tensor is the path to it, with
parts joined by "/" ("~0" and "~1" stand for "~" and "/" within a part, as in JSON Pointer, RFC 6901). Tied tensors are
one leaf, overlapping ones are views of one leaf (shared_memory.py), and a list or dict that occurs twice is saved once.
Nothing is copied: leaves are the live tensors. CheckpointError is raised for an object that could not be rebuilt
without executing code; its message names the object's path.

torch and NumPy are used only if the program has imported them.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import CheckpointError
from .manifest import ITEM_SIZE
from .shared_memory import Record, link_views

FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
"""Allowed default factories of a defaultdict."""
_EXACT = frozenset((type(None), bool, str))
"""Types whose values are all unchanged by a JSON round trip."""
_LARGE = 10**600
"""Integers from this magnitude on are saved in hexadecimal: Python may be set to reject more than 640 decimal digits
(sys.set_int_max_str_digits)."""
_DEEPEST = 200
"""Maximum nesting of containers; each level takes several calls, and Python's recursion limit is 1,000."""
_IMMUTABLE = frozenset((tuple, frozenset))
"""Containers that are saved again at each place where they occur, as their identity does not matter."""
_KNOWN: set[Any] = set()
"""Cache of torch.dtypes that can be saved, because formatting a dtype's name takes time."""
SPARSE_LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def flatten(value: object, where: str) -> tuple[Any, dict[str, Any]]:  # any state
    """Return the JSON-serializable tree, and the leaves (tensors, arrays) by key; each key begins with `where`.

    Raises CheckpointError, which names the path, for an object that cannot be saved.
    """
    flattening = _Flattening()
    tree = flattening.encode(value, where)
    link_views(flattening.at, flattening.leaves)
    return tree, flattening.leaves


class _Flattening:
    def __init__(self) -> None:
        self.leaves: dict[str, Any] = {}
        self.at: dict[int, list[tuple[Record, Any]]] = {}
        """Tensors and their records in the tree, by address."""
        self._numbers: dict[int, int] = {}
        """Numbers of mutable containers by id, in the order in which they are entered, as in rebuild.py."""
        self._depth = 0
        self._torch: Any = sys.modules.get("torch")
        self._numpy: Any = sys.modules.get("numpy")
        self._plain_tensors = {self._torch.Tensor, self._torch.nn.Parameter} if self._torch else frozenset()
        self._strided = self._torch.strided if self._torch else None

    def encode(self, value: Any, path: str) -> Any:  # one return per kind
        kind = type(value)
        if kind in self._plain_tensors:  # the most frequent kind first
            return self._tensor(value, path)
        if kind in _EXACT:
            return value
        if kind is int:
            return value if -_LARGE < value < _LARGE else {"!int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"!float": repr(value)}
        if encode := _CONTAINERS.get(kind):
            return self._container(encode, value, path)
        encode = _ENCODERS.get(kind)
        return encode(self, value, path) if encode else self._other(value, path)

    # Containers

    def _container(self, encode: _Encode, value: object, path: str) -> Any:
        """Encode a container; a mutable container that was encoded before becomes a reference by number."""
        if type(value) not in _IMMUTABLE:
            number = self._numbers.get(id(value))
            if number is not None:
                return {"!same": number}
            self._numbers[id(value)] = len(self._numbers)
        if self._depth == _DEEPEST:
            raise CheckpointError(
                f"{path:.80}… lies {_DEEPEST} levels deep, which cannot be saved: keep it in flat lists or dicts"
            )
        self._depth += 1
        encoded = encode(self, value, path)
        self._depth -= 1
        return encoded

    def mapping(self, value: dict[Any, Any], path: str) -> Any:
        for key in value:
            if type(key) is not str or key[:1] == "!":
                return {"!dict": self.pairs(value, path)}
        encoded: dict[str, Any] = {}
        for key, item in value.items():  # a comprehension would add a call per level
            encoded[key] = self.encode(item, join(path, key))
        return encoded

    def pairs(self, value: dict[object, object], path: str) -> list[Any]:
        pairs = []
        for key, item in value.items():
            if self._torch and isinstance(key, self._torch.Tensor):
                raise CheckpointError(f"{path} has a tensor as a key, which cannot be saved: use a name or a number")
            pairs.append([self.encode(key, path), self.encode(item, join(path, _text_of(key)))])
        return pairs

    def items(self, value: Iterable[Any], path: str) -> list[Any]:
        items = list(value)
        kinds = set(map(type, items))
        if kinds <= _EXACT or (kinds == {float} and all(map(math.isfinite, items))):  # e.g. a long list of losses
            return items
        if kinds == {int} and -_LARGE < min(items) <= max(items) < _LARGE:
            return items
        for number, item in enumerate(items):
            items[number] = self.encode(item, f"{path}/{number}")
        return items

    # Leaves

    def add(self, leaf: object, path: str) -> str:
        """Add a leaf and return its key: its path, with a suffix if that is taken (keys 0 and "0" of one dict)."""
        key, number = path, 2
        while key in self.leaves:
            key, number = f"{path}~{number}", number + 1
        self.leaves[key] = leaf
        return key

    def _tensor(self, value: Any, path: str) -> Record:
        if value.layout is not self._strided:
            return self._sparse(value, path)
        if value.is_nested:
            raise CheckpointError(f"{path} is a nested tensor, which cannot be saved: keep the tensors it is made of")
        if value.dtype not in _KNOWN and not _is_known(value.dtype):
            raise CheckpointError(f"{path} is a tensor of {value.dtype}, which cannot be saved: dequantise it first")
        address = value.data_ptr()
        if not address:
            if value.numel():
                raise CheckpointError(f"{path} is a tensor on {value.device.type!r} that holds no data yet")
            return {"!tensor": self.add(value, path)}
        shared = self.at.setdefault(address, [])
        for record, other in shared:
            if _same_memory(value, other):
                return record
        record = {"!tensor": self.add(value, path)}
        shared.append((record, value))
        return record

    def _sparse(self, value: Any, path: str) -> dict[str, Any]:
        layout = str(value.layout)[6:]
        if layout not in SPARSE_LAYOUTS:
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

    def _other(self, value: object, path: str) -> Any:
        if self._torch and isinstance(value, self._torch.Tensor):
            return self._tensor_subclass(value, path)
        if self._numpy and isinstance(value, self._numpy.ndarray | self._numpy.generic):
            generic = isinstance(value, self._numpy.generic)
            return self._array(value, path) if generic else self._container(_Flattening._array, value, path)
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

    def _tensor_subclass(self, value: Any, path: str) -> dict[str, Any]:
        """Encode a DTensor by its local part, and a subclass that only adds methods as a plain tensor.

        Raises CheckpointError for other subclasses.
        """
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

    def _array(self, value: Any, path: str) -> dict[str, Any]:
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
        order = {"order": "F"} if value.flags.fnc else {}
        memory = value.T if order else value
        leaf = memory if known else np.frombuffer(memory.tobytes(), dtype=np.uint8)
        return {"!array": self.add(leaf, path), "dtype": name, "shape": list(value.shape), **order}


def _is_known(dtype: object) -> bool:
    if str(dtype)[6:] in ITEM_SIZE:
        _KNOWN.add(dtype)
    return dtype in _KNOWN


def _ordered(flattening: _Flattening, value: Any, path: str) -> dict[str, Any]:
    record: dict[str, Any] = {"!ordered": flattening.pairs(value, path)}
    if metadata := getattr(value, "_metadata", None):  # holds the versions of torch.nn.Module's states
        record["metadata"] = flattening.encode(metadata, f"{path}/_metadata")
    return record


def _defaultdict(flattening: _Flattening, value: Any, path: str) -> dict[str, Any]:
    factory = value.default_factory
    if factory is not None and FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise CheckpointError(f"{path} is a defaultdict whose factory is code of its own: save it as a dict")
    return {"!defaultdict": flattening.pairs(value, path), "factory": factory.__name__ if factory else None}


_Encode = Callable[[_Flattening, Any, str], Any]
_CONTAINERS: dict[type, _Encode] = {
    dict: _Flattening.mapping,
    list: _Flattening.items,
    tuple: lambda flattening, value, path: {"!tuple": flattening.items(value, path)},
    set: lambda flattening, value, path: {"!set": flattening.items(value, path)},
    frozenset: lambda flattening, value, path: {"!frozenset": flattening.items(value, path)},
    bytearray: lambda _flattening, value, _path: {"!bytearray": _to_text(value)},
    Counter: lambda flattening, value, path: {"!counter": flattening.pairs(value, path)},
    OrderedDict: _ordered,
    defaultdict: _defaultdict,
}
_ENCODERS: dict[type, _Encode] = {
    complex: lambda flattening, value, path: {
        "!complex": [flattening.encode(value.real, path), flattening.encode(value.imag, path)]
    },
    bytes: lambda _flattening, value, _path: {"!bytes": _to_text(value)},
}


def _same_memory(a: Any, b: Any) -> bool:
    """Return whether two tensors at the same address are views of the same elements in the same order."""
    return bool(
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.stride() == b.stride()
        and a.device == b.device
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def join(path: str, part: str) -> str:
    """Return the path of a part of the value at a path."""
    if "/" in part or "~" in part:
        part = part.replace("~", "~0").replace("/", "~1")
    return f"{path}/{part}" if path else part


def _text_of(key: object) -> str:
    """Return the text of a key that is not a string, for a path."""
    try:
        return str(key)
    except ValueError:  # an integer with more digits than Python converts
        return _name(type(key))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()
