"""Flatten values into fields, to compare two runs field by field.

    {"loss": [0.5, 0.25], "rows": [{"t": 1.5}, {"t": 2.5}]}   ->   ["loss"]: [0.5, 0.25]   ["rows"][*]["t"]: 1.5, 2.5

The items of a list share their fields: if the seconds in one row vary from run to run, they may vary in every row.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

DEPTH = 12
"""Maximum nesting of values to search."""
LARGEST = 1 << 24
"""Maximum elements of a tensor or array to compare; a larger one is regarded as input data and ignored."""
_KEYS = 512
"""Maximum keys of a dict that have separate fields; those of a larger dict share one field."""
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_KINDS = {"nn.modules.module.Module": "model", "optim.optimizer.Optimizer": "optimizer"} | {
    f"optim.lr_scheduler.{name}": "scheduler" for name in ("LRScheduler", "ReduceLROnPlateau")
}
_SCALER = "amp.grad_scaler.GradScaler"

Field = tuple[str, str, bytes]
"""Kind ("variable", "generator", "model" …), name, and content of a field."""


class Walk:
    """Traversal of values, which yields their fields.

    is_own  returns whether a class belongs to the program, so that attributes of its objects are included
    saved   ids of objects whose state is skipped
    kinds   kinds of objects whose state is included, see kind_of(); None: all
    """

    def __init__(
        self,
        is_own: Callable[[type], bool] = lambda _: False,
        saved: Iterable[int] = (),
        kinds: frozenset[str] | None = None,
    ) -> None:
        self._is_own, self._saved, self._kinds = is_own, frozenset(saved), kinds
        self._above: list[int] = []
        """Ids of the containers and objects that enclose the current value."""
        self._named: set[int] = set()
        """Ids of models, optimizers and generators that have been visited: each is included once."""

    def fields(self, value: object, name: str) -> Iterator[Field]:
        """Yield the fields of a value; none for a value of an unknown kind."""
        if isinstance(value, _SCALARS):
            yield "variable", name, repr(value).encode()
        elif (data := bytes_of(value)) is not None:
            yield "variable", name, data
        elif id(value) not in self._above and len(self._above) < DEPTH:
            self._above.append(id(value))
            yield from self._inside(value, name)
            self._above.pop()

    def _inside(self, value: object, name: str) -> Iterator[Field]:
        if (kind := kind_of(value)) is not None:
            yield from self._state(kind, value, name)
            if kind == "model":
                yield from self._items(_attributes_of_module(value), name)
        elif id(value) in self._saved:
            return
        elif isinstance(value, Mapping):
            yield from self._dict(value, name)
        elif isinstance(value, tuple) and hasattr(value, "_asdict"):
            yield from self._items(value._asdict(), name)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            yield from self._list(value, name)
        if kind is None and self._is_own(value if isinstance(value, type) else type(value)):
            yield from self._items(_attributes(value), name)

    def _state(self, kind: str, value: Any, name: str) -> Iterator[Field]:
        if id(value) in self._saved | self._named or not (self._kinds is None or kind in self._kinds):
            return
        self._named.add(id(value))
        state = state_of(value) if kind == "generator" else value.state_dict()
        yield from ((kind, f"{name} ({type(value).__name__})", data) for _, _, data in self.fields(state, name))

    def _items(self, items: Mapping[str, object], name: str) -> Iterator[Field]:
        for key, item in items.items():
            yield from self.fields(item, f"{name}.{key}")

    def _dict(self, value: Mapping[object, object], name: str) -> Iterator[Field]:
        for key, item in list(value.items()):
            one = isinstance(key, _SCALARS) and len(value) <= _KEYS
            yield from self.fields(item, f"{name}[{key!r}]" if one else f"{name}[*]")
        yield "variable", name, repr([key for key in value if isinstance(key, _SCALARS)]).encode()

    def _list(self, value: Iterable[object], name: str) -> Iterator[Field]:
        items = list(value)
        if all(isinstance(item, _SCALARS) for item in items):
            ordered = items if isinstance(value, list | tuple | deque) else sorted(items, key=repr)
            yield "variable", name, repr(ordered).encode()
            return
        for item in items:
            yield from self.fields(item, f"{name}[*]")
        yield "variable", name, str(len(items)).encode()


def bytes_of(value: object) -> bytes | None:
    """Return dtype, shape and content of a tensor or array as bytes; None for other values, or beyond LARGEST."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() > LARGEST or value.layout is not torch.strided or value.is_meta:
            return None
        local = value.to_local() if hasattr(value, "to_local") else value
        flat = local.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data: bytes = flat.numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} ".encode() + data
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        if value.dtype.hasobject or value.size > LARGEST:
            return None
        data = value.tobytes()
        return f"{value.dtype} {value.shape} ".encode() + data
    return None


def kind_of(value: object) -> str | None:
    """Return "model", "optimizer", "scheduler", "scaler" or "generator"; None for any other value."""
    if isinstance(value, type):
        return None
    if is_generator(value):
        return "generator"
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__)
    ours = [name.removeprefix("torch.") for name in names if name.startswith("torch.")]
    if _SCALER in ours:
        return "scaler"
    return next((_KINDS[name] for name in ours if name in _KINDS), None)


def is_generator(value: object) -> bool:
    """Return whether a value is a random number generator that has a state."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return kind in {"numpy.random._generator.Generator", "numpy.random.mtrand.RandomState", "torch._C.Generator"}


def state_of(generator: Any) -> Any:
    """Return the state of a random number generator."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an object, including slots; for a class, those that are not callable."""
    if isinstance(value, type):
        own = vars(value).items()
        return {name: item for name, item in own if not name.startswith("__") and not callable(item)}
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **found}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _attributes_of_module(model: Any) -> dict[str, Any]:
    """Return scalar attributes of a torch module and its submodules, such as dropout rates and `training`."""
    internal = vars(sys.modules["torch"].nn.Module()).keys() - {"training"}
    found = {}
    for path, part in model.named_modules():
        for name, item in vars(part).items():
            if name not in internal and isinstance(item, _SCALARS):
                found[f"{path}.{name}".removeprefix(".")] = item
    return found
