"""Membership of a node in its attempt: replacement of a lost node, and exclusion from the attempt."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...protocol.attempt_signal import send_signal
from ...protocol.jobdir import Generation, Heartbeat, JobDir, JobDirError, Record, RecordError, Result, node_key
from ..launchers import ProgramContext
from .generations import Ledger
from .runner import Runner

_R = TypeVar("_R", bound=Record)

SILENT_S = 8.0
"""Seconds without a new heartbeat after which a peer may be lost; the supervisor decides whether it is."""
RECHECK_S = 20.0
"""Interval in seconds between checks whether a lost peer has recovered."""
DECISION_TIMEOUT_S = 3_600.0
"""Timeout in seconds for the supervisor's decision, which may include the boot of a replacement machine."""
FLEET_TIMEOUT_S = 86_400.0
"""Timeout in seconds for a fleet's replacement machine: a group may lack capacity for hours."""


class LeftOutError(Exception):
    """This node is no longer a member: another node has replaced it, or the others go on without it."""


def adopt(place: ProgramContext, ledger: Ledger) -> ProgramContext:
    """Return the program's context with the current members and this node's rank among them.

    Raises LeftOutError if this node is not a member.
    """
    if not is_member(place, ledger):
        raise LeftOutError(f"{place.node.node} is no member of the attempt any more")
    if ledger.members is None or ledger.scope == "lone":  # independent of other nodes, it keeps its rank
        return place
    own = next(node for node in ledger.members if node.node == place.node.node)
    return dataclasses.replace(place, nodes=list(ledger.members), node=own)


def is_member(place: ProgramContext, ledger: Ledger) -> bool:
    """Return whether this node is among the current members."""
    return place.node.node in [node.node for node in ledger.members or place.nodes]


def take_place(ledger: Ledger, job_dir: JobDir, attempt: int, place: ProgramContext) -> Generation:
    """Replace the lost node by this one without a supervisor's decision; return the generation with the new members.

    Raises LeftOutError if another node has replaced the lost node, or if the attempt is closed; JobDirError.
    """
    own = place.node
    while not is_member(place, ledger):
        members = ledger.members or place.nodes
        lost = next(node for node in members if _position(node.node) == _position(own.node))
        if int(lost.node.rpartition(".")[2]) > int(own.node.rpartition(".")[2]):
            raise LeftOutError(f"{lost.node} is in its place")
        nodes = [dataclasses.replace(node, node=own.node) if node is lost else node for node in members]
        beats = {node.node: _PeerState.read(job_dir, attempt, node.node) for node in members}
        saved = max(sign.saved_step for sign in beats.values())
        if ledger.take_place(nodes, lost.node, beats[lost.node].generation, saved).kind == "closed":
            raise LeftOutError("the program is not to be started again")
    if ledger.newest is None:
        raise LeftOutError(f"{own.node} was a member from the beginning")
    return ledger.newest


def _position(node: str) -> str:
    """Return a node's name without its incarnation: `worker-0` for `worker-0.2`."""
    return node.rpartition(".")[0]


def wait_for(ledger: Ledger, runner: Runner, wanted: Callable[[Generation], bool], limit_s: float) -> Generation | None:
    """Wait for a new generation for which wanted() is true, or that closes the attempt; return it, None on timeout.

    `limit_s`: timeout in seconds. Raises Interrupted, Vanished if an order comes.
    """

    def look() -> Generation | None:
        try:
            record = ledger.read_generation(ledger.following)
        except JobDirError:  # the heartbeat decides whether the job dir is lost
            return None
        if record is not None:
            ledger.adopt(record)
        return record if record is not None and (record.kind == "closed" or wanted(record)) else None

    return runner.poll(look, limit_s, ledger.every_s)


def lost_peer(job_dir: JobDir, attempt: int, place: ProgramContext, runner: Runner) -> str | None:
    """Return the name of another node that is being preempted, or that sends no new heartbeat for SILENT_S seconds.

    Returns None if every other node is alive or has a result. Raises JobDirError, Interrupted.
    """
    others = [node.node for node in place.nodes if node.node != place.node.node]
    send_signal(
        job_dir, attempt, watch_s=2 * SILENT_S
    )  # requests frequent heartbeats: in the steady state they are rare
    until, first = time.monotonic() + SILENT_S, dict.fromkeys(others, -1)
    while True:
        signs = {name: _PeerState.read(job_dir, attempt, name) for name in others}
        leaving = next((name for name, sign in signs.items() if sign.leaves), None)
        if leaving is not None:
            return leaving
        first = {name: signs[name].pulse if pulse < 0 else pulse for name, pulse in first.items()}
        silent = [name for name, sign in signs.items() if sign.outcome is None and sign.pulse == first[name]]
        if not silent or time.monotonic() >= until:
            return silent[0] if silent else None
        runner.pause(1.0)


@dataclass(frozen=True, slots=True)
class _PeerState:
    """State of another node, from its heartbeat and its result."""

    pulse: int
    """Number of the last heartbeat; 0: none yet."""
    phase: str
    outcome: str | None
    generation: int = 0
    """Generation of its program; 0: none yet."""
    saved_step: int = 0

    @classmethod
    def read(cls, job_dir: JobDir, attempt: int, node: str) -> _PeerState:
        heartbeat = _read(Heartbeat, job_dir, node_key(attempt, node, "heartbeat.json"))
        end = _read(Result, job_dir, node_key(attempt, node, "result.json"))
        outcome = None if end is None else end.outcome
        if heartbeat is None:
            return cls(0, "", outcome)
        spans = (heartbeat.timeline or {}).get("spans") or [{}]
        saved = int((heartbeat.progress or {}).get("saved_step") or 0)
        return cls(heartbeat.sequence, heartbeat.phase, outcome, int(spans[-1].get("generation") or 0), saved)

    @property
    def leaves(self) -> bool:
        """True if the node's machine is being preempted: the node is ending by an order that this node did not get."""
        return self.outcome == "preempted" or (self.outcome is None and self.phase == "stopping")


def _read(kind: type[_R], job_dir: JobDir, key: str) -> _R | None:
    """Return another node's record; None if there is none or it is invalid. Raises JobDirError."""
    try:
        return kind.read(job_dir, key)
    except RecordError:
        return None


class Begun:
    """File on the machine's disk with the number of the last generation started, for a restart of the machine."""

    def __init__(self, state: Path) -> None:
        self._path = state / "begun"

    @property
    def generation(self) -> int:
        """Number of the generation that was started last; 0: none yet. Raises OSError."""
        try:
            return int(self._path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:  # the machine was reset while it was written
            return 1

    def note(self, generation: int) -> None:
        """Write the generation to the file. Raises OSError."""
        self._path.write_text(str(generation))
