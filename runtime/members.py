"""Which nodes an attempt's program runs on, as one of them finds out: who comes late, is left over, or is left out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .generations import Ledger
from .jobdir import Generation, Heartbeat, JobDir, JobDirError, NodeRecord, Result, node_key
from .launchers import Place
from .runner import Runner

SILENT_S = 8.0
"""A peer that tells nothing for so long may be lost; whether it is, says the supervisor."""
WORD_S = 3_600.0
"""How long to wait for the supervisor's word: it may be getting a machine that takes long to boot."""


class LeftOutError(Exception):
    """This node is no member any more: another one has taken its place, or the others do without it."""


def adopt(place: Place, members: Sequence[NodeRecord] | None) -> Place:
    """The place among the members there are now. Raises LeftOutError."""
    if members is None:
        return place
    own = next((node for node in members if node.node == place.node.node), None)
    if own is None:
        raise LeftOutError(f"{place.node.node} is no member of the attempt any more")
    return dataclasses.replace(place, nodes=list(members), node=own)


def is_member(place: Place, ledger: Ledger) -> bool:
    """Whether this node is among those that the newest generation names."""
    return place.node.node in [node.node for node in ledger.members or place.nodes]


def wait_for(ledger: Ledger, runner: Runner, wanted: Callable[[Generation], bool], limit_s: float) -> Generation | None:
    """The first new generation that is wanted; None: the row was closed, or nobody wrote one. Raises Interrupted."""

    def look() -> Generation | None:
        try:
            record = ledger.look(ledger.following)
        except JobDirError:  # whether it is lost for good is judged by the heartbeat
            return None
        if record is not None:
            ledger.follow(record)
        return record if record is not None and (record.kind == "closed" or wanted(record)) else None

    found = runner.insist(look, limit_s, ledger.every_s)
    return None if found is None or found.kind == "closed" else found


def lost_peer(job_dir: JobDir, attempt: int, place: Place, runner: Runner) -> str | None:
    """Another node that has been taken, or tells nothing new for SILENT_S; None: all live, or ended by themselves.

    Raises JobDirError, Interrupted.
    """
    others = [node.node for node in place.nodes if node.node != place.node.node]
    first = {name: _pulse(job_dir, attempt, name) for name in others}
    until = time.monotonic() + SILENT_S
    while time.monotonic() < until:
        taken = next((name for name in others if _outcome(job_dir, attempt, name) == "preempted"), None)
        if taken is not None:
            return taken
        if all(_pulse(job_dir, attempt, name) != first[name] for name in others):
            return None
        runner.pause(1.0)
    silent = (name for name in others if _pulse(job_dir, attempt, name) == first[name])
    return next((name for name in silent if _outcome(job_dir, attempt, name) is None), None)


def _pulse(job_dir: JobDir, attempt: int, node: str) -> int:
    data = job_dir.find(node_key(attempt, node, "heartbeat.json"))
    return 0 if data is None else Heartbeat.from_bytes(data).sequence


def _outcome(job_dir: JobDir, attempt: int, node: str) -> str | None:
    data = job_dir.find(node_key(attempt, node, "result.json"))
    return None if data is None else Result.from_bytes(data).outcome


class Begun:
    """Remembers on this machine's disk that its program has begun: a machine that was restarted finds it there."""

    def __init__(self, state: Path) -> None:
        self._path = state / "begun"

    def __bool__(self) -> bool:
        return self._path.exists()

    def note(self) -> None:
        """Raises OSError."""
        self._path.touch()
