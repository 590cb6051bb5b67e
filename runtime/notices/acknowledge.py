"""Letting Azure begin an event early: once for all machines it names, when none of them has anything left to lose.

An acknowledgement counts for every machine of the event. So each node that is named and was told to end writes its
machine's name into the job dir, and later its result, or, where it goes on there after the event, that it has saved.
The one of lowest rank among them leads: when all machines of the event are nodes of this attempt, and all of these
nodes have ended or saved, it acknowledges. An event that names anybody else's machine is left to its own time.
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
    """machine-name.json: what the provider calls a node's machine, in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Saved(Record):
    """saved-<event>.json: the node's program has saved and ended, and waits for this event of its machine."""

    event: str


@runtime_checkable
class Events(Protocol):
    """Events of a provider that may begin early, once all is saved."""

    machine: str | None
    """This machine's own name, once it is known."""

    def acknowledge(self, event_id: str, /) -> None:
        """Let the event begin, for every machine it names. Raises MetadataError."""


class Acknowledger:
    """Works in a thread per event, which is over at the event's own time at the latest."""

    def __init__(
        self, own: NodeDir, machine: Callable[[], str | None], post: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self._job_dir, self._attempt, self._node = own.job_dir, own.attempt, own.node
        self._machine, self._post, self._say = machine, post, say
        self._threads: dict[str, threading.Thread] = {}
        self._has_saved = threading.Event()
        self._ended: set[str] = set()
        """Keys that have been there."""
        self._names: dict[str, str] = {}

    def begin(self, notice: ProviderNotice, starts: float) -> None:
        """See the event through, unless that is being done."""
        if notice.id not in self._threads:
            thread = threading.Thread(target=self._run, args=(notice, starts), name="acknowledge", daemon=True)
            self._threads[notice.id] = thread
            thread.start()

    def saved(self) -> None:
        """The program has saved and ended; the node has not: its machine comes back from the event."""
        self._has_saved.set()

    def finish(self, limit_s: float) -> None:
        """Wait until what has begun is over, for this node's program has ended."""
        until = time.monotonic() + limit_s
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, notice: ProviderNotice, starts: float) -> None:
        told = False
        while time.monotonic() < starts:
            try:
                told = told or self._tell_name()
                if told:
                    self._tell_saved(notice.id)
                if told and self._done(notice):
                    return
            except (JobDirError, MetadataError, TypeError):  # it may work the next time; TypeError: a foreign record
                pass
            time.sleep(_EVERY_S)

    def _tell_name(self) -> bool:
        name = self._machine()
        if name is not None:
            self._job_dir.put(self._key(self._node, _NAME), MachineName(name).to_bytes())
        return name is not None

    def _tell_saved(self, event: str) -> None:
        key = self._key(self._node, _saved_name(event))
        if self._has_saved.is_set() and key not in self._ended:
            self._job_dir.put(key, Saved(event).to_bytes())
            self._ended.add(key)

    def _done(self, notice: ProviderNotice) -> bool:
        """Whether there is nothing more for this node to do."""
        nodes = self._nodes()
        named = self._named(notice.machines, nodes)
        if not named:  # names are told before results: if all have ended, one of the machines is not ours
            return all(self._is_ready(node, notice.id) for node in nodes)
        if named[0] != self._node:
            # What this node has yet to tell is told here: a result is told by the agent.
            return self._is_ready(self._node, notice.id)
        if not all(self._is_ready(node, notice.id) for node in named):
            return False
        self._post(notice.id)
        self._say(f"{notice.kind} of {', '.join(notice.machines)} may begin: all is saved (event {notice.id})")
        return True

    def _nodes(self) -> list[str]:
        """All nodes of the attempt, by rank; this one by the name it has where it came to replace another."""
        attempt = AttemptRecord.from_bytes(self._job_dir.get(attempt_key(self._attempt), AttemptRecord.MOST_BYTES))
        ranked = sorted((NodeRecord.from_value(node) for node in attempt.nodes), key=lambda node: node.rank)
        place = self._node.rpartition(".")[0]
        return [self._node if node.node.rpartition(".")[0] == place else node.node for node in ranked]

    def _is_ready(self, node: str, event: str) -> bool:
        """Whether the node has ended, or has saved and waits for the event."""
        keys = [self._key(node, "result.json"), self._key(node, _saved_name(event))]
        if not self._ended.intersection(keys):
            self._ended.update([key for key in keys if self._job_dir.exists(key)][:1])
        return bool(self._ended.intersection(keys))

    def _named(self, machines: Sequence[str], nodes: Sequence[str]) -> list[str]:
        """The nodes on the machines, by rank; none as long as one of the machines is not known to be ours."""
        for node in nodes:
            if node not in self._names and (found := MachineName.read(self._job_dir, self._key(node, _NAME))):
                self._names[node] = found.name
        on = [node for node in nodes if self._names.get(node) in machines]
        return on if len(on) == len(set(machines)) else []

    def _key(self, node: str, name: str) -> str:
        return node_key(self._attempt, node, name)


def _saved_name(event: str) -> str:
    return f"saved-{_NO_KEY.sub('-', event)[:80]}.json"
