"""Execution of the user's program on one node, from its first start through all restarts ("generations") to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ....protocol.jobdir import Address, Generation, JobDir, Record, RecordError, node_key
from ....protocol.logs.writer import LogWriter
from ...checkpoint.schedule import interval
from ...launchers import LOOPBACK, ProgramContext, free_port, machine_environment, needs_addresses, own_host, processes
from ...notices import Order, Orders
from ...processes.exit_verdict import INTERRUPTED_EXIT, Ending, judge
from ...processes.outcome_watch import OutcomeWatch
from ...processes.program import Exit, Process, kill_leftovers
from ..generations import GenerationWatcher, Ledger
from ..heartbeat import HeartbeatThread, read_progress
from ..membership import (
    DECISION_TIMEOUT_S,
    FLEET_TIMEOUT_S,
    RECHECK_S,
    Begun,
    LeftOutError,
    adopt,
    is_member,
    lost_peer,
    take_place,
    wait_for,
)
from ..restart import generations_without_checkpoint, requested_restart
from ..runner import PEER_S, POLL_S, Runner, StopHooks, Wakeup
from ..timeline import History
from .gpu_idle import VISIBLE, IdleWatch, read_utilisation
from .writer import NodeWriter, writer_environment

SETTLE_S = 1.0
"""Seconds that the node's other processes have to end after one has failed, if the program may be restarted; one of
them may report the cause."""
LEAVE_S = 60.0
"""Seconds that the node's other processes have to end after one has ended because of a notice: they may be saving."""
DRAIN_S = 300.0
"""Timeout in seconds for writing staged checkpoints, unless a deadline comes first."""
_WRITE_S = 3.0  # assumed duration of a checkpoint write until the program has reported one
_SAFETY = 1.5
_END_S = 2.0  # to kill the program and write the result

_T = TypeVar("_T")


class Retry(Protocol):
    """Function that retries a job dir call. Raises JobDirError."""

    def __call__(self, call: Callable[[], _T]) -> _T: ...


@dataclass(frozen=True, slots=True)
class Node:
    """Identity and services of this node, shared by the parts of its agent."""

    job_dir: JobDir
    attempt: int
    name: str
    home: Path
    marker: str
    host: str | None
    """Name or address by which other nodes reach this node; None: detect it."""
    wakeup: Wakeup
    orders: Orders
    runner: Runner
    log: LogWriter
    heart: HeartbeatThread
    history: History
    retry: Retry
    of_fleet: bool = False
    """True if the fleet's machines replace lost nodes without a supervisor's decision."""

    @property
    def code(self) -> Path:
        return self.home / "code"

    @property
    def state(self) -> Path:
        return self.home / "state"

    def key(self, name: str) -> str:
        return node_key(self.attempt, self.name, name)


