"""State of the program's samplers before they draw the order of an epoch.

A custom sampler may shuffle a list in place, or count its epochs. A resume in the middle of an epoch draws the order
again, so it restores the sampler's state at the start of the epoch for the draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...checkpoint.data import loaders
from ..program.frame_inspection import Code
from .graph import Graph, Record
from .variables import Restore, UnsavableError, digests

_MOST = 16 << 20
"""Maximum size of an array that is copied, in bytes."""


class SamplerSnapshot:
    """Snapshot of a loader's samplers, and of its dataset if the dataset decides the order."""

    def __init__(self, code: Code, loader: object) -> None:
        self._code, self._loader = code, loader
        graph = _graph(code, loader)
        self._digests = digests(graph)
        self._records = {path: _copy(record) for path, record in graph.records.items()}

    def changed(self) -> dict[str, Record]:
        """Return the records, from the snapshot, of the objects that have changed since.

        Raises UnsavableError if an array among them was too large to copy.
        """
        now = digests(_graph(self._code, self._loader))
        found = {
            path: record
            for path, record in self._records.items()
            if now.get(path) != self._digests[path] and record["kind"] != "opaque"
        }
        for path, record in found.items():
            if "value" in record and record["value"] is None:
                raise UnsavableError(f"{path} is changed by drawing the order, and has more than {_MOST >> 20} MiB")
        return found


@contextmanager
def restored(code: Code, loader: object, records: Mapping[str, Record]) -> Iterator[None]:
    """Context manager that restores the records from changed() for its body, and the current state afterwards."""
    graph = _graph(code, loader)
    now = {}
    for path, record in records.items():
        if path in graph.records:
            live = _copy(graph.records[path], most=None)
            gone = [name for name in record.get("names", {}) if name not in live.get("names", {})]
            now[path] = {**live, "gone": gone}
    Restore(graph, records).run()
    yield
    Restore(graph, now).run()


def _graph(code: Code, loader: object) -> Graph:
    own = (one for one in loaders.drawn_from(loader) if not type(one).__module__.startswith("torch."))
    return Graph(code, {f"sampler {number}": one for number, one in enumerate(own)})


def _copy(record: Record, most: int | None = _MOST) -> Record:
    if "value" not in record:
        return record
    value = record["value"]
    copy = value.clone if hasattr(value, "clone") else value.copy
    return {**record, "value": copy() if most is None or value.nbytes <= most else None}
