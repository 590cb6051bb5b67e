"""Compute digests of a program's unsaved state: variables, and generators, models and optimizers not in checkpoints.

The search covers the globals of the program's modules, the local variables of its active functions, and the objects
that they refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import xxhash

from ..attach.program.frame_inspection import Code
from .trace import PROGRAM_STATE
from .values import Walk, is_generator

_REACHED = 2000
"""Maximum number of objects to search for generators that saved objects refer to."""
_ENTRIES = 64
"""Maximum number of entries of a container to search."""


class ProgramState:
    """The state of one program that is not in its checkpoints."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def digests(self, saved: Iterable[object], kinds: frozenset[str] | None = None) -> dict[str, str]:
        """Return a digest of each field by "held/<kind> <name>".

        saved: the objects in a checkpoint, and the loader
        kinds: kinds of objects to include, see values.kind_of(); None: all
        """
        names = {name for name, _ in self._code.modules()}
        walk = Walk(lambda kind: kind.__module__ in names, saved_parts(saved), kinds)
        found: dict[str, Any] = {}
        for path, variables in self._spaces():
            for name, value in variables.items():
                for kind, field, data in walk.fields(value, f"{path}.{name}"):
                    found.setdefault(f"{PROGRAM_STATE}{kind} {field}", xxhash.xxh3_128()).update(data)
        return {key: value.hexdigest()[:16] for key, value in found.items()}

    def _spaces(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, variables in self._code.modules():
            yield name, {key: value for key, value in variables.items() if not key.startswith("__")}
        for frame in self._code.frames():
            if not frame.f_code.co_name.startswith("<"):
                yield f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}()", dict(frame.f_locals)


def saved_parts(saved: Iterable[Any]) -> set[int]:
    """Return the ids of the saved objects, of their modules, and of the generators reachable from them.

    A loader's generators are saved with its position, and those of an object by its state_dict().
    """
    waiting, seen, found = [one for one in saved if one is not None], set[int](), set[int]()
    for one in waiting:
        modules = one.modules() if callable(getattr(one, "modules", None)) else ()
        found.update(map(id, [one, getattr(one, "module", one), *modules]))
    while waiting and len(seen) < _REACHED:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_generator(value):
            found.add(id(value))
        waiting += _referred(value)
    return found


def _referred(value: object) -> list[Any]:
    """Return the objects to which an object refers: its attributes, and the items of a small container."""
    items = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, dict | list | tuple) and len(value) <= _ENTRIES:
        items += value.values() if isinstance(value, dict) else value
    return [item for item in items if not isinstance(item, str | int | float | type) and not hasattr(item, "dtype")]