class NodeProgram:
    """Runner of the program's generations on this node, until none follows."""

    def __init__(self, node: Node, place: ProgramContext, launcher: str, ledger: Ledger) -> None:
        self._node, self._launcher, self._ledger = node, launcher, ledger
        self._machine_env = machine_environment(os.environ, node.marker)
        env = writer_environment(self._machine_env, {**place.job.env, **place.secrets})
        self._writer = NodeWriter(node.state / "writer.sock", env, node.log.add_agent_line)
        self.place = dataclasses.replace(place, writer=str(self._writer.path))
        """The program's context in the newest generation."""
        self._known: dict[str, Address] = {}
        """Node addresses of the last rendezvous."""
        self._begun = Begun(node.state)
        text = place.job.env.get(INTERRUPTED_EXIT, "")
        self._interrupted_exit = int(text) if text.isdecimal() else None

    def run(self) -> Ending:
        """Run the program, with restarts, until no generation follows; return how this node ends.

        Raises LeftOutError, Interrupted, Vanished, JobDirError, LauncherError, OSError, ValueError.
        """
        try:
            generation = self._first_generation()
            while True:
                addresses = self._exchange_addresses(dataclasses.replace(self.place, generation=generation))
                if isinstance(addresses, Generation):
                    generation = self._prepare(addresses)
                    continue
                ending, following = self._run_generation(generation, addresses)
                if following is None:
                    return ending
                generation = self._prepare(following)
        finally:
            self._writer.drain(self._seconds_left, self._node.wakeup.wait, self._node.wakeup.wake)
            self._writer.end()
            kill_leftovers(self._node.marker)
            self._node.runner.raise_if_vanished()

    def _seconds_left(self) -> float:
        return self._node.runner.seconds_left(DRAIN_S)

    def _first_generation(self) -> int:
        """Return the generation to begin with: the first, or a later one if the machine joins late or was restarted.

        Raises LeftOutError, Interrupted, JobDirError.
        """
        node, ledger = self._node, self._ledger
        newest = node.retry(ledger.catch_up)
        following: Generation | None = None
        if newest is not None and newest.kind == "closed" and not self._is_merely_late(newest):
            raise LeftOutError("the program has ended on the other nodes")
        if not is_member(self.place, ledger):
            node.heart.set_phase("waiting")
            node.log.add_agent_line("ready to take a lost node's place")
            if node.of_fleet:
                following = node.retry(lambda: take_place(ledger, node.job_dir, node.attempt, self.place))
            else:
                following = wait_for(ledger, node.runner, lambda _: is_member(self.place, ledger), DECISION_TIMEOUT_S)
        elif self._begun.generation:
            following = ledger.find_awaiting_generation(self._begun.generation) or node.retry(
                lambda: ledger.rejoin(f"{node.name} was restarted")
            )
        else:
            self.place = adopt(self.place, ledger)
            return ledger.newest_of_group
        if following is None or following.kind == "closed":
            raise LeftOutError(f"the others do not go on with {node.name}")
        return self._prepare(following)

    def _is_merely_late(self, end: Generation) -> bool:
        """Return whether this node must still run its part: the others have succeeded without it, before it started."""
        return end.reason == "succeeded" and not self._begun.generation and is_member(self.place, self._ledger)

    def _prepare(self, following: Generation) -> int:
        """Adopt a generation's members, wait for its backoff, and return its number.

        Raises LeftOutError if this node is not a member, Interrupted or Vanished if an order comes.
        """
        self.place = adopt(self.place, self._ledger)
        where = "all processes start" if following.group else "it starts"
        pause = f" in {following.pause_s:.0f} s" if following.pause_s else ""
        self._node.log.add_agent_line(
            f"{following.reason}; {where} again in place{pause} (generation {following.generation})"
        )
        self._node.runner.pause(following.pause_s)
        return following.generation

    def _run_generation(self, generation: int, addresses: dict[str, Address]) -> tuple[Ending, Generation | None]:
        """Run one generation of the program; return how it ended, and the generation that follows here, if any."""
        node = self._node
        newest = self._ledger.newest
        place = dataclasses.replace(
            self.place,
            generation=generation,
            failures=newest.failures if newest else 0,
            earlier=self._earlier(generation),
        )
        started = processes(self._launcher, place, self._machine_env, addresses)
        outcomes = OutcomeWatch({process.rank: node.state / f"outcome-{process.rank}.json" for process in started})
        outcomes.clear()
        for path in (place.notice, place.listening, place.progress):
            path.unlink(missing_ok=True)
        wanted = [
            dataclasses.replace(process, env={**process.env, "CLOUDGPU_OUTCOME": outcomes.path(process.rank)})
            for process in started
        ]
        self._begun.note(generation)
        node.history.begin(generation)
        node.heart.set_phase("running")
        exits, asked, elsewhere = self._watch(wanted, place, outcomes)
        ending = judge(
            exits,
            node.orders.deciding,
            asked=asked,
            listening=place.listening.exists(),
            reported=outcomes.reported(),
            interrupted_exit=self._interrupted_exit,
        )
        ending = dataclasses.replace(ending, reason=node.log.masked(ending.reason))  # it may quote the program
        node.history.record_progress(read_progress(place.progress), generation)
        node.history.end(ending.reason if elsewhere is None else elsewhere.reason)
        return ending, self._what_follows(ending, elsewhere, place)

    def _earlier(self, generation: int) -> dict[str, Any]:
        """Return the interruptions and node-seconds before this generation, as an interval.History in JSON.

        They include earlier attempts, and this attempt's earlier generations. The Checkpointer computes its interval
        from them.
        """
        timeline, place = self._node.history, self.place
        costs = [
            progress["cost"]
            for progress in timeline.progress_by_generation
            if progress and progress.get("cost") is not None
        ]
        before = interval.History.from_json(place.earlier)
        now = before.plus(place.market, timeline.seconds * len(place.nodes), generation - 1)
        return {**now.to_json(), "cost": costs[-1] if costs else before.cost}

    def _watch(
        self, wanted: Sequence[Process], place: ProgramContext, outcomes: OutcomeWatch
    ) -> tuple[list[Exit], bool, Generation | None]:
        node, conduct = self._node, _ProgramConduct(place, self._writer, self._ledger, outcomes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._idle_watch(place))
            # If lost nodes are replaced, membership may change even for a single node.
            if self._ledger.heals or (len(place.nodes) > 1 and self._ledger.scope != "lone"):
                conduct.lookout = stack.enter_context(GenerationWatcher(self._ledger, node.orders, node.wakeup.wake))
            self._writer.begin()
            exits, asked = node.runner.run(wanted, node.code, conduct, node.log, node.heart)
        node.log.flush()  # writing staged checkpoints and copying outputs may take hours
        return exits, asked, conduct.lookout.found if conduct.lookout else None

    def _what_follows(self, ending: Ending, elsewhere: Generation | None, place: ProgramContext) -> Generation | None:
        """Return the generation to run next on this node; None if there is none, for example after an order to end.

        `elsewhere`: generation that another node began while the program ran, if any
        """
        node, ledger = self._node, self._ledger
        order = node.orders.deciding
        if order is not None and ledger.is_replaced_after(order):
            return None
        may_follow = order is None and not ending.final
        if elsewhere is not None and may_follow:
            ledger.adopt(elsewhere)
            return elsewhere
        wanted = (
            None
            if order is not None
            else requested_restart(ending, generations_without_checkpoint(node.history.progress_by_generation))
        )
        if may_follow and ending.outcome != "succeeded" and not ledger.grants(wanted):
            word = self._wait_for_replacement(place)
            if word is not None:
                return None if word.kind == "closed" else word
        return node.retry(lambda: ledger.decide_next(wanted, ending.outcome, may_follow=may_follow))

    def _wait_for_replacement(self, place: ProgramContext) -> Generation | None:
        """Wait for the generation that replaces a lost node, whose loss may have made the program fail here.

        Returns None if no other node is lost, or on timeout.
        """
        node, ledger = self._node, self._ledger
        if not ledger.heals or ledger.scope != "group" or len(place.nodes) == 1:
            return None
        until, said = time.monotonic() + (FLEET_TIMEOUT_S if node.of_fleet else DECISION_TIMEOUT_S), ""
        while time.monotonic() < until:
            peer = node.retry(lambda: lost_peer(node.job_dir, node.attempt, place, node.runner))
            if peer is None:
                return None
            if peer != said:
                node.log.add_agent_line(f"{peer} seems to be lost: waiting for its replacement")
                said = peer
            word = wait_for(ledger, node.runner, ledger.affects_this_node, RECHECK_S)
            if word is not None:
                return word
        return None

    def _exchange_addresses(self, place: ProgramContext) -> dict[str, Address] | Generation:
        """Publish this node's address and wait for those of the others; return all, or a newer generation.

        Each rendezvous uses new ports, because old ones may still be in use.
        """
        node = self._node
        needed = needs_addresses(self._launcher, place.nodes)
        if not needed:
            return {node.name: Address(LOOPBACK, free_port())}
        if self._known and self._ledger.newest is not None and not self._ledger.newest.group:
            return self._known  # only this node restarts: the others keep using its address
        own = Address(node.host or own_host(), free_port(place.node.rank, len(place.nodes)))
        name = "address.json" if place.generation == 1 else f"address-{place.generation:04d}.json"
        node.retry(lambda: node.job_dir.put(node.key(name), own.to_bytes()))
        met = {node.name: own}
        for other in needed:
            found = self._address(other.node, name)
            if isinstance(found, Generation):
                return found
            met[other.node] = found
        self._known = met
        return met

    def _address(self, other: str, name: str) -> Address | Generation:
        """Wait for a node's address; return it, or a newer generation, which may exclude that node."""
        node, ledger = self._node, self._ledger
        key = node_key(node.attempt, other, name)

        def look() -> Record | None:
            address = node.retry(lambda: _read_address(node.job_dir, key))
            if address is not None:
                return address
            record = None if ledger.scope == "lone" else node.retry(lambda: ledger.read_generation(ledger.following))
            if record is not None:
                ledger.adopt(record)
            return record if record is not None and record.group else None

        # On Vertex AI, programs start as machines arrive: other machines may be an hour later (vertex/provisioner.py).
        limit_s = FLEET_TIMEOUT_S if node.of_fleet else DECISION_TIMEOUT_S
        found = node.runner.poll(look, limit_s, ledger.every_s)
        if isinstance(found, Address) or (isinstance(found, Generation) and found.kind != "closed"):
            return found
        never = f"no address from {other} within {limit_s:.0f} s"
        raise LeftOutError(never if found is None else "the program has ended on another node")

    def _idle_watch(self, place: ProgramContext) -> contextlib.AbstractContextManager[object]:
        """Return a context manager that reports the GPUs' idle time in heartbeats, if the job limits it."""
        if place.job.gpu_idle_s is None or place.node.gpus == 0:
            return contextlib.nullcontext()
        sample = functools.partial(read_utilisation, os.environ.get(VISIBLE))
        node = self._node
        return IdleWatch(place.job.gpu_idle_s, sample, report=node.heart.set_gpu_idle, say=node.log.add_agent_line)


