"""State as bytes and back, so that loading executes nothing.

`to_host` copies a state_dict to memory of our own: what training does next cannot change it. `to_bytes` writes it in
torch's format, `from_bytes` reads it with `weights_only=True`, which builds tensors and plain containers and refuses
everything else. What could not be read back that way is refused when it is saved, by name.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from typing import Any

from .errors import CheckpointError

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, set)
_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
_NUMPY = "__cloudgpu_numpy__"


def to_host(value: Any, where: str) -> Any:  # noqa: ANN401 - any state
    """A deep copy in host memory; raises CheckpointError naming the place of what cannot be saved."""
    import torch

    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.dtype | torch.device | torch.Size):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if kind in _MAPPINGS:
        return _mapping_to_host(value, where)
    if kind in _SEQUENCES:
        return kind(to_host(item, f"{where}[{i}]") for i, item in enumerate(value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _numpy_to_host(value, where)
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved so that loading it executes no "
        "code: keep tensors, NumPy arrays, numbers, text, lists, tuples, sets and dicts of them"
    )


def _mapping_to_host(value: Any, where: str) -> Any:  # noqa: ANN401
    items = {to_host(key, f"a key of {where}"): to_host(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) is Counter:
        return Counter(items)
    if type(value) is not OrderedDict:
        return items
    ordered = OrderedDict(items)
    if hasattr(value, "_metadata"):  # how torch.nn.Module tells its versions apart
        ordered._metadata = to_host(value._metadata, where)  # type: ignore[attr-defined]
    return ordered


def _numpy_to_host(value: Any, where: str) -> Any:  # noqa: ANN401
    import numpy as np
    import torch

    if value.dtype.hasobject:
        raise CheckpointError(f"{where} is a NumPy array of Python objects: save it as lists, or as numbers")
    raw = torch.from_numpy(np.frombuffer(value.tobytes(), dtype=np.uint8).copy())
    scalar = isinstance(value, np.generic)
    return {_NUMPY: np.dtype(value.dtype).str, "shape": list(value.shape), "scalar": scalar, "bytes": raw}


def _from_host(value: Any) -> Any:  # noqa: ANN401
    """The NumPy values again; everything else as it is."""
    kind = type(value)
    if kind in _SEQUENCES:
        return kind(_from_host(item) for item in value)
    if kind not in _MAPPINGS:
        return value
    if _NUMPY in value:
        import numpy as np

        array = np.frombuffer(value["bytes"].numpy().tobytes(), dtype=value[_NUMPY]).reshape(value["shape"]).copy()
        return array[()] if value["scalar"] else array
    for key in value:
        value[key] = _from_host(value[key])
    return value


def to_bytes(state: Any) -> bytes:  # noqa: ANN401
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:  # noqa: ANN401
    """Raises ValueError if the bytes are no state that `to_bytes` wrote."""
    import io

    import torch

    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler fed with rubbish may raise anything
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"not a state this version can read: {first_line}") from error
    return _from_host(state)
