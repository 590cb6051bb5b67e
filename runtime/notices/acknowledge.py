"""Acknowledge Azure's scheduled events, so that an event begins early once all its machines have saved.

An acknowledgement applies to every machine of the event. Each affected node therefore writes its machine's name to the
job dir, and later its result, or a `saved` record if it will resume on the same machine. When all affected nodes have
ended or saved, the affected node of lowest rank sends the acknowledgement. An event that includes machines of other
attempts is not acknowledged: it begins at its scheduled time.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ...protocol.jobdir import AttemptRecord, JobDirError, NodeRecord, Record, attempt_key, node_key
from .job_dir import NodeDir
from .metadata import MetadataError
from .scheduled_notices import ProviderNotice

_EVERY_S = 1.0
_NAME = "machine-name.json"
_NO_KEY = re.compile(r"[^\w-]")


@dataclass(frozen=True, slots=True)
class MachineName(Record):
    """The record machine-name.json: the provider's name of a node's machine, in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Saved(Record):
    """The record saved-<event>.json: the node's program has saved and ended, and waits for this event."""

    event: str


@runtime_checkable
class Events(Protocol):
    """Source of a provider's events that can be acknowledged."""

    machine: str | None
    """This machine's name; None until it is known."""

    def acknowledge(self, event_id: str, /) -> None:
        """Acknowledge an event, so that it begins on all its machines. Raises MetadataError."""


class Acknowledger:
    """Acknowledger of events, with a thread per event that ends at the event's scheduled time at the latest."""

    def __init__(
        self, own: NodeDir, machine: Callable[[], str | None], post: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self._job_dir, self._attempt, self._node = own.job_dir, own.attempt, own.node
        self._machine, self._post, self._say = machine, post, say
        self._threads: dict[str, threading.Thread] = {}
        self._has_saved = threading.Event()
        self._ended: set[str] = set()
        """Keys of results and `saved` records known to exist."""
        self._names: dict[str, str] = {}

    def begin(self, notice: ProviderNotice, starts: float) -> None:
        """Start the thread for an event, unless there is one. `starts`: the event's time in time.monotonic()."""
        if notice.id not in self._threads:
            thread = threading.Thread(target=self._run, args=(notice, starts), name="acknowledge", daemon=True)
            self._threads[notice.id] = thread
            thread.start()

    def saved(self) -> None:
        """Record that the program has saved and ended, and that the node waits for the restart of its machine."""
        self._has_saved.set()

    def finish(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds for the threads to end, once this node has ended."""
        until = time.monotonic() + limit_s
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, notice: ProviderNotice, starts: float) -> None:
        has_name = False
        while time.monotonic() < starts:
            try:
                has_name = has_name or self._publish_name()
                if has_name:
                    self._publish_saved(notice.id)
                if has_name and self._done(notice):
                    return
            except (JobDirError, MetadataError, TypeError):  # retry; TypeError: an invalid record
                pass
            time.sleep(_EVERY_S)

    def _publish_name(self) -> bool:
        name = self._machine()
        if name is not None:
            self._job_dir.put(self._key(self._node, _NAME), MachineName(name).to_bytes())
        return name is not None

    def _publish_saved(self, event: str) -> None:
        key = self._key(self._node, _saved_name(event))
        if self._has_saved.is_set() and key not in self._ended:
            self._job_dir.put(key, Saved(event).to_bytes())
            self._ended.add(key)

    def _done(self, notice: ProviderNotice) -> bool:
        """Acknowledge the event if all nodes are ready and this node must do it; return whether the thread can end."""
        nodes = self._nodes()
        named = self._named(notice.machines, nodes)
        if not named:  # names are written before results: if all nodes are ready, a machine is not of this attempt
            return all(self._is_ready(node, notice.id) for node in nodes)
        if named[0] != self._node:
            # This thread must still write this node's `saved` record; the agent writes its result.
            return self._is_ready(self._node, notice.id)
        if not all(self._is_ready(node, notice.id) for node in named):
            return False
        self._post(notice.id)
        self._say(f"{notice.kind} of {', '.join(notice.machines)} may begin: all is saved (event {notice.id})")
        return True

    def _nodes(self) -> list[str]:
        """Return the names of the attempt's nodes, by rank, with this node's name in place of the node it replaced."""
        attempt = AttemptRecord.from_bytes(self._job_dir.get(attempt_key(self._attempt), AttemptRecord.MOST_BYTES))
        ranked = sorted((NodeRecord.from_value(node) for node in attempt.nodes), key=lambda node: node.rank)
        place = self._node.rpartition(".")[0]
        return [self._node if node.node.rpartition(".")[0] == place else node.node for node in ranked]

    def _is_ready(self, node: str, event: str) -> bool:
        """Return whether a node has ended, or has saved and waits for the event."""
        keys = [self._key(node, "result.json"), self._key(node, _saved_name(event))]
        if not self._ended.intersection(keys):
            self._ended.update([key for key in keys if self._job_dir.exists(key)][:1])
        return bool(self._ended.intersection(keys))

    def _named(self, machines: Sequence[str], nodes: Sequence[str]) -> list[str]:
        """Return the nodes on these machines, by rank; [] unless all machines are known to be of this attempt."""
        for node in nodes:
            if node not in self._names and (found := MachineName.read(self._job_dir, self._key(node, _NAME))):
                self._names[node] = found.name
        on = [node for node in nodes if self._names.get(node) in machines]
        return on if len(on) == len(set(machines)) else []

    def _key(self, node: str, name: str) -> str:
        return node_key(self._attempt, node, name)


def _saved_name(event: str) -> str:
    return f"saved-{_NO_KEY.sub('-', event)[:80]}.json"
