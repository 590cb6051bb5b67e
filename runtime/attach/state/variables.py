"""Saving and restoring of the program's variables that have changed since training began.

Unchanged variables are left to the program, which sets them again when a resumed run starts from its first line. They
are restored only if code that runs again on the way to the training loop has changed them.
"""

from __future__ import annotations

import functools
import marshal
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import xxhash

from ...checkpoint.errors import CheckpointError
from ..program.frame_inspection import Code
from . import values
from .graph import CONTAINERS, Graph, Record, Space, attributes_of, dict_type, is_array, spaces
from .opaque_objects import set_generator

Digests = dict[str, dict[str, str]]
_WHOLE = ""
"""Key in Digests for an object's content besides its attributes, such as a list's items."""
_KIND = " "
"""Key in Digests for the kind of an object: if it differs, the object was replaced."""


class UnsavableError(CheckpointError):
    """State that cannot be saved has changed, so that a checkpoint would be incomplete."""

    code = None


class Variables:
    """The variables of one program.

    roots  returns the objects that are saved by their state_dict(), such as models and optimizers, by name
    """

    def __init__(self, code: Code, roots: Callable[[], Mapping[str, object]] = dict) -> None:
        self._code, self._roots = code, roots
        self._before: Digests | None = None
        """Digests when training began."""
        self._restored: set[tuple[str, str]] = set()
        """Attributes (path, name) restored from a checkpoint, which are saved from then on even if unchanged."""

    def graph(self, dead: frozenset[str] = frozenset()) -> Graph:
        """Return the current graph of objects. The program's functions must be on the caller's stack."""
        return Graph(self._code, spaces(self._code, dead), self._roots(), self._before)

    # Saving

    def begin(self) -> None:
        """Record the variables when training begins. Without this call, all variables count as changed."""
        self._before = None
        self._before = digests(self.graph())

    def unknown(self, graph: Graph) -> list[str]:
        """Return the objects whose changes cannot be detected, as "name (type)"."""
        return sorted(
            f"{path} ({record['type']})"
            for path, record in graph.records.items()
            if record["kind"] == "opaque" and not record["quiet"] and record["digest"] is None
        )

    def left_out(self, graph: Graph) -> list[str]:
        """Return the handles and displays created since begin(), which are not saved, as "name (type)"."""
        return sorted(
            f"{path} ({record['type']})"
            for path, record in graph.records.items()
            if record["kind"] == "opaque" and record["quiet"] and path not in (self._before or {})
        )

    def state_dict(self, graph: Graph | None = None, *, strict: bool = True) -> dict[str, Any]:
        """Return the changes since begin() ("changed"), and the unchanged attributes of basic types ("same").

        strict  raise UnsavableError if a part cannot be saved; otherwise leave that part out
        """
        graph = graph or self.graph()
        before = self._before or {}
        changed: dict[str, Record] = {}
        same: dict[str, dict[str, Any]] = {}
        for path, record in graph.records.items():
            now, known = _digests_of(record), before.get(path)
            if replaced := known is not None and known[_KIND] != now[_KIND]:
                known = None
            names = {
                name
                for name, digest in now.items()
                if known is None or known.get(name) != digest or (path, name) in self._restored
            }
            if record["kind"] == "opaque":
                if strict and record.get("under_way"):
                    raise UnsavableError(f"{path} is a generator that is under way, and its place cannot be saved")
                if strict and names and (replaced or not record["quiet"]) and not (known and record["digest"] is None):
                    raise UnsavableError(_why_not(path, record, new=known is None))
                continue
            gone = [name for name in known or {} if name not in now and name != _WHOLE]
            if strict and known is None:
                _check_makable(path, record, graph.values[path])
            if names or gone:
                changed[path] = _part(record, names, gone)
            if plain := {n: v for n, v in record.get("names", {}).items() if n not in names and _is_text(v)}:
                same[path] = plain
        if strict:
            _check_references(changed, before, graph)
        return {"changed": changed, "same": same}

    # Restoring

    def load_state_dict(self, state: Mapping[str, Any], since: Digests | None = None) -> None:
        """Restore the changed variables. Raises CheckpointError if the program lacks an object of the checkpoint.

        since  digests taken before the program's loops were fast-forwarded; attributes that were unchanged in the
               checkpoint are restored too if their digests differ from these
        """
        graph = self.graph()
        now = digests(graph)
        restore = Restore(graph, state["changed"])
        restore.run()
        for path, names in state["same"].items():
            touched = {
                name: value
                for name, value in names.items()
                if since is not None and now.get(path, {}).get(name) != since.get(path, {}).get(name)
            }
            if path in graph.values:
                restore.assign(graph.values[path], touched)
        if self._before is None:
            self._before = now
        for path, record in state["changed"].items():
            self._restored.update(
                (path, name) for name in (*record.get("names", {}), *([_WHOLE] if _has_whole(record) else []))
            )

    def load_present(self, state: Mapping[str, Any]) -> None:
        """Restore the objects that exist already, except containers with items that do not exist yet."""
        graph = self.graph()
        present = {
            path: record
            for path, record in state["changed"].items()
            if path in graph.values
            and _kind(graph.records[path]) == _kind(record)
            and all(inner in graph.values for inner in _references([record.get("items"), record.get("factory")]))
        }
        Restore(graph, present).run()


