"""Progress of an update: engine events for the listener, and text.

Events are JSON, after pulumi/pulumi, sdk/go/common/apitype/events.go. They are sent over gRPC to `tcp://…`, as SDKs
since 3.205 request, or written to a file, one per line. Secrets are shown as [secret] in both.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from pulumi.runtime.proto import events_pb2, events_pb2_grpc

from .plugins import Difference
from .state import Resource, shown

_DONE = {
    "create": "created",
    "create-replacement": "created replacement",
    "update": "updated",
    "replace": "replaced",
    "delete": "deleted",
    "delete-replaced": "deleted original",
    "refresh": "refreshed",
    "read": "read",
    "same": "",
}
_PARTS = {"create-replacement", "delete-replaced", "refresh"}
"""Parts of a replacement, and refreshes: not counted."""
_SIGNS = {"create": "+ ", "create-replacement": "++", "update": "~ ", "replace": "+-", "delete": "- "}


class Events:
    """Events and text output of one update."""

    def __init__(self, target: str | None, *, planning: bool) -> None:
        self._planning = planning
        self._sink = _open(target)
        self._sequence = 0
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self.counts: Counter[str] = Counter()
        """Number of resources per operation, for the summary."""
        self.diagnostics: list[tuple[str, str]] = []
        """URN ("" for the stack) and message."""

    def prelude(self, config: dict[str, str]) -> None:
        self._send("preludeEvent", {"config": config})

    def before(self, op: str, old: Resource | None, new: Resource | None, difference: Difference | None = None) -> None:
        self._send("resourcePreEvent", self._step(op, old, new, difference))

    def after(self, op: str, old: Resource | None, new: Resource | None, difference: Difference | None = None) -> None:
        with self._lock:
            self.counts[op] += op not in _PARTS
        self._send("resOutputsEvent", self._step(op, old, new, difference))
        one = new or old
        assert one is not None
        if op != "same":
            done = f"{_DONE[op]} {'(preview)' if self._planning else ''}".strip()
            _say(f" {_SIGNS.get(op, '  ')}  {one.type} {one.name} {done}")

    def failed(self, op: str, old: Resource | None, new: Resource | None, text: str) -> None:
        one = new or old
        assert one is not None
        self.diagnostic(text, urn=one.urn)
        result = self._step(op, old, new, None)
        self._send("resOpFailedEvent", {**result, "status": 0, "steps": 0})

    def diagnostic(self, text: str, *, urn: str = "", severity: str = "error") -> None:
        with self._lock:
            self.diagnostics.append((urn, f"{severity}: {text}"))
        self._send(
            "diagnosticEvent",
            {"urn": urn, "prefix": f"{severity}: ", "message": f"{text}\n", "color": "raw", "severity": severity},
        )

    def summary(self, result: str) -> None:
        self._send(
            "summaryEvent",
            {
                "maybeCorrupt": False,
                "durationSeconds": int(time.monotonic() - self._begun),
                "resourceChanges": {op: count for op, count in self.counts.items() if count},
                "PolicyPacks": {},
                "result": result,
                "isPreview": self._planning,
            },
        )

    def close(self) -> None:
        self._send("cancelEvent", {})
        self._sink.close()

    def print_end(self, outputs: dict[str, Any]) -> None:
        """Print diagnostics, outputs and counts to standard output."""
        if self.diagnostics:
            _say("\nDiagnostics:")
            for urn, message in self.diagnostics:
                where = f"{urn.split('::')[2].split('$')[-1]} ({urn.split('::', 3)[3]})" if urn else "update"
                _say(f"  {where}:\n    " + message.replace("\n", "\n    "))
        if outputs:
            _say("\nOutputs:")
            for name, value in sorted(outputs.items()):
                _say(f"    {name}: {json.dumps(shown(value))}")
        _say("\nResources:")
        for op, count in sorted(self.counts.items()):
            _say(f"    {_SIGNS.get(op, '  ')} {count} {op}")
        _say(f"\nDuration: {int(time.monotonic() - self._begun)}s")

    def _step(
        self, op: str, old: Resource | None, new: Resource | None, difference: Difference | None
    ) -> dict[str, Any]:
        one = new or old
        assert one is not None
        metadata: dict[str, Any] = {
            "op": op,
            "urn": one.urn,
            "type": one.type,
            "provider": one.provider,
            "old": _told(old),
            "new": _told(new),
            "logical": op not in _PARTS,
        }
        if difference is not None:
            metadata |= {"keys": difference.replaces, "diffs": difference.diffs, "detailedDiff": difference.detailed}
        return {"metadata": metadata, "planning": self._planning}

    def _send(self, kind: str, told: dict[str, Any]) -> None:
        with self._lock:
            self._sequence += 1
            event = {"sequence": self._sequence, "timestamp": int(time.time()), kind: told}
            self._sink.put(json.dumps(event))


def _told(resource: Resource | None) -> dict[str, Any] | None:
    if resource is None:
        return None
    result: dict[str, Any] = {
        "type": resource.type,
        "urn": resource.urn,
        "custom": resource.custom,
        "delete": resource.delete,
        "id": resource.id,
        "parent": resource.parent,
        "provider": resource.provider,
        "protect": resource.protect,
        "retainOnDelete": resource.retain_on_delete,
        "inputs": shown(resource.inputs),
        "outputs": shown(resource.outputs),
    }
    if resource.init_errors:
        result["initErrors"] = resource.init_errors
    return result


def _say(text: str) -> None:
    print(text, flush=True)


class _Nobody:
    def put(self, _event: str) -> None:
        """Discard the event."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _File:
    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - close() closes it

    def put(self, event: str) -> None:
        self._file.write(f"{event}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Stream:
    """One gRPC call with a stream of events as requests."""

    def __init__(self, address: str) -> None:
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address)
        self._call = events_pb2_grpc.EventsStub(self._channel).StreamEvents.future(self._requests())

    def _requests(self) -> Iterator[Any]:
        while (event := self._queue.get()) is not None:
            yield events_pb2.EventRequest(event=event)

    def put(self, event: str) -> None:
        self._queue.put(event)

    def close(self) -> None:
        self._queue.put(None)
        try:
            self._call.result(timeout=10)
        except grpc.RpcError as error:
            print(f"the listener to events has gone: {error}", file=sys.stderr)
        self._channel.close()


def _open(target: str | None) -> _Nobody | _File | _Stream:
    if target is None:
        return _Nobody()
    return _Stream(target.removeprefix("tcp://")) if target.startswith("tcp://") else _File(target)