class _ProgramConduct(StopHooks):
    """Hooks that the process runner calls while one generation of the program runs."""

    def __init__(self, place: ProgramContext, writer: NodeWriter, ledger: Ledger, outcomes: OutcomeWatch) -> None:
        self.listening = place.listening
        self.lookout: GenerationWatcher | None = None
        self._progress, self._writer, self._ledger, self._outcomes = place.progress, writer, ledger, outcomes

    @property
    def protected_pid(self) -> int | None:  # type: ignore[override]
        return self._writer.process

    def do_periodic_work(self) -> float:
        return min(self._writer.keep_up(), POLL_S)

    def is_over(self) -> bool:
        found = None if self.lookout is None else self.lookout.found
        return found is not None and found.grace_s == 0.0

    def ended_programs(self) -> Mapping[int | None, int]:
        return self._outcomes.ended_programs()

    def restart_order(self) -> Order | None:
        found = None if self.lookout is None else self.lookout.found
        if found is None or found.grace_s == 0.0:
            return None
        return Order("again", "members", found.reason, time.monotonic() + found.grace_s)

    def write_s(self) -> float:
        """Return the seconds to reserve for writing staged checkpoints; 0.0 if the program uses no Checkpointer."""
        progress = read_progress(self._progress)
        if progress is None or self._writer.process is None:
            return 0.0
        return _SAFETY * float(progress.get("lag") or _WRITE_S) + _END_S

    def peers_s(self, ended: Exit) -> float:
        if ended.code in _LEAVING or self._outcomes.has_left(ended.rank):
            return LEAVE_S
        return SETTLE_S if self._ledger.could_restart() else PEER_S


_LEAVING = frozenset({75, 76, 77})


def _read_address(job_dir: JobDir, key: str) -> Address | None:
    """Return another node's address; None if there is none or it is invalid. Raises JobDirError."""
    try:
        return Address.read(job_dir, key)
    except RecordError:
        return None