def digests(graph: Graph) -> Digests:
    """Return a digest of each attribute of each object, by path and name, with _WHOLE and _KIND as further names."""
    return {path: _digests_of(record) for path, record in graph.records.items()}


def _digests_of(record: Record) -> dict[str, str]:
    found = {name: _digest(value) for name, value in record.get("names", {}).items()}
    found[_KIND] = repr(_kind(record))
    if _has_whole(record) or len(found) == 1:
        found[_WHOLE] = _digest({key: value for key, value in record.items() if key != "names"})
    return found


def _kind(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(key) for key in ("kind", "class", "parameter", "most"))


def _has_whole(record: Record) -> bool:
    """Return whether an object has content besides attributes."""
    return record["kind"] not in ("object", "state")


def _digest(value: object) -> str:
    digest = xxhash.xxh3_128()
    digest.update(marshal.dumps(_without_arrays(value, digest), 2))
    return digest.hexdigest()


def _without_arrays(value: Any, digest: Any) -> Any:
    """Return a value with each array replaced by its dtype and shape; add the arrays' data to the digest."""
    if isinstance(value, dict):
        return {key: _without_arrays(item, digest) for key, item in value.items()}
    if not is_array(value):
        return value
    kind = f"{value.dtype} {tuple(value.shape)} {getattr(value, 'device', '')}"
    if hasattr(value, "detach"):
        import torch

        if value.layout is not torch.strided or value.is_meta or hasattr(value, "placements"):
            return f"{kind} {id(value)} {value._version}"
        value = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    digest.update(value.tobytes() if not value.flags.c_contiguous else value.data)
    return kind


def _is_text(value: object) -> bool:
    return type(value) in values.EXACT


def _part(record: Record, names: set[str], gone: list[str]) -> Record:
    """Return a record with only the attributes `names`, and the removed attributes as `gone`."""
    kept = {key: value for key, value in record.items() if key != "names"}
    if "names" in record:
        kept["names"] = {name: value for name, value in record["names"].items() if name in names}
        kept["gone"] = gone
    return kept


def _why_not(path: str, record: Record, *, new: bool) -> str:
    if new:
        return f"{path} is a {record['type']} made while training: a resume could not make it again"
    return f"{path} ({record['type']}) has changed, and an object of a library cannot be saved without its own code"


def _check_makable(path: str, record: Record, value: object) -> None:
    """Raise UnsavableError for a new object that a resume could not recreate."""
    if isinstance(value, Space | types.MethodType) or record["kind"] in {"tensor", "array"}:
        return
    if type(value) in CONTAINERS or (
        record.get("class") and isinstance(value, object) and _is_plain_class(type(value))
    ):
        return
    if isinstance(value, type | types.FunctionType) and values.code_path(value) is not None:
        return
    kind = "function" if isinstance(value, types.FunctionType) else type(value).__qualname__
    raise UnsavableError(f"{path} is a {kind} made while training: a resume could not make it again")


def _check_references(changed: Mapping[str, Record], before: Digests, graph: Graph) -> None:
    """Raise UnsavableError if a saved object refers to an object that a resume would not find.

    A variable or attribute that refers to a handle or display (is_quiet()) is left out, but an item of a container
    cannot be left out.
    """
    for path, record in changed.items():
        held = [(inner, True) for inner in _references([record.get("items"), record.get("factory")])]
        held += [(inner, False) for inner in _references(list(record.get("names", {}).values()))]
        for inner, is_item in held:
            found = graph.records[inner]
            if inner not in changed and inner not in before and (is_item or not found.get("quiet")):
                raise UnsavableError(f"{path} holds {inner} ({found.get('type', found['kind'])}), which is not saved")


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        ((tag, data),) = value.items()
        yield from [data] if tag == "ref" else _references(data)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _is_plain_class(kind: type) -> bool:
    """Return whether an object of a class can be created without running the class's code."""
    return not isinstance(getattr(kind, "__new__", None), types.FunctionType) and not any(
        base.__module__.startswith("torch.nn") for base in kind.__mro__
    )


