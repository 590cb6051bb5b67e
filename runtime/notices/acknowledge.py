"""Letting Azure begin an event early: once for all machines it names, when no node has anything left to lose.

An acknowledgement counts for every machine of the event. So each node that is named and was told to end writes its
machine's name into the job dir. The one of lowest rank among them leads: when all machines of the event are nodes of
this attempt, and all nodes of the attempt have written how they ended, it acknowledges. An event that names anybody
else's machine is left to its own time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..jobdir import AttemptRecord, JobDirError, NodeRecord, Record, attempt_key, node_key
from .docket import ProviderNotice
from .job_dir import NodeDir
from .metadata import MetadataError

_EVERY_S = 1.0
_NAME = "machine-name.json"


@dataclass(frozen=True, slots=True)
class MachineName(Record):
    """machine-name.json: what the provider calls a node's machine, in lower case."""

    name: str


class Acknowledger:
    """Works in a thread per event, which is over at the event's own time at the latest."""

    def __init__(
        self, own: NodeDir, machine: Callable[[], str | None], post: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self._job_dir, self._attempt, self._node = own.job_dir, own.attempt, own.node
        self._machine, self._post, self._say = machine, post, say
        self._threads: dict[str, threading.Thread] = {}
        self._ended: set[str] = set()
        self._names: dict[str, str] = {}

    def begin(self, notice: ProviderNotice, starts: float) -> None:
        """See the event through, unless that is being done."""
        if notice.id not in self._threads:
            thread = threading.Thread(target=self._run, args=(notice, starts), name="acknowledge", daemon=True)
            self._threads[notice.id] = thread
            thread.start()

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

    def _done(self, notice: ProviderNotice) -> bool:
        """Whether there is nothing more for this node to do."""
        nodes = self._nodes()
        waited_for = next((node for node in nodes if not self._has_ended(node)), None)
        leader = self._leader(notice.machines, nodes)
        if leader is None:  # names are told before results: if all have ended, one of the machines is not ours
            return waited_for is None
        if leader != self._node or waited_for is not None:
            return leader != self._node
        self._post(notice.id)
        self._say(f"{notice.kind} of {', '.join(notice.machines)} may begin: all nodes have ended (event {notice.id})")
        return True

    def _nodes(self) -> list[str]:
        """All nodes of the attempt, by rank."""
        attempt = AttemptRecord.from_bytes(self._job_dir.get(attempt_key(self._attempt)))
        return [
            node.node for node in sorted((NodeRecord(**node) for node in attempt.nodes), key=lambda node: node.rank)
        ]

    def _has_ended(self, node: str) -> bool:
        if node not in self._ended and self._job_dir.exists(self._key(node, "result.json")):
            self._ended.add(node)
        return node in self._ended

    def _leader(self, machines: Sequence[str], nodes: Sequence[str]) -> str | None:
        """The node of lowest rank on the machines; None as long as one of them is not known to be ours."""
        for node in nodes:
            if node not in self._names and (data := self._job_dir.find(self._key(node, _NAME))) is not None:
                self._names[node] = MachineName.from_bytes(data).name
        on = [node for node in nodes if self._names.get(node) in machines]
        return on[0] if len(on) == len(set(machines)) else None

    def _key(self, node: str, name: str) -> str:
        return node_key(self._attempt, node, name)