class Restore:
    """Restore of a checkpoint's records into the objects of a graph; missing objects are created."""

    def __init__(self, graph: Graph, records: Mapping[str, Record]) -> None:
        self._live, self._records = graph.values, records
        self._made: dict[str, Any] = {}
        for path, record in records.items():
            live = graph.records.get(path)
            if live is None or _kind(live) != _kind(record) or not _fits(live, record):
                self._make(path, record)
        self._holders = dict(_holders(graph.records, set(self._made) & set(self._live)))

    def run(self) -> None:
        for records in (self._holders, self._records):
            for path, record in records.items():
                self._fill(self._find(path), record)

    def assign(self, owner: object, names: Mapping[str, object]) -> None:
        for name, value in names.items():
            try:
                _set(owner, name, values.decode(value, self._find))
            except _MissingError:
                continue  # a handle or display that the program creates itself

    def _find(self, path: str) -> Any:
        if path in self._made:
            return self._made[path]
        if path in self._live:
            return self._live[path]
        raise _MissingError(path)

    def _make(self, path: str, record: Record) -> None:
        kind = record["kind"]
        if kind in {"tensor", "array"}:
            self._made[path] = _new_array(record)
        elif kind in CONTAINERS.values() or kind == "object":
            made = values.find_code(record["class"]) if record.get("class") else None
            if not isinstance(made, type):
                raise CheckpointError(
                    f"the checkpoint has variables of {path}, which the program has not reached by now: it is not the "
                    "one that was saved. Use that one, or use another folder to start over"
                )
            new: Any = made.__new__
            self._made[path] = new(made)
            if kind == "deque":
                deque.__init__(self._made[path], (), record["most"])

    def _fill(self, live: Any, record: Record) -> None:
        kind = record["kind"]
        if kind in {"tensor", "array"}:
            _copy_into(live, record)
        if record.get("requires_grad") is not None and live.requires_grad != record["requires_grad"] and live.is_leaf:
            live.requires_grad_(record["requires_grad"])
        if kind == "generator":
            set_generator(live, record["state"])
        if kind in CONTAINERS.values():
            self._fill_container(live, record)
        for name in record.get("gone", ()):
            _remove(live, name)
        self.assign(live, record.get("names", {}))

    def _fill_container(self, live: Any, record: Record) -> None:
        kind, items = record["kind"], record["items"]
        if kind == "bytearray":
            live[:] = items
            return
        back = functools.partial(values.decode, find=self._find)
        base: Any
        if kind == "dict":
            if record.get("factory") is not None:
                live.default_factory = back(record["factory"])
            pairs = [(back(key), back(item)) for key, item in items]
            base = dict_type(live)
            base.clear(live)
            for key, item in pairs:
                base.__setitem__(live, key, item)
            return
        items = [back(item) for item in items]
        base = {"list": list, "set": set}.get(kind, deque)
        base.clear(live)
        (base.update if kind == "set" else base.extend)(live, items)


class _MissingError(CheckpointError):
    def __init__(self, path: str) -> None:
        super().__init__(f"the checkpoint refers to {path}, which the program has not made by now")


def _fits(live: Record, saved: Record) -> bool:
    if "value" not in saved:
        return True
    a, b = live["value"], saved["value"]
    return bool(a.shape == b.shape and a.dtype == b.dtype)


def _holders(records: Mapping[str, Record], replaced: set[str]) -> Iterator[tuple[str, Record]]:
    """Yield path and record of each object that refers to a replaced object, with only the referring attributes."""
    for path, record in records.items():
        if not replaced or path in replaced or record["kind"] in {"tensor", "array", "generator", "opaque"}:
            continue
        values_of = record.get("names", {}).items()
        names = {name: value for name, value in values_of if not replaced.isdisjoint(_references(value))}
        holds = not replaced.isdisjoint(_references([record.get("items"), record.get("factory")]))
        if holds or names:
            yield path, {**record, "kind": record["kind"] if holds else "object", "names": names}


def _new_array(record: Record) -> Any:
    value = record["value"]
    if record["kind"] == "array":
        return value.copy()
    import torch

    new = value.clone().to(record["device"])
    return torch.nn.Parameter(new, requires_grad=record["requires_grad"]) if record["parameter"] else new


def _copy_into(live: Any, record: Record) -> None:
    if record["kind"] == "array":
        if not live.flags.writeable:
            live.flags.writeable = True
        live[...] = record["value"]
        return
    live.detach().copy_(record["value"])


def _set(owner: object, name: str, value: object) -> None:
    if isinstance(owner, Space):
        owner.assign(name, value)
    elif isinstance(owner, types.FunctionType):
        _set_of_function(owner, name, value)
    elif isinstance(owner, type):
        type.__setattr__(owner, name, value)
    elif not isinstance(owner, types.MethodType):
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict) and not hasattr(type(owner), name):
            attributes[name] = value
        else:
            object.__setattr__(owner, name, value)


def _set_of_function(function: types.FunctionType, name: str, value: object) -> None:
    kind, _, rest = name.partition(" ")
    if kind == "cell" and rest:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cells[rest].cell_contents = value
    elif not rest:
        setattr(function, name, value)


def _remove(owner: object, name: str) -> None:
    """Remove an attribute of an object; a no-op for variables of modules and functions."""
    if not isinstance(owner, Space | types.FunctionType) and name in attributes_of(owner):
        object.__delattr__(owner, name)
